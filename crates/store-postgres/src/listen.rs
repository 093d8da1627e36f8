//! Hears of what other nodes wrote, and goes on hearing after a lost connection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use pabal_core::Clock;
use sqlx::{
    AssertSqlSafe, Executor, PgConnection,
    postgres::{PgListener, PgPool, PgPoolOptions},
};
use tokio::{sync::Notify, task::JoinHandle};

use crate::{open::OpenError, server::Server};

/// The one channel; a notification says nothing but that something was written.
pub(crate) const CHANNEL: &str = "pabal";
/// What is sent at the start, to see whether notifications arrive at all.
const TEST: &str = "does this arrive?";
/// How long it may take to arrive.
const TEST_TIME: Duration = Duration::from_secs(3);
/// Between attempts to listen again; it doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Who cannot hear looks so often.
const DEAF: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Ear {
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    /// None: it hears nothing.
    task: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    heard: Notify,
    listening: AtomicBool,
    relistened: AtomicU64,
}

impl Drop for Ear {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Ear {
    /// Listens at one server to what is written at another, or the same; looks instead if it cannot
    /// hear.
    pub(crate) async fn open(
        at: &Server,
        speak: &Server,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let shared = Arc::new(Shared::default());
        let task = match at.is_pooled().await? {
            true => None,
            false => Self::listen(at, speak, &shared, &clock).await?,
        };
        if task.is_none() {
            tracing::warn!(
                alert = true, every = ?DEAF,
                "notifications do not arrive, so the store is looked at more often: behind a \
                 transaction pooler give `listen` a URL that goes to the server directly"
            );
        }
        Ok(Self { shared, clock, task })
    }

    async fn listen(
        at: &Server,
        speak: &Server,
        shared: &Arc<Shared>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Option<JoinHandle<()>>, OpenError> {
        let fail = |error| OpenError::Connect { place: at.place.clone(), error };
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .connect_with(at.options.clone())
            .await
            .map_err(fail)?;
        let mut listener = listen(&pool).await.map_err(fail)?;
        let mut speaker = speak.connect().await?;
        let arrives = clock.timeout(TEST_TIME, test(&mut listener, &mut speaker)).await;
        if !matches!(arrives, Some(Ok(()))) {
            return Ok(None);
        }
        shared.listening.store(true, Ordering::Relaxed);
        Ok(Some(tokio::spawn(run(pool, listener, Arc::clone(shared), Arc::clone(clock)))))
    }

    /// Returns once something was heard, or may have been missed.
    pub(crate) async fn changed(&self) {
        if self.is_listening() {
            self.shared.heard.notified().await;
        } else {
            tokio::select! {
                () = self.shared.heard.notified() => {}
                () = self.clock.sleep(DEAF) => {}
            }
        }
    }

    pub(crate) fn is_listening(&self) -> bool {
        self.shared.listening.load(Ordering::Relaxed)
    }

    pub(crate) fn relistened(&self) -> u64 {
        self.shared.relistened.load(Ordering::Relaxed)
    }
}

async fn listen(pool: &PgPool) -> Result<PgListener, sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.ignore_pool_close_event(true);
    // A lost connection is told, and made anew here, so that it can be counted.
    listener.eager_reconnect(false);
    listener.listen(CHANNEL).await?;
    Ok(listener)
}

/// Returns once a notification sent on another connection has arrived.
async fn test(listener: &mut PgListener, speaker: &mut PgConnection) -> Result<(), sqlx::Error> {
    let notify = format!("SELECT pg_notify('{CHANNEL}', '{TEST}')");
    speaker.execute(AssertSqlSafe(notify)).await?;
    while listener.recv().await?.payload() != TEST {}
    Ok(())
}

async fn run(pool: PgPool, listener: PgListener, shared: Arc<Shared>, clock: Arc<dyn Clock>) {
    let mut listener = Some(listener);
    let mut pause = PAUSE_FIRST;
    loop {
        let Some(ear) = &mut listener else {
            clock.sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            match listen(&pool).await {
                Ok(again) => {
                    listener = Some(again);
                    pause = PAUSE_FIRST;
                    shared.relistened.fetch_add(1, Ordering::Relaxed);
                    shared.listening.store(true, Ordering::Relaxed);
                    tracing::info!("listening to the store again; what was missed is read now");
                    shared.heard.notify_one();
                }
                Err(error) => tracing::warn!(%error, "listening to the store is tried again"),
            }
            continue;
        };
        match ear.try_recv().await {
            Ok(Some(_)) => shared.heard.notify_one(),
            lost => {
                let error = lost.err().map(|error| error.to_string());
                tracing::warn!(error, "the connection that listens to the store was lost");
                shared.listening.store(false, Ordering::Relaxed);
                // Whoever waits looks by itself until there is something to hear again.
                shared.heard.notify_one();
                listener = None;
            }
        }
    }
}
