//! What the cases share: making messages, handing them over, settling them.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use pabal_core::*;

use super::Subject;

/// A fresh store and short ways to use it. Everything here expects to succeed.
#[derive(Debug)]
pub struct Bench {
    subject: Box<dyn Subject>,
    /// This node's life; it holds the lanes of whatever destination a case hands something over to.
    pub(crate) epoch: Epoch,
    held: Mutex<HashSet<EndpointName>>,
}

impl Bench {
    pub(crate) async fn new(subject: Box<dyn Subject>) -> Self {
        let epoch = subject.store().join("bench", &plan("bench")).await.unwrap();
        Self { subject, epoch, held: Mutex::default() }
    }

    /// Takes the one lane of each of these destinations that is not held yet.
    async fn hold(&self, destinations: &[EndpointName]) {
        for destination in destinations {
            if self.held.lock().unwrap().insert(destination.clone()) {
                let lane = self.lay_out(destination.as_str(), 1).await.remove(0);
                self.store().take_lane(&lane, None, self.epoch).await.unwrap();
            }
        }
    }

    /// Lays a destination out over so many lanes; the lanes of that layout.
    pub(crate) async fn lay_out(&self, destination: &str, lanes: u16) -> Vec<Lane> {
        let endpoint = name(destination);
        let layout = self.store().lay_out(&endpoint, lanes, Order::Key).await.unwrap();
        let lane = |index| Lane { endpoint: endpoint.clone(), layout: layout.number, index };
        (0..layout.lanes).map(lane).collect()
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        self.subject.store()
    }

    pub(crate) async fn another(&self) -> Arc<dyn Store> {
        self.subject.another().await
    }

    pub(crate) async fn pass(&self, seconds: u64) {
        self.subject.pass(Duration::from_secs(seconds)).await;
    }

    pub(crate) async fn reopen(&mut self) {
        self.subject.reopen().await;
    }

    /// Hands over one message.
    pub(crate) async fn accept(&self, new: &NewMessage) -> Accepted {
        self.hold(&new.destinations).await;
        let group = [Entry::Message(new.clone())];
        self.store().accept(&group).await.unwrap().remove(0)
    }

    /// Hands over a group of new messages.
    pub(crate) async fn accept_all(&self, new: &[NewMessage]) {
        for new in new {
            self.hold(&new.destinations).await;
        }
        let group: Vec<_> = new.iter().cloned().map(Entry::Message).collect();
        let answers = self.store().accept(&group).await.unwrap();
        assert_eq!(answers, vec![Accepted::Stored; new.len()]);
    }

    /// Sets one arrival aside.
    pub(crate) async fn set_aside(&self, new: &NewMessage, reason: DeadReason) {
        let group = [Entry::SetAside(SetAside {
            message: new.message.clone(),
            fingerprint: new.fingerprint,
            reason,
            cause: Cause::with("cannot be read", "line 1"),
        })];
        let answers = self.store().accept(&group).await.unwrap();
        assert_eq!(answers, [Accepted::SetAside]);
    }

    /// All deliveries that wait.
    pub(crate) async fn waiting(&self) -> Vec<Delivery> {
        let tail = Which::Tail { after: 0 };
        self.store().deliveries(tail, 10_000).await.unwrap()
    }

    /// The numbers of all deliveries that wait.
    pub(crate) async fn numbers(&self) -> Vec<Number> {
        self.waiting().await.iter().map(|it| it.number).collect()
    }

    /// Takes one message and returns its only delivery.
    pub(crate) async fn deliver(&self, new: &NewMessage) -> Delivery {
        assert_eq!(self.accept(new).await, Accepted::Stored);
        let mut waiting = self.waiting().await;
        waiting.retain(|delivery| delivery.message == new.message.id);
        assert_eq!(waiting.len(), 1, "deliveries of {new:?}");
        waiting.remove(0)
    }

    /// Takes one message whose lanes the case hands out itself, and returns its only delivery.
    pub(crate) async fn deliver_to_others(&self, new: &NewMessage) -> Delivery {
        self.held.lock().unwrap().extend(new.destinations.iter().cloned());
        self.deliver(new).await
    }

    /// Settles one delivery.
    pub(crate) async fn settle(&self, delivery: &Delivery, fate: Fate) -> Settled {
        let group = [settlement(delivery, fate)];
        let answers = self.store().settle(self.epoch, &group).await.unwrap();
        assert_eq!(answers.len(), 1);
        answers[0]
    }

    /// Takes one message and lets its only delivery die; its dead letter's own number.
    pub(crate) async fn bury(&self, new: &NewMessage, holds: Holds) -> (Delivery, i64) {
        let delivery = self.deliver(new).await;
        assert_eq!(self.settle(&delivery, dead(holds)).await, Settled::Done);
        let query =
            DeadLetterQuery { message: Some(delivery.message), ..DeadLetterQuery::default() };
        let letters = self.store().dead_letters(&query).await.unwrap();
        assert_eq!(letters.len(), 1);
        (delivery, letters[0].id)
    }

    pub(crate) async fn dead_letters(&self) -> Vec<DeadLetter> {
        let all = DeadLetterQuery::default();
        self.store().dead_letters(&all).await.unwrap()
    }

