//! The way in: a [`Sender`] per source that checks, reads, routes and commits in groups.

mod arrival;
mod committer;
mod repeats;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use pabal_core::{
    Clock, Entry, HEADERS_BYTES_MAX, Limits, Message, Reason, SendError, Sender, Stop, Store,
    Verdict,
};
use tokio::sync::{Notify, mpsc, oneshot};

use self::{
    arrival::prepare,
    committer::{Committer, GROUP_MAX, Job},
    repeats::Repeats,
};
use crate::{Observer, OnInvalid, Source, router::Router};

/// Entries that wait for the committer; more wait at their origin.
const QUEUE_MAX: usize = 1_024;

/// What all inboxes share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) hub: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) router: Arc<Router>,
    /// Told after each commit.
    pub(crate) committed: Arc<Notify>,
    /// Once it fires, committers write what is queued, take nothing more and end.
    pub(crate) closing: Stop,
}

/// The inbox of one source.
#[derive(Debug, Clone)]
pub(crate) struct Inbox {
    source: Arc<Source>,
    shared: Arc<Shared>,
    queue: mpsc::Sender<Job>,
    paused: Arc<AtomicBool>,
    repeats: Option<Repeats>,
}

impl Inbox {
    /// Makes the inbox and the work behind it, which ends once [`Shared::closing`] fires.
    pub(crate) fn new(
        source: Arc<Source>,
        shared: Arc<Shared>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (queue, jobs) = mpsc::channel(QUEUE_MAX);
        let committer =
            Committer { source: Arc::clone(&source), shared: Arc::clone(&shared), jobs };
        let (repeats, tally) = Repeats::of(&source, &shared).unzip();
        let work = async move {
            let tally = async {
                if let Some(tally) = tally {
                    tally.run().await;
                }
            };
            tokio::join!(committer.run(), tally);
        };
        (Self { source, shared, queue, paused: Arc::default(), repeats }, work)
    }

    /// Reads and routes one arrival, without the store.
    fn prepare(&self, message: Message) -> Result<Entry, SendError> {
        prepare(&self.source, &self.shared, message)
    }
}

#[async_trait]
impl Sender for Inbox {
    fn limits(&self) -> Limits {
        let message_bytes_max = self.source.body_bytes_max + HEADERS_BYTES_MAX;
        Limits { batch_max: GROUP_MAX, batch_bytes_max: usize::MAX, message_bytes_max }
    }

    fn wire_size(&self, message: &Message) -> usize {
        message.headers.size() + usize::try_from(message.body.size()).unwrap_or(usize::MAX)
    }

    async fn send(&self, batch: &[Message]) -> Vec<Verdict> {
        if self.paused.load(Ordering::Acquire) {
            return vec![Err(SendError::unreachable("paused by an operator")); batch.len()];
        }
        let failed = Arc::new(AtomicBool::new(false));
        let mut replies = Vec::with_capacity(batch.len());
        let prepared = self.prepare_all(batch).await;
        let known = self.known(&prepared).await;
        for (prepared, known) in prepared.into_iter().zip(known) {
            replies.push(match (prepared, known) {
                (_, Some(known)) => Err(known),
                (Ok(entry), None) => self.enqueue(entry, &failed).await.map_err(Err),
                (Err(refused @ SendError::Permanent { .. }), None) => Err(Err(refused)),
                (Err(later), None) => {
                    // Nothing behind it may overtake it.
                    failed.store(true, Ordering::Release);
                    Err(Err(later))
                }
            });
        }
        let mut verdicts = Vec::with_capacity(batch.len());
        for reply in replies {
            verdicts.push(match reply {
                Ok(verdict) => verdict.await.unwrap_or_else(|_| Err(stopping())),
                Err(verdict) => verdict,
            });
        }
        verdicts
    }
}

fn stopping() -> SendError {
    SendError::unreachable("the hub is stopping")
}

impl Inbox {
    /// While paused, every hand-over is told to come back later.
    pub(crate) fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Release);
    }

    /// Takes a message that was set aside before. What still cannot be read is refused, so that it
    /// is not set aside a second time.
    pub(crate) async fn take_again(&self, mut message: Message) -> Verdict {
        (message.arrival.redeliveries, message.arrival.one_way) = (0, false);
        let source = Source { on_invalid: OnInvalid::Refuse, ..(*self.source).clone() };
        let shared = Arc::clone(&self.shared);
        let entry = tokio::task::spawn_blocking(move || prepare(&source, &shared, message))
            .await
            .unwrap_or_else(|_| {
            Err(SendError::permanent(Reason::Panic, "a rule panicked on it"))
        })?;
        let verdict = self.enqueue(entry, &Arc::default()).await?;
        verdict.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// Verdicts that are known without the committer.
    async fn known(&self, prepared: &[Result<Entry, SendError>]) -> Vec<Option<Verdict>> {
        let Some(repeats) = &self.repeats else {
            return vec![None; prepared.len()];
        };
        let entries: Vec<_> = prepared.iter().map(|entry| entry.as_ref().ok()).collect();
        repeats.confirm(&entries).await
    }

    async fn enqueue(
        &self,
        entry: Entry,
        failed: &Arc<AtomicBool>,
    ) -> Result<oneshot::Receiver<Verdict>, SendError> {
        let (reply, verdict) = oneshot::channel();
        let job = Job { entry, failed: Arc::clone(failed), reply };
        self.queue.send(job).await.map_err(|_| stopping())?;
        Ok(verdict)
    }

    async fn prepare_all(&self, batch: &[Message]) -> Vec<Result<Entry, SendError>> {
        if self.source.reader.is_none() && !self.shared.router.has_rules() {
            return batch.iter().map(|message| self.prepare(message.clone())).collect();
        }
        // Rules may take their time: not on the threads that serve connections.
        let (inbox, batch) = (self.clone(), batch.to_vec());
        let count = batch.len();
        tokio::task::spawn_blocking(move || {
            batch.into_iter().map(|message| inbox.prepare(message)).collect()
        })
        .await
        .unwrap_or_else(|_| vec![Err(SendError::transient("reading was cut off")); count])
    }
}
