//! The inbox that a receiver under test hands its messages to.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use pabal_core::{Bytes, Limits, Message, Receipt, SendError, Sender, Verdict};
use tokio::sync::watch;

use super::bench::body;

/// What the inbox says to one hand-over of one message.
#[derive(Debug, Clone)]
pub(crate) enum Say {
    /// This.
    Verdict(Verdict),
    /// Nothing: no verdict for the whole call, which is against the rules.
    Nothing,
}

/// Answers with receipts, unless it is told otherwise or closed. Messages are told apart by their
/// bodies, because a receiver may give them another origin id than the case did.
#[derive(Debug)]
pub(crate) struct Inbox {
    handed: Mutex<Vec<Message>>,
    taken: Mutex<Vec<Message>>,
    script: Mutex<HashMap<Bytes, VecDeque<Say>>>,
    open: watch::Sender<bool>,
}

/// The limit of what is handed over at once.
const BATCH_MAX: usize = 8;

impl Inbox {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            handed: Mutex::default(),
            taken: Mutex::default(),
            script: Mutex::default(),
            open: watch::Sender::new(true),
        })
    }

    /// One that answers nobody until it is opened.
    pub(crate) fn closed() -> Arc<Self> {
        let inbox = Self::new();
        inbox.open.send_replace(false);
        inbox
    }

    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }

    /// Says this to the next hand-over of a message, before receipts.
    pub(crate) fn says(&self, message: &Message, say: Say) {
        self.script.lock().unwrap().entry(body(message)).or_default().push_back(say);
    }

    /// Fails the next hand-over of a message.
    pub(crate) fn fails(&self, message: &Message, error: SendError) {
        self.says(message, Say::Verdict(Err(error)));
    }

    /// All hand-overs of a message.
    pub(crate) fn handed(&self, message: &Message) -> Vec<Message> {
        let body = body(message);
        let handed = self.handed.lock().unwrap();
        handed.iter().filter(|it| it.body.inline() == Some(&body)).cloned().collect()
    }

    /// What got a receipt, in that order.
    pub(crate) fn taken(&self) -> Vec<Message> {
        self.taken.lock().unwrap().clone()
    }

    fn answer(&self, batch: &[Message]) -> Option<Vec<Verdict>> {
        let (mut script, mut taken) = (self.script.lock().unwrap(), self.taken.lock().unwrap());
        let mut failed = HashSet::new();
        let mut verdicts = Vec::new();
        for message in batch {
            let verdict = if message.key.is_some() && failed.contains(&message.key) {
                Err(SendError::NotSent)
            } else {
                let say = script.get_mut(&body(message)).and_then(VecDeque::pop_front);
                match say.unwrap_or_else(|| Say::Verdict(Ok(Receipt::default()))) {
                    Say::Verdict(verdict) => verdict,
                    Say::Nothing => return None,
                }
            };
            match &verdict {
                Ok(_) => taken.push(message.clone()),
                Err(_) => drop(failed.insert(message.key.clone())),
            }
            verdicts.push(verdict);
        }
        Some(verdicts)
    }
}

#[async_trait]
impl Sender for Inbox {
    fn limits(&self) -> Limits {
        Limits { batch_max: BATCH_MAX, ..Limits::one_by_one(usize::MAX) }
    }

    fn wire_size(&self, message: &Message) -> usize {
        usize::try_from(message.body.size()).unwrap_or(usize::MAX)
    }

    async fn send(&self, batch: &[Message]) -> Vec<Verdict> {
        self.handed.lock().unwrap().extend_from_slice(batch);
        // The sender of the gate lives as long as `self`, so waiting cannot fail.
        let _ = self.open.subscribe().wait_for(|open| *open).await;
        if batch.len() > BATCH_MAX {
            // No message of a call over the limit is ever taken, and so the case fails.
            return batch.iter().map(|_| Err(SendError::transient("over the limit"))).collect();
        }
        self.answer(batch).unwrap_or_default()
    }
}
