//! A hub's inbox that keeps what it takes, knows repeats, and says what it is told to.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use pabal_core::{Bytes, Limits, Message, Receipt, SendError, Sender, Verdict};
use serde_json::Value;
use tokio::sync::watch;

use crate::support::within;

/// What the hub says to a message, by its body.
pub(crate) type Say = Box<dyn Fn(&Message) -> Option<SendError> + Send + Sync>;

/// The hub's inbox: it keeps what it takes, knows repeats, and says what it is told to.
pub(crate) struct Hub {
    taken: Mutex<Vec<Message>>,
    known: Mutex<HashMap<(String, String), Bytes>>,
    say: Mutex<Say>,
    open: watch::Sender<bool>,
    /// Grows with every call, at its beginning.
    calls: watch::Sender<usize>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hub")
    }
}

impl Hub {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            taken: Mutex::default(),
            known: Mutex::default(),
            say: Mutex::new(Box::new(|_| None)),
            open: watch::Sender::new(true),
            calls: watch::Sender::new(0),
        })
    }

    /// From now on it says this.
    pub(crate) fn says(&self, say: impl Fn(&Message) -> Option<SendError> + Send + Sync + 'static) {
        *self.say.lock().unwrap() = Box::new(say);
    }

    /// Keeps callers waiting, or no longer.
    pub(crate) fn open(&self, open: bool) {
        self.open.send_replace(open);
    }

    /// Returns once it was called so often.
    pub(crate) async fn called(&self, times: usize) {
        let mut calls = self.calls.subscribe();
        within("a call of the hub", calls.wait_for(|calls| *calls >= times)).await.unwrap();
    }

    /// The ids of what it has, in that order; repeats are not among them.
    pub(crate) fn ids(&self) -> Vec<String> {
        let taken = self.taken.lock().unwrap();
        taken.iter().map(|it| it.origin.id.clone().unwrap()).collect()
    }

    /// The words inside the bodies, in that order.
    pub(crate) fn words(&self) -> Vec<String> {
        self.taken().iter().map(word).collect()
    }

    pub(crate) fn taken(&self) -> Vec<Message> {
        self.taken.lock().unwrap().clone()
    }

    pub(crate) fn calls(&self) -> usize {
        *self.calls.borrow()
    }
}

/// What [`Application::insert`] wrote.
pub(crate) fn word(message: &Message) -> String {
    let body: Value = serde_json::from_slice(message.body.inline().unwrap()).unwrap();
    body["id"].as_str().unwrap().to_owned()
}

#[async_trait]
impl Sender for Hub {
    fn limits(&self) -> Limits {
        Limits { batch_max: 500, batch_bytes_max: usize::MAX, message_bytes_max: usize::MAX }
    }

    fn wire_size(&self, message: &Message) -> usize {
        usize::try_from(message.body.size()).unwrap()
    }

    async fn send(&self, batch: &[Message]) -> Vec<Verdict> {
        self.calls.send_modify(|calls| *calls += 1);
        let _ = self.open.subscribe().wait_for(|open| *open).await;
        let (say, mut known) = (self.say.lock().unwrap(), self.known.lock().unwrap());
        let mut failed = false;
        let verdict = |message: &Message| {
            if failed {
                return Err(SendError::NotSent);
            }
            if let Some(error) = say(message) {
                // As the hub does: what can wait stops the rest, what is refused does not.
                failed = !matches!(error, SendError::Permanent { .. });
                return Err(error);
            }
            let body = message.body.inline().unwrap().clone();
            let id = message.origin.id.clone().expect("an id");
            match known.insert((message.origin.source.clone(), id), body.clone()) {
                None => self.taken.lock().unwrap().push(message.clone()),
                Some(before) if before == body => {
                    return Ok(Receipt { duplicate: true, ..Receipt::default() });
                }
                Some(_) => {
                    return Err(SendError::permanent(
                        pabal_core::Reason::Conflict,
                        "another content under the same id",
                    ));
                }
            }
            Ok(Receipt::default())
        };
        batch.iter().map(verdict).collect()
    }
}
