//! What the engine is given to run: built parts, no configuration.

use std::{sync::Arc, time::Duration};

use pabal_core::{
    BODY_BYTES_MAX, BreakerPolicy, Clock, EndpointName, HotCache, OnDead, Order, Pickup, Predicate,
    Reader, Receiver, RetryPolicy, Sender, Store, TypePattern, Writer,
};

use crate::Observer;

/// Everything an engine runs.
#[derive(Debug)]
pub struct Setup {
    /// The hub's name, a part of every message id.
    pub hub: String,
    /// This node's name, for people.
    pub node: String,
    /// The hash of the whole configuration: nodes that run the same have the same.
    pub plan: String,
    /// How long a lease is, where many nodes share the store: a node that was not heard of for so
    /// long loses what it holds.
    pub lease: Duration,
    /// What remembers.
    pub store: Arc<dyn Store>,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// Who is told what happens.
    pub observer: Arc<dyn Observer>,
    /// The ways in.
    pub sources: Vec<Source>,
    /// The ways out.
    pub destinations: Vec<Destination>,
    /// On stop, sends in hand get this long to end by themselves.
    pub grace: Duration,
    /// Takes and routes, but runs no receiver and sends nothing: for operators' verbs on a store
    /// whose hub is not running.
    pub idle: bool,
}

/// One way in.
#[derive(Debug, Clone)]
pub struct Source {
    /// Its full name.
    pub name: EndpointName,
    /// Brings the messages; none where only [`crate::Engine::inbox`] does.
    pub receiver: Option<Arc<dyn Receiver>>,
    /// Fills the envelope from the body; none: it stays as the transport filled it.
    pub reader: Option<Arc<dyn Reader>>,
    /// What becomes of what cannot be read.
    pub on_invalid: OnInvalid,
    /// What becomes of a message whose origin gave it no id.
    pub missing_id: MissingId,
    /// Whether its messages may name the one destination they are for.
    pub may_address: bool,
    /// The largest body in bytes.
    pub body_bytes_max: usize,
    /// Looked into first, where many messages come again.
    pub hot_cache: Option<Arc<dyn HotCache>>,
}

impl Source {
    /// A source with the defaults of a request-and-answer transport.
    #[must_use]
    pub fn new(name: EndpointName, receiver: Option<Arc<dyn Receiver>>) -> Self {
        Self {
            name,
            receiver,
            reader: None,
            on_invalid: OnInvalid::Refuse,
            missing_id: MissingId::Refuse,
            may_address: false,
            body_bytes_max: BODY_BYTES_MAX,
            hot_cache: None,
        }
    }
}

/// What becomes of an arrival that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnInvalid {
    /// The origin is told no; the hub keeps nothing.
    Refuse,
    /// It is kept as a dead letter of its source, and the origin is told yes.
    Keep,
}

/// What becomes of a message whose origin gave it no id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingId {
    /// It is refused: without an id a repeat cannot be told from a new message.
    Refuse,
    /// The SHA-256 of its content is its id: the same content twice is one message.
    Content,
    /// It gets a random id: every arrival is a new message.
    Random,
}

/// One way out.
#[derive(Debug)]
pub struct Destination {
    /// Its full name.
    pub name: EndpointName,
    /// The message types it subscribes to.
    pub takes: Vec<TypePattern>,
    /// The sources it listens to; empty: all but those of its own partner.
    pub from: Vec<EndpointName>,
    /// The condition it makes.
    pub when: Option<Arc<dyn Predicate>>,
    /// What may not overtake what.
    pub order: Order,
    /// What a dead letter means for the messages behind it.
    pub on_dead: OnDead,
    /// When a failed message is tried again.
    pub retry: RetryPolicy,
    /// When it stops spending attempts.
    pub breaker: BreakerPolicy,
    /// Over how many lanes it is spread, each held by one node.
    pub lanes: u16,
    /// Sends in flight at a time, with disjoint keys, over all nodes.
    pub concurrency: usize,
    /// At most so many messages a second.
    pub rate: Option<f64>,
    /// How messages get to the partner.
    pub way: WayOut,
    /// Puts a message into the partner's form; none: the bytes pass untouched.
    pub writer: Option<Arc<dyn Writer>>,
}

impl Destination {
    /// A destination with the defaults.
    #[must_use]
    pub fn new(name: EndpointName, takes: &[&str], sender: Arc<dyn Sender>) -> Self {
        Self {
            name,
            takes: takes.iter().map(|pattern| TypePattern((*pattern).into())).collect(),
            from: Vec::new(),
            when: None,
            order: Order::Key,
            on_dead: OnDead::Hold,
            retry: RetryPolicy::default(),
            breaker: BreakerPolicy::default(),
            lanes: 1,
            concurrency: 16,
            rate: None,
            way: WayOut::Sent(sender),
            writer: None,
        }
    }
}

/// How messages get to the partner of a destination.
#[derive(Debug, Clone)]
pub enum WayOut {
    /// The hub sends them.
    Sent(Arc<dyn Sender>),
    /// The partner fetches them: lanes, concurrency, rate and breaker mean nothing then, and the
    /// body is as it was received.
    Fetched(Arc<dyn Pickup>),
}
