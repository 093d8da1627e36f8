//! Hears that there are new rows, and goes on hearing after a lost connection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pabal_core::{Clock, EndpointName};
use sqlx::{PgPool, postgres::PgListener};
use tokio::{sync::Notify, task::JoinHandle};

use crate::classify::said;

/// Between attempts to listen again; it doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Listens on a connection of its own for as long as it lives.
#[derive(Debug)]
pub(super) struct Ear {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    heard: Notify,
    listening: AtomicBool,
    missed: AtomicBool,
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Ear {
    /// Listens to a channel.
    pub(super) fn listen(
        pool: PgPool,
        channel: String,
        source: EndpointName,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            let mut pause = PAUSE_FIRST;
            loop {
                let Err(error) = own.hear(&pool, &channel, &source, &mut pause).await;
                if own.listening.swap(false, Ordering::AcqRel) {
                    tracing::warn!(
                        %source, channel, error = said(&error),
                        "the connection that listens was lost: the table is looked at instead"
                    );
                    own.heard.notify_one();
                }
                clock.sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        });
        Self { shared, task }
    }

    /// Returns once something was heard, or may have been missed.
    pub(super) async fn heard(&self) {
        self.shared.heard.notified().await;
    }

    /// Whether one may rely on it.
    pub(super) fn is_listening(&self) -> bool {
        self.shared.listening.load(Ordering::Acquire)
    }

    /// Whether something may have been missed since this was asked last.
    pub(super) fn may_have_missed(&self) -> bool {
        self.shared.missed.swap(false, Ordering::AcqRel)
    }
}

impl Shared {
    /// Until the connection is lost.
    async fn hear(
        &self,
        pool: &PgPool,
        channel: &str,
        source: &EndpointName,
        pause: &mut Duration,
    ) -> Result<std::convert::Infallible, sqlx::Error> {
        let mut listener = PgListener::connect_with(pool).await?;
        listener.eager_reconnect(false);
        listener.listen(channel).await?;
        // From here on nothing is missed; what was written before is found by looking.
        self.missed.store(true, Ordering::Release);
        self.listening.store(true, Ordering::Release);
        self.heard.notify_one();
        tracing::info!(%source, channel, "listens for new rows");
        *pause = PAUSE_FIRST;
        loop {
            match listener.try_recv().await? {
                Some(_) => self.heard.notify_one(),
                None => return Err(sqlx::Error::WorkerCrashed),
            }
        }
    }
}