    pub(crate) async fn story(&self, id: MessageId) -> MessageStory {
        self.store().message(id).await.unwrap().unwrap()
    }

    /// One word per destination of a message.
    pub(crate) async fn states(&self, id: MessageId) -> HashMap<String, DeliveryState> {
        let deliveries = self.story(id).await.summary.deliveries;
        deliveries
            .into_iter()
            .map(|delivery| (delivery.destination.to_string(), delivery.state))
            .collect()
    }

    /// What was asked of lane holders after `after`.
    pub(crate) async fn requests(&self, after: i64) -> Vec<Request> {
        let requests = self.store().requests(after).await.unwrap();
        requests.into_iter().map(|(_, request)| request).collect()
    }
}

pub(crate) const HUB: &str = "conformance";

pub(crate) fn name(text: &str) -> EndpointName {
    text.parse().unwrap()
}

/// A key whose slot is in this lane of so many.
pub(crate) fn key_of_lane(index: u16, lanes: u16) -> String {
    let fits = |key: &String| u16::from(slot(key)) % lanes == index;
    (0..).map(|number| format!("key {number}")).find(fits).unwrap()
}

/// The plan of a node that runs nothing.
pub(crate) fn plan(hash: &str) -> NodePlan {
    NodePlan { hash: hash.to_owned(), endpoints: vec![name("q/out")] }
}

/// A message from `source` with the origin id `id`, to no one yet.
pub(crate) fn arrival(source: &str, id: &str) -> NewMessage {
    let mut message = Message::new(name(source), "thing.happened", format!("body of {id}"));
    message.origin.id = Some(id.to_owned());
    identified(message)
}

/// Assigns the id and the fingerprint, as the inbox does.
pub(crate) fn identified(mut message: Message) -> NewMessage {
    let origin_id = message.origin.id.clone().unwrap();
    message.id = MessageId::of(HUB, &message.source, &message.origin.source, &origin_id);
    let fingerprint = Fingerprint::of(message.body.inline().map_or(&[], |bytes| bytes));
    NewMessage { message, fingerprint, destinations: Vec::new(), faults: Vec::new(), repeats: 0 }
}

pub(crate) trait NewMessageExt {
    /// To these destinations.
    fn to(self, destinations: &[&str]) -> NewMessage;
    /// With this key.
    fn key(self, key: &str) -> NewMessage;
    /// With another body.
    fn body(self, body: impl Into<Bytes>) -> NewMessage;
}

impl NewMessageExt for NewMessage {
    fn to(mut self, destinations: &[&str]) -> NewMessage {
        self.destinations = destinations.iter().map(|it| name(it)).collect();
        self
    }

    fn key(mut self, key: &str) -> NewMessage {
        self.message.key = Some(key.to_owned());
        self
    }

    fn body(mut self, body: impl Into<Bytes>) -> NewMessage {
        let body = body.into();
        self.fingerprint = Fingerprint::of(&body);
        self.message.body = Body::Inline(body);
        self
    }
}

/// What an attempt with this fate would settle.
pub(crate) fn settlement(delivery: &Delivery, fate: Fate) -> Settlement {
    let (outcome, cause) = match &fate {
        Fate::Delivered => ("delivered", None),
        Fate::Retry { .. } => ("transient", Some(Cause::with("HTTP 503", "busy"))),
        Fate::Dead { cause, .. } => ("permanent", Some(cause.clone())),
    };
    Settlement {
        number: delivery.number,
        message: delivery.message,
        destination: delivery.destination.clone(),
        round: delivery.round,
        handout: None,
        attempt: Some(Attempt {
            outcome,
            duration: Duration::from_millis(12),
            cause,
            answer: Some(Answer {
                status: Some(200),
                headers: Headers::default(),
                body: Bytes::from_static(b"thanks"),
            }),
            sha256: Some([7; 32]),
            size: 42,
        }),
        fate,
    }
}

pub(crate) fn dead(holds: Holds) -> Fate {
    Fate::Dead {
        reason: DeadReason::Refused,
        cause: Cause::with("HTTP 404", "no such place"),
        holds,
        pin: None,
    }
}

pub(crate) fn retry(seconds: u64, spend: bool) -> Fate {
    Fate::Retry { after: Duration::from_secs(seconds), spend, pin: None }
}

pub(crate) fn act(verb: &str) -> OperatorAct {
    OperatorAct {
        by: "kim".to_owned(),
        verb: verb.to_owned(),
        subject: "everything".to_owned(),
        why: Some("asked by the partner".to_owned()),
    }
}

/// Equal in every field that a store keeps.
pub(crate) fn assert_same(stored: &Message, given: &Message) {
    let plain = |message: &Message| {
        let mut message = message.clone();
        message.arrival.state = None;
        let body = std::mem::replace(&mut message.body, Body::Inline(Bytes::new()));
        (format!("{message:#?}"), body)
    };
    let (stored, given) = (plain(stored), plain(given));
    assert_eq!(stored.0, given.0, "the envelope");
    assert!(stored.1 == given.1, "the body is not the same");
}
