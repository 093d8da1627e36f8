//! The receiving half within the process.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use pabal_conformance::adapter::{Belief, Origin};
use pabal_core::{
    Body, Bytes, Headers, Message, ReceiveError, Receiver, SendError, Sender, Stop, Verdict,
};
use tokio::sync::watch;

use crate::Mistake;

#[derive(Debug, Clone)]
pub(super) struct Place(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    mistake: Mistake,
    messages: Mutex<Vec<(Message, Belief)>>,
    put: watch::Sender<usize>,
    /// Hand-overs so far.
    handed: AtomicUsize,
    /// How often a receiver was run.
    runs: AtomicUsize,
}

impl Place {
    pub(super) fn new(mistake: Mistake) -> Self {
        Self(Arc::new(Inner {
            mistake,
            messages: Mutex::default(),
            put: watch::Sender::default(),
            handed: AtomicUsize::default(),
            runs: AtomicUsize::default(),
        }))
    }
}

#[async_trait]
impl Origin for Place {
    async fn put(&self, messages: &[Message]) {
        // As if the origin pushed what nobody waits for any more.
        let pushed = self.0.is("what_comes_after_a_stop_stays_at_the_origin")
            && self.0.runs.load(Ordering::SeqCst) > 0;
        let belief = if pushed { Belief::Acknowledged } else { Belief::Waiting };
        let new = messages.iter().map(|message| (message.clone(), belief));
        self.0.messages.lock().unwrap().extend(new);
        self.0.put.send_modify(|puts| *puts += 1);
    }

    async fn receiver(&self) -> Arc<dyn Receiver> {
        Arc::new(self.clone())
    }

    async fn offer(&self) {}

    async fn believes(&self, message: &Message) -> Belief {
        let messages = self.0.messages.lock().unwrap();
        messages.iter().find(|(it, _)| it.origin.id == message.origin.id).unwrap().1
    }

    async fn kill(&self) {}
}

impl Inner {
    fn is(&self, case: &str) -> bool {
        self.mistake.is(case)
    }

    /// The first that waits.
    fn next(&self) -> Option<(usize, Message)> {
        let messages = self.messages.lock().unwrap();
        let mut waiting =
            messages.iter().enumerate().filter(|(_, (_, belief))| *belief == Belief::Waiting);
        let next = match self.is("a_key_is_handed_over_in_order") {
            true => waiting.next_back(),
            false => waiting.next(),
        };
        next.map(|(index, (message, _))| (index, message.clone()))
    }

    fn believe(&self, index: usize, belief: Belief) {
        self.messages.lock().unwrap()[index].1 = belief;
    }

    /// The message as it is handed over.
    fn read(&self, mut message: Message) -> Message {
        let handed = self.handed.fetch_add(1, Ordering::SeqCst);
        let body = message.body.inline().unwrap().clone();
        if self.is("every_byte_is_handed_over") {
            let text = String::from_utf8_lossy(&body).into_owned();
            message.body = Body::Inline(Bytes::from(text));
        }
        if self.is("every_header_is_handed_over") {
            message.headers = Headers::default();
        }
        if self.is("the_envelope_is_handed_over") {
            message.version = message.version.map(|version| version as f64 as i64);
        }
        if self.is("what_has_a_receipt_is_acknowledged") {
            message.origin.id = None;
        }
        if self.is("killed_before_the_acknowledgement_it_hands_over_the_same_again")
            || self.is("what_failed_is_offered_again")
        {
            message.origin.id = Some(format!("offer {handed}"));
        }
        message
    }

    async fn hand_over(&self, inbox: &dyn Sender, index: usize, message: Message) {
        let empty = self.is("an_empty_body_is_handed_over") && message.body.size() == 0;
        if empty || self.is("nothing_is_acknowledged_without_a_receipt") {
            self.believe(index, Belief::Acknowledged);
        }
        if empty {
            return;
        }
        let verdicts = inbox.send(&[self.read(message)]).await;
        let verdict = match verdicts.first() {
            Some(verdict) => verdict.clone(),
            None if self.is("silence_of_the_inbox_acknowledges_nothing") => {
                Verdict::Ok(<_>::default())
            }
            None => Err(SendError::transient("the inbox gave no verdict")),
        };
        match verdict {
            Ok(_) => self.believe(index, Belief::Acknowledged),
            Err(SendError::Permanent { .. }) if self.is("what_is_refused_is_not_offered_again") => {
            }
            Err(SendError::Permanent { .. }) => {
                self.believe(
                    index,
                    match self.is("the_origin_is_told_of_a_refusal") {
                        true => Belief::Acknowledged,
                        false => Belief::Refused,
                    },
                );
            }
            Err(_) => {}
        }
    }

    async fn serve(&self, inbox: &dyn Sender, stop: &Stop) {
        let mut puts = self.put.subscribe();
        while !stop.fired() {
            puts.mark_unchanged();
            let Some((index, message)) = self.next() else {
                tokio::select! {
                    () = stop.wait() => {}
                    _ = puts.changed() => {}
                }
                continue;
            };
            let hand_over = self.hand_over(inbox, index, message);
            if self.is("a_stop_finishes_what_is_in_hand") {
                tokio::select! {
                    () = stop.wait() => {}
                    () = hand_over => {}
                }
            } else {
                hand_over.await;
            }
            tokio::task::yield_now().await;
        }
    }
}

#[async_trait]
impl Receiver for Place {
    fn exclusive(&self) -> bool {
        true
    }

    async fn run(&self, inbox: Arc<dyn Sender>, stop: Stop) -> Result<(), ReceiveError> {
        let runs = self.0.runs.fetch_add(1, Ordering::SeqCst);
        if runs > 0 && self.0.is("after_a_stop_it_can_run_again") {
            return Ok(());
        }
        self.0.serve(&*inbox, &stop).await;
        if self.0.is("a_stop_with_nothing_in_hand_returns") {
            return Err(ReceiveError("there is nothing to do".to_owned()));
        }
        Ok(())
    }
}
