//! Group commit: one committer per source, in hand-over order; every caller gets its own verdict
//! after the commit.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pabal_core::{
    Accepted, Cause, Entry, MessageId, Reason, Receipt, SendError, StoreError, Verdict,
};
use tokio::sync::{mpsc, oneshot};

use super::Shared;
use crate::{Event, OnInvalid, Source};

/// Entries of one commit.
pub(super) const GROUP_MAX: usize = 500;
/// Inbox rows and outbox rows of one commit: fan-out counts.
const GROUP_ROWS_MAX: usize = 2_000;
/// Bodies of one commit, in bytes (a single larger one commits alone).
const GROUP_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// How often a commit with an unknown outcome is done again before the origin is told to come back.
const COMMIT_TRIES: u32 = 5;

/// One entry on its way to the committer.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) entry: Entry,
    /// Of the whole hand-over: set once one of its entries could not be stored, so that nothing
    /// behind it overtakes it.
    pub(super) failed: Arc<AtomicBool>,
    pub(super) reply: oneshot::Sender<Verdict>,
}

pub(super) struct Committer {
    pub(super) source: Arc<Source>,
    pub(super) shared: Arc<Shared>,
    pub(super) jobs: mpsc::Receiver<Job>,
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
    pub(super) async fn run(mut self) {
        let mut backlog: VecDeque<Job> = VecDeque::new();
        let mut fresh = Vec::with_capacity(GROUP_MAX);
        loop {
            if backlog.is_empty() {
                // What gathered while the last group was committed is the next group.
                let count = tokio::select! {
                    biased;
                    () = self.shared.closing.wait(), if !self.jobs.is_closed() => {
                        self.jobs.close();
                        continue;
                    }
                    count = self.jobs.recv_many(&mut fresh, GROUP_MAX) => count,
                };
                if count == 0 {
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
                    let taken = self.source.hot_cache.as_ref().map(|_| taken(&entries, &answers));
                    for (waiting, accepted) in piece.into_iter().zip(answers) {
                        self.conclude(waiting, &accepted);
                    }
                    self.shared.committed.notify_one();
                    if let (Some(cache), Some(taken)) = (&self.source.hot_cache, taken) {
                        cache.note(&taken).await;
                    }
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
                    ..Receipt::default()
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
                let one_way = new.message.arrival.one_way;
                let keeps = self.source.on_invalid == OnInvalid::Keep || one_way;
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

/// What the store holds now.
fn taken(entries: &[Entry], answers: &[Accepted]) -> Vec<MessageId> {
    let all = entries.iter().zip(answers);
    all.filter_map(|(entry, accepted)| match (entry, accepted) {
        (Entry::Message(new), Accepted::Stored | Accepted::Duplicate) => Some(new.message.id),
        _ => None,
    })
    .collect()
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
