//! A hub's inbox that can be looked into.

use std::{collections::HashSet, sync::Mutex};

use async_trait::async_trait;
use pabal_core::{Body, Bytes, Limits, Message, Reason, Receipt, SendError, Sender, Verdict};
use tokio::sync::watch;

use crate::support::{BODY_MAX, within};

/// What the hub makes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    /// It takes all.
    Takes,
    /// It takes nothing for now.
    Busy,
    /// It takes all, and no call ever returns.
    TakesInSilence,
}

#[derive(Debug, Default)]
struct Taken {
    messages: Vec<Message>,
    ids: HashSet<String>,
    duplicates: usize,
    calls: usize,
    largest_batch: usize,
}

/// A hub's inbox: what it has taken it keeps, and a repeat is a duplicate.
#[derive(Debug)]
pub(crate) struct Hub {
    taken: Mutex<Taken>,
    changed: watch::Sender<usize>,
    pub(crate) mood: watch::Sender<Mood>,
    forgets_bodies: bool,
    refuses: HashSet<String>,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            taken: Mutex::default(),
            changed: watch::Sender::new(0),
            mood: watch::Sender::new(Mood::Takes),
            forgets_bodies: false,
            refuses: HashSet::new(),
        }
    }
}

impl Hub {
    /// One that drops bodies, so that what it took takes no memory.
    pub(crate) fn without_bodies() -> Self {
        Self { forgets_bodies: true, ..Self::default() }
    }

    /// One that refuses the message with this id.
    pub(crate) fn refusing(id: &str) -> Self {
        Self { refuses: [id.to_owned()].into(), ..Self::default() }
    }

    /// Waits until it has taken so many messages, repeats not counted.
    pub(crate) async fn has(&self, count: usize) {
        let mut changed = self.changed.subscribe();
        let waiting = async {
            while self.ids().len() < count {
                changed.changed().await.unwrap();
            }
        };
        within(&format!("the hub has {count} messages"), waiting).await;
    }

    /// Waits until it has been asked more often than so.
    pub(crate) async fn called(&self, more_than: usize) {
        let mut changed = self.changed.subscribe();
        let waiting = async {
            while self.taken.lock().unwrap().calls <= more_than {
                changed.changed().await.unwrap();
            }
        };
        within("the hub is called", waiting).await;
    }

    pub(crate) fn calls(&self) -> usize {
        self.taken.lock().unwrap().calls
    }

    pub(crate) fn duplicates(&self) -> usize {
        self.taken.lock().unwrap().duplicates
    }

    pub(crate) fn largest_batch(&self) -> usize {
        self.taken.lock().unwrap().largest_batch
    }

    /// The origin ids in the order in which they were first taken.
    pub(crate) fn ids(&self) -> Vec<String> {
        let taken = self.taken.lock().unwrap();
        taken.messages.iter().map(|message| message.origin.id.clone().unwrap()).collect()
    }

    pub(crate) fn messages(&self) -> Vec<Message> {
        self.taken.lock().unwrap().messages.clone()
    }

    pub(crate) fn body(&self, id: &str) -> Bytes {
        let messages = self.messages();
        let message = messages.iter().find(|message| message.origin.id.as_deref() == Some(id));
        message.unwrap().body.inline().unwrap().clone()
    }
}

#[async_trait]
impl Sender for Hub {
    fn limits(&self) -> Limits {
        Limits { batch_max: 500, batch_bytes_max: usize::MAX, message_bytes_max: BODY_MAX * 2 }
    }

    fn wire_size(&self, message: &Message) -> usize {
        message.body.size() as usize
    }

    async fn send(&self, batch: &[Message]) -> Vec<Verdict> {
        let mood = *self.mood.borrow();
        let mut verdicts = Vec::new();
        {
            let mut taken = self.taken.lock().unwrap();
            taken.calls += 1;
            taken.largest_batch = taken.largest_batch.max(batch.len());
            for message in batch {
                let id = message.origin.id.clone().unwrap_or_default();
                verdicts.push(if mood == Mood::Busy {
                    Err(SendError::unreachable("the hub is busy"))
                } else if self.refuses.contains(&id) {
                    Err(SendError::permanent(Reason::Invalid, "not wanted"))
                } else {
                    let duplicate = !taken.ids.insert(id);
                    if duplicate {
                        taken.duplicates += 1;
                    } else {
                        let mut message = message.clone();
                        if self.forgets_bodies {
                            message.body = Body::Inline(Bytes::new());
                        }
                        taken.messages.push(message);
                    }
                    Ok(Receipt { duplicate, ..Receipt::default() })
                });
            }
        }
        self.changed.send_modify(|changes| *changes += 1);
        if mood == Mood::TakesInSilence {
            std::future::pending::<()>().await;
        }
        verdicts
    }
}
