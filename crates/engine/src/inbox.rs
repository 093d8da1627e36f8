//! The way in: a [`Sender`] per source that checks, reads, routes and commits in groups.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use pabal_core::{
    Accepted, Body, Cause, Clock, DeadReason, Entry, Fingerprint, HEADERS_BYTES_MAX, Limits,
    Message, MessageId, NewMessage, REDELIVERIES_MAX, Reason, Receipt, SendError, Sender, SetAside,
    Store, StoreError, Verdict,
};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::{Event, MissingId, Observer, OnInvalid, Source, edge, router::Router};

/// Entries of one commit.
const GROUP_MAX: usize = 500;
/// Inbox rows and outbox rows of one commit: fan-out counts.
const GROUP_ROWS_MAX: usize = 2_000;
/// Bodies of one commit, in bytes (a single larger one commits alone).
const GROUP_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Entries that wait for the committer; more wait at their origin.
const QUEUE_MAX: usize = 1_024;
/// How often a commit with an unknown outcome is done again before the origin is told to come back.
const COMMIT_TRIES: u32 = 5;

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
}

/// The inbox of one source.
#[derive(Debug, Clone)]
pub(crate) struct Inbox {
    source: Arc<Source>,
    shared: Arc<Shared>,
    queue: mpsc::Sender<Job>,
    paused: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Job {
    entry: Entry,
    /// Of the whole hand-over: set once one of its entries could not be stored, so that nothing
    /// behind it overtakes it.
    failed: Arc<AtomicBool>,
    reply: oneshot::Sender<Verdict>,
}

impl Inbox {
    /// Makes the inbox and its committer, which ends when the last clone of the inbox is gone.
    pub(crate) fn start(
        source: Arc<Source>,
        shared: Arc<Shared>,
    ) -> (Self, tokio::task::JoinHandle<()>) {
        let (queue, jobs) = mpsc::channel(QUEUE_MAX);
        let committer =
            Committer { source: Arc::clone(&source), shared: Arc::clone(&shared), jobs };
        (Self { source, shared, queue, paused: Arc::default() }, tokio::spawn(committer.run()))
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
        for prepared in self.prepare_all(batch).await {
            replies.push(match prepared {
                Ok(entry) => self.enqueue(entry, &failed).await,
                Err(refused) => Err(refused),
            });
        }
        let mut verdicts = Vec::with_capacity(batch.len());
        for reply in replies {
            verdicts.push(match reply {
                Ok(verdict) => verdict.await.unwrap_or_else(|_| Err(stopping())),
                Err(refused) => Err(refused),
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
        message.arrival.redeliveries = 0;
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
        .unwrap_or_else(|panic| {
            tracing::error!(source = %self.source.name, %panic, "a rule panicked");
            let refusal = || Err(SendError::permanent(Reason::Panic, "a rule panicked on it"));
            std::iter::repeat_with(refusal).take(count).collect()
        })
    }
}

/// Checks, reads, identifies and routes one arrival.
///
/// # Errors
/// `Permanent`, if the origin is to be told no.
pub(crate) fn prepare(
    source: &Source,
    shared: &Shared,
    mut message: Message,
) -> Result<Entry, SendError> {
    let fingerprint = fingerprint(&message);
    message.source = source.name.clone();
    let set_aside = |message: Message, reason: DeadReason, cause: Cause| {
        Entry::SetAside(SetAside { message, fingerprint, reason, cause })
    };
    if message.arrival.redeliveries >= REDELIVERIES_MAX {
        let cause = Cause::with(
            "redelivered too often to be read",
            format!("the origin counts {} redeliveries", message.arrival.redeliveries),
        );
        return Ok(set_aside(storable(message), DeadReason::Unread, cause));
    }
    let received = message.clone();
    match read(source, shared, message, fingerprint) {
        Ok(entry) => Ok(entry),
        Err(Refusal { reason, error }) => match (source.on_invalid, error.cause()) {
            (OnInvalid::Keep, Some(cause)) => {
                Ok(set_aside(storable(received), reason, cause.clone()))
            }
            _ => {
                if let SendError::Permanent { reason, .. } = &error {
                    let event = Event::Refused { source: &source.name, reason: *reason };
                    shared.observer.observe(event);
                }
                Err(error)
            }
        },
    }
}

struct Refusal {
    reason: DeadReason,
    error: SendError,
}

impl From<SendError> for Refusal {
    fn from(error: SendError) -> Self {
        let reason = match &error {
            SendError::Permanent { reason, .. } => (*reason).into(),
            _ => DeadReason::Unreadable,
        };
        Self { reason, error }
    }
}

fn read(
    source: &Source,
    shared: &Shared,
    mut message: Message,
    fingerprint: Fingerprint,
) -> Result<Entry, Refusal> {
    if let Some(reader) = &source.reader {
        reader.read(&mut message)?;
    }
    edge::check(&message, source.body_bytes_max)?;
    if edge::runs_in_a_circle(&message) {
        let cause = format!("it came through {} hubs: it runs in a circle", message.arrival.hops);
        let error = edge::refusal(Reason::Refused, cause);
        return Err(Refusal { reason: DeadReason::TooManyHops, error });
    }
    let address = edge::address(&message, source.may_address)?;
    let origin_id = match (&message.origin.id, source.missing_id) {
        (Some(id), _) if !id.is_empty() => id.clone(),
        (_, MissingId::Content) => fingerprint.to_string(),
        (_, MissingId::Random) => uuid::Uuid::new_v4().to_string(),
        (_, MissingId::Refuse) => {
            return Err(edge::refusal(
                Reason::Invalid,
                "the message has no id, so a repeat could not be told from a new one: send \
                 `ce-id` or `Idempotency-Key`, or set `identify` on the source",
            )
            .into());
        }
    };
    message.id = MessageId::of(&shared.hub, &source.name, &message.origin.source, &origin_id);
    message.origin.id = Some(origin_id);
    let routed = shared.router.route(&message, address)?;
    Ok(Entry::Message(NewMessage {
        message,
        fingerprint,
        destinations: routed.destinations,
        faults: routed.faults,
        repeats: 0,
    }))
}

fn fingerprint(message: &Message) -> Fingerprint {
    match &message.body {
        Body::Inline(bytes) => Fingerprint::of(bytes),
        Body::Stored(reference) => Fingerprint(reference.sha256),
    }
}

/// What could not be read is kept, so its texts must fit the store: what does not is cut.
fn storable(mut message: Message) -> Message {
    let texts = [
        Some(&mut message.message_type),
        Some(&mut message.origin.source),
        message.origin.id.as_mut(),
        message.key.as_mut(),
        message.schema.as_mut(),
        message.content_type.as_mut(),
        message.time.as_mut(),
        message.subject.as_mut(),
        message.correlation.as_mut(),
        message.causation.as_mut(),
        message.trace.as_mut(),
        message.destination.as_mut(),
    ];
    for text in texts.into_iter().flatten() {
        if text.len() > pabal_core::ID_BYTES_MAX || text.contains('\0') {
            *text = pabal_core::shorten(&text.replace('\0', "\u{fffd}"), pabal_core::ID_BYTES_MAX)
                .into_owned();
        }
    }
    if message.headers.size() > HEADERS_BYTES_MAX
        || message.headers.iter().any(|(name, value)| name.contains('\0') || value.contains('\0'))
    {
        message.headers = pabal_core::Headers::default();
    }
    message
}

struct Committer {
    source: Arc<Source>,
    shared: Arc<Shared>,
    jobs: mpsc::Receiver<Job>,
}

/// One entry of a group with all who wait for its verdict.
struct Waiting {
    entry: Entry,
    first: Waiter,
    repeats: Vec<Waiter>,
}

struct Waiter {
    failed: Arc<AtomicBool>,
    reply: oneshot::Sender<Verdict>,
}

impl Committer {
    async fn run(mut self) {
        let mut backlog: VecDeque<Job> = VecDeque::new();
        let mut fresh = Vec::with_capacity(GROUP_MAX);
        loop {
            if backlog.is_empty() {
                // What gathered while the last group was committed is the next group.
                if self.jobs.recv_many(&mut fresh, GROUP_MAX).await == 0 {
                    return;
                }
                backlog.extend(fresh.drain(..));
            }
            let group = form_group(&mut backlog);
            self.commit(group).await;
        }
    }

    /// Commits a group; one that fails is split, down to the entry that cannot be stored.
    async fn commit(&self, group: Vec<Waiting>) {
        let mut pieces = vec![group];
        while let Some(mut piece) = pieces.pop() {
            // Of a hand-over in which something failed, nothing goes on.
            let (blocked, rest): (Vec<_>, Vec<_>) =
                piece.into_iter().partition(|w| w.first.failed.load(Ordering::Acquire));
            blocked.into_iter().for_each(|waiting| waiting.answer(&Err(SendError::NotSent)));
            piece = rest;
            if piece.is_empty() {
                continue;
            }
            let entries: Vec<Entry> = piece.iter().map(|waiting| waiting.entry.clone()).collect();
            match self.accept(&entries).await {
                Ok(answers) if answers.len() == piece.len() => {
                    for (waiting, accepted) in piece.into_iter().zip(answers) {
                        self.conclude(waiting, &accepted);
                    }
                    self.shared.committed.notify_one();
                }
                Ok(_) => fail(piece, "the store gave the wrong number of answers"),
                Err(StoreError::Rejected(_)) if piece.len() > 1 => {
                    let tail = piece.split_off(piece.len() / 2);
                    pieces.push(tail);
                    pieces.push(piece);
                }
                Err(StoreError::Rejected(cause)) => {
                    tracing::error!(source = %self.source.name, cause, "a message cannot be stored");
                    for waiting in piece {
                        let cause = Cause::with("it cannot be stored", &cause);
                        waiting.answer(&Err(SendError::permanent(Reason::Refused, cause)));
                    }
                }
                Err(error) => {
                    tracing::error!(source = %self.source.name, %error, "a group was not stored");
                    fail(piece, "the store cannot at the moment");
                }
            }
        }
    }

    async fn accept(&self, entries: &[Entry]) -> Result<Vec<Accepted>, StoreError> {
        let mut tries = 1;
        loop {
            match self.shared.store.accept(entries).await {
                // The ids are the same, so doing it again finds out.
                Err(StoreError::Unknown(cause)) if tries < COMMIT_TRIES => {
                    tracing::warn!(source = %self.source.name, cause, "a commit is tried again");
                    self.shared.clock.sleep(Duration::from_millis(50 << tries)).await;
                    tries += 1;
                }
                result => return result,
            }
        }
    }

    fn conclude(&self, waiting: Waiting, accepted: &Accepted) {
        let source = &self.source.name;
        let observe = |event: Event<'_>| self.shared.observer.observe(event);
        let Waiting { entry, first, repeats } = waiting;
        let (verdict, again) = match (&entry, accepted) {
            (Entry::Message(new), Accepted::Stored | Accepted::Duplicate | Accepted::SetAside) => {
                let message = new.message.id;
                let duplicate = *accepted == Accepted::Duplicate;
                if duplicate {
                    observe(Event::Duplicate { source, message });
                } else {
                    let destinations = new.destinations.len() + new.faults.len();
                    observe(Event::Accepted { source, message, destinations });
                }
                for _ in &repeats {
                    observe(Event::Duplicate { source, message });
                }
                let receipt = |duplicate| Receipt {
                    remote_id: Some(message.to_string()),
                    duplicate,
                    answer: None,
                };
                (Ok(receipt(duplicate)), Ok(receipt(true)))
            }
            (Entry::Message(new), Accepted::Conflict { held }) => {
                observe(Event::Conflict { source, message: new.message.id });
                let cause = Cause::with(
                    "another content under the same id",
                    format!("held: sha256 {held}, came: sha256 {}", new.fingerprint),
                );
                let error = Err(SendError::permanent(Reason::Conflict, cause));
                let keeps = self.source.on_invalid == OnInvalid::Keep;
                let verdict = if keeps { Ok(Receipt::default()) } else { error };
                (verdict.clone(), verdict)
            }
            (Entry::SetAside(aside), _) => {
                observe(Event::SetAside { source, reason: aside.reason });
                (Ok(Receipt::default()), Ok(Receipt::default()))
            }
        };
        // Nobody may wait any more: the message is stored all the same.
        let _ = first.reply.send(verdict);
        for repeat in repeats {
            let _ = repeat.reply.send(again.clone());
        }
    }
}

impl Waiting {
    fn answer(self, verdict: &Verdict) {
        for job in std::iter::once(self.first).chain(self.repeats) {
            let _ = job.reply.send(verdict.clone());
        }
    }
}

fn fail(piece: Vec<Waiting>, cause: &'static str) {
    for waiting in &piece {
        for job in std::iter::once(&waiting.first).chain(&waiting.repeats) {
            job.failed.store(true, Ordering::Release);
        }
    }
    piece.into_iter().for_each(|waiting| waiting.answer(&Err(SendError::transient(cause))));
}

/// Takes the next group off the backlog, in order. Repeats within it are folded into one entry; a
/// known id with other content starts the next group, so that the store sees the first one first.
fn form_group(backlog: &mut VecDeque<Job>) -> Vec<Waiting> {
    let mut group: Vec<Waiting> = Vec::new();
    let mut places: HashMap<MessageId, usize> = HashMap::new();
    let (mut rows, mut bytes) = (0, 0);
    while let Some(job) = backlog.pop_front() {
        let place = match &job.entry {
            Entry::Message(new) => places.get(&new.message.id).copied(),
            Entry::SetAside(_) => None,
        };
        if let (Some(place), Entry::Message(new)) = (place, &job.entry) {
            let waiting = &mut group[place];
            if let Entry::Message(first) = &mut waiting.entry
                && first.fingerprint == new.fingerprint
            {
                first.repeats += 1;
                waiting.repeats.push(Waiter { failed: job.failed, reply: job.reply });
                continue;
            }
            backlog.push_front(job);
            break;
        }
        let (job_rows, job_bytes) = match &job.entry {
            Entry::Message(new) => {
                (1 + new.destinations.len() + new.faults.len(), new.message.body.size())
            }
            Entry::SetAside(aside) => (1, aside.message.body.size()),
        };
        let full = group.len() >= GROUP_MAX
            || rows + job_rows > GROUP_ROWS_MAX
            || bytes + job_bytes > GROUP_BYTES_MAX;
        if full && !group.is_empty() {
            backlog.push_front(job);
            break;
        }
        if let Entry::Message(new) = &job.entry {
            places.insert(new.message.id, group.len());
        }
        rows += job_rows;
        bytes += job_bytes;
        let first = Waiter { failed: job.failed, reply: job.reply };
        group.push(Waiting { entry: job.entry, first, repeats: Vec::new() });
    }
    group
}
