//! What remembers, and alone decides what may go out next.

use std::{collections::HashMap, fmt::Debug, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    Answer, Beat, Cause, DeadLetter, DeadLetterGroup, DeadLetterQuery, DeadReason, EndpointCounts,
    EndpointName, Epoch, Fingerprint, Holds, Housekeeping, Identity, Lane, LaneHolder, Layout,
    LinkChange, LinkState, Message, MessageId, MessageQuery, MessageStory, MessageSummary,
    NodePlan, OperatorAct, Order, PullAsk, PullPage, Retention, StandingStill, StateConflict,
    StateValue, Vitals, Written,
};

/// The order number of a delivery: never reused, never given out of order.
pub type Number = i64;

/// Every method is one transaction; what it returned has happened, durably. Due times and ages are
/// relative, so that only the store's own clock counts.
#[async_trait]
pub trait Store: Debug + Send + Sync {
    // --- in ---
    /// Takes a group: inbox rows, messages, deliveries and state writes, all or nothing. One answer
    /// per entry. A conflict is set aside in the same transaction; an accepted message closes an
    /// earlier set-aside arrival of the same identity. No identity stands twice in a group.
    async fn accept(&self, group: &[Entry]) -> Result<Vec<Accepted>, StoreError>;
    /// Whether it can commit a statement of an origin's together with its message: that is run for
    /// what was stored and for what was here already, not for what was set aside. Where it cannot,
    /// it refuses such a message. A group is refused as well if the statement hits fewer rows than
    /// there are new messages.
    fn alongside(&self) -> bool {
        false
    }
    /// The fingerprint held under each of these identities, if one is: a read, which counts nothing.
    async fn fingerprints(
        &self,
        which: &[Identity],
    ) -> Result<Vec<Option<Fingerprint>>, StoreError>;
    /// Counts repeats that were recognised by [`Store::fingerprints`], each so many times, and keeps
    /// what came again from being forgotten as old. No identity stands twice in it.
    async fn count_repeats(&self, repeats: &[(Identity, u32)]) -> Result<(), StoreError>;

    // --- ownership ---
    /// Whether other nodes may work on this store at the same time.
    fn shared(&self) -> bool;
    /// Announces this node and what it runs, and gives it an epoch of its own.
    async fn join(&self, node: &str, plan: &NodePlan) -> Result<Epoch, StoreError>;
    /// Renews the heartbeat and reads those of all nodes. [`StoreError::Fenced`]: this life is over.
    async fn beat(&self, epoch: Epoch) -> Result<Vec<Beat>, StoreError>;
    /// Ends a life: this node's own, or one that stood still for a lease. False while it holds lanes.
    async fn leave(&self, epoch: Epoch) -> Result<bool, StoreError>;
    /// All nodes, without a heartbeat.
    async fn nodes(&self) -> Result<Vec<Beat>, StoreError>;
    /// The endpoints of a plan that a node has announced.
    async fn plan(&self, hash: &str) -> Result<Option<Vec<EndpointName>>, StoreError>;
    /// The layout of every destination that has one.
    async fn layouts(&self) -> Result<Vec<Layout>, StoreError>;
    /// Lays a destination out like this, under a new number if it was laid out otherwise. The
    /// layout that holds from now on.
    async fn lay_out(
        &self,
        destination: &EndpointName,
        lanes: u16,
        order: Order,
    ) -> Result<Layout, StoreError>;
    /// All lanes that were ever held and whose layout is not yet forgotten.
    async fn lanes(&self) -> Result<Vec<LaneHolder>, StoreError>;
    /// Takes a lane that nobody holds, or that is held by a life that still stands still. False if
    /// it does not, if the lane's layout holds no longer, or while anybody holds a lane of an
    /// earlier layout.
    async fn take_lane(
        &self,
        lane: &Lane,
        from: Option<StandingStill>,
        to: Epoch,
    ) -> Result<bool, StoreError>;
    /// Lets go of a lane with nothing of it in flight; false if `holder` does not hold it.
    async fn release_lane(&self, lane: &Lane, holder: Epoch) -> Result<bool, StoreError>;
    /// Lets go of a lane in the name of a life that still stands still, of which something may be in
    /// flight; false if it does not, or does not hold it.
    async fn give_up_lane(&self, lane: &Lane, holder: StandingStill) -> Result<bool, StoreError>;
    /// Returns once another node may have written what this one waits for; never on a store of one
    /// node. Only a hint: it may come too often, and too late.
    async fn changed(&self);

    // --- claim ---
    /// Deliveries in order of their numbers, without bodies.
    async fn deliveries(&self, which: Which<'_>, limit: usize)
    -> Result<Vec<Delivery>, StoreError>;
    /// For how long after a number was seen a lower one may still appear; zero: never.
    fn late_commits_for(&self) -> Duration;
    /// The messages of these deliveries with what was pinned for them. `None` where the delivery is
    /// settled, so that an old reading of it is noticed before it is sent, or where its body is gone.
    async fn load(&self, which: &[(Number, MessageId)]) -> Result<Vec<Option<Loaded>>, StoreError>;
    /// Notes before they are sent that these deliveries are about to be, for the so-manieth time.
    async fn mark_started(&self, epoch: Epoch, starts: &[(Number, u32)]) -> Result<(), StoreError>;
    /// The keys of a destination that dead letters hold, with the lowest number of each.
    async fn held(
        &self,
        destination: &EndpointName,
    ) -> Result<Vec<(Option<String>, Number)>, StoreError>;

    // --- out ---
    /// Writes what became of deliveries: one answer each. A success counts whoever brings it;
    /// failures only from the epoch that holds the lane, or of the last [`Settlement::handout`].
    async fn settle(&self, epoch: Epoch, group: &[Settlement]) -> Result<Vec<Settled>, StoreError>;
    /// Looks through one page of a destination whose partner fetches its messages, and hands out what
    /// may go: what is due, with nothing unsettled of its key in front of it and no dead letter that
    /// holds it. No two calls hand out the same. What had lapsed is counted and logged as an attempt,
    /// and goes alone.
    async fn pull(&self, destination: &EndpointName, ask: &PullAsk)
    -> Result<PullPage, StoreError>;

    // --- operators: dead letters ---
    /// In order of their own numbers.
    async fn dead_letters(&self, query: &DeadLetterQuery) -> Result<Vec<DeadLetter>, StoreError>;
    /// The same, counted by (endpoint, kind, reason, cause).
    async fn dead_letter_groups(
        &self,
        query: &DeadLetterQuery,
    ) -> Result<Vec<DeadLetterGroup>, StoreError>;
    /// The arrival or message behind a dead letter.
    async fn dead_message(&self, id: i64) -> Result<Option<Message>, StoreError>;
    /// Puts dead deliveries back with their old numbers in a new round; those no longer there are
    /// left out of the answer. Posts a [`Request`].
    async fn replay(&self, ids: &[i64], act: &OperatorAct) -> Result<Vec<DeadLetter>, StoreError>;
    /// Gives dead letters up, which frees their keys. Posts a [`Request`].
    async fn discard(&self, ids: &[i64], act: &OperatorAct) -> Result<Vec<DeadLetter>, StoreError>;

    // --- operators: messages and links ---
    /// Newest first.
    async fn messages(&self, query: &MessageQuery) -> Result<Vec<MessageSummary>, StoreError>;
    /// Everything known of one message.
    async fn message(&self, id: MessageId) -> Result<Option<MessageStory>, StoreError>;
    /// The message itself.
    async fn message_content(&self, id: MessageId) -> Result<Option<Message>, StoreError>;
    /// Adds deliveries to messages, each destination once per message, and closes what they came
    /// from. The number of deliveries that were new.
    async fn route(&self, routings: &[Routing], act: &OperatorAct) -> Result<u64, StoreError>;
    /// What stands at each source and destination that has anything.
    async fn counts(&self) -> Result<Vec<EndpointCounts>, StoreError>;
    /// How many messages nobody takes.
    async fn unrouted(&self) -> Result<u64, StoreError>;
    /// Of every endpoint that has one.
    async fn link_states(&self) -> Result<Vec<LinkState>, StoreError>;
    /// Changes one part; with the operator's act, if one did it, which is noted. Posts
    /// [`Request::Link`] if an operator did it, and else [`Request::Health`].
    async fn set_link_state(
        &self,
        endpoint: &EndpointName,
        change: LinkChange,
        act: Option<&OperatorAct>,
    ) -> Result<(), StoreError>;
    /// Notes what an operator did where no other method does (opening a body).
    async fn note(&self, act: &OperatorAct) -> Result<(), StoreError>;

    // --- housekeeping ---
    /// Prepares what will be needed soon and removes some of what retention no longer asks for, in
    /// steps that hold nobody up; call it again at once while it says so.
    async fn housekeep(&self, keep: &Retention) -> Result<Housekeeping, StoreError>;
    /// How the store itself is.
    async fn vitals(&self) -> Result<Vitals, StoreError>;

    // --- between the two ---
    /// What lane holders are asked to do, after this number.
    async fn requests(&self, after: i64) -> Result<Vec<(i64, Request)>, StoreError>;
    /// A durable value of one endpoint; see [`crate::State`].
    async fn state(
        &self,
        endpoint: &EndpointName,
        name: &str,
    ) -> Result<Option<StateValue>, StoreError>;
    /// Writes it if it still has this revision.
    async fn set_state(
        &self,
        endpoint: &EndpointName,
        name: &str,
        revision: i64,
        value: Bytes,
    ) -> Result<Result<(), StateConflict>, StoreError>;
}

/// Why a store could not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing was written; it may go better later.
    #[error("the store cannot at the moment: {0}")]
    Unavailable(String),
    /// It is not known whether the commit happened: do the same again with the same ids.
    #[error("the outcome of a commit is unknown: {0}")]
    Unknown(String),
    /// Something in the group can never be stored; nothing was written.
    #[error("the store refuses this: {0}")]
    Rejected(String),
    /// Another node holds what this one thought it did.
    #[error("this node no longer holds the lane")]
    Fenced,
}

/// One arrival of a group.
#[derive(Debug, Clone)]
pub enum Entry {
    /// To be taken.
    Message(NewMessage),
    /// To be set aside; holds no claim on its id.
    SetAside(SetAside),
}

/// A message to be taken, with its id assigned.
#[derive(Debug, Clone)]
pub struct NewMessage {
    /// The message.
    pub message: Message,
    /// Of its body as received.
    pub fingerprint: Fingerprint,
    /// Who gets it. With none of these and no fault it is unrouted.
    pub destinations: Vec<EndpointName>,
    /// Destinations that could not be asked, and why: dead letters of kind routing.
    pub faults: Vec<(EndpointName, String)>,
    /// How often it came again within the group.
    pub repeats: u32,
}

/// An arrival that is not taken but kept.
#[derive(Debug, Clone)]
pub struct SetAside {
    /// As it came.
    pub message: Message,
    /// Of its body as received.
    pub fingerprint: Fingerprint,
    /// Why.
    pub reason: DeadReason,
    /// What happened.
    pub cause: Cause,
}

/// What became of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepted {
    /// Stored for the first time.
    Stored,
    /// It was here already with the same content.
    Duplicate,
    /// It was here already with other content; now a dead letter of its source.
    Conflict {
        /// The fingerprint of what was here.
        held: Fingerprint,
    },
    /// Set aside as asked.
    SetAside,
}

/// Which deliveries to read, from low numbers to high.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which<'a> {
    /// Of all destinations, above this number.
    Tail {
        /// The highest number seen.
        after: Number,
    },
    /// Of one destination.
    Destination {
        /// Which.
        destination: &'a EndpointName,
        /// Above this number.
        after: Number,
    },
    /// Of one key of one destination.
    Key {
        /// Which destination.
        destination: &'a EndpointName,
        /// Which key.
        key: &'a str,
        /// Above this number.
        after: Number,
    },
    /// Exactly these, if they are there.
    Numbers(&'a [Number]),
}

/// One message on its way to one destination, without the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The order number.
    pub number: Number,
    /// The message.
    pub message: MessageId,
    /// To whom.
    pub destination: EndpointName,
    /// The slot of its key.
    pub slot: u8,
    /// Its key.
    pub key: Option<Arc<str>>,
    /// Attempts spent in this round.
    pub attempts: u32,
    /// How often it was replayed.
    pub round: u32,
    /// Sends that were noted before they began and not settled: the process may have died of it.
    pub started: u32,
    /// May go out after this time from now.
    pub due_in: Duration,
    /// Time since the message was accepted.
    pub age: Duration,
    /// The size of the body as received, in bytes.
    pub size: u64,
}

/// A message to be sent.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The message.
    pub message: Message,
    /// What was pinned by the first attempt that may have reached the partner.
    pub written: Option<Written>,
}

/// What became of one delivery.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// Which, ...
    pub number: Number,
    /// ... of which message, ...
    pub message: MessageId,
    /// ... to whom, ...
    pub destination: EndpointName,
    /// ... in which round: all must fit.
    pub round: u32,
    /// Where the partner fetches: which time it was handed out. A failure then counts from whoever
    /// had it last, and of no earlier time.
    pub handout: Option<u32>,
    /// What was tried, for the log; `None` if nothing was.
    pub attempt: Option<Attempt>,
    /// What follows.
    pub fate: Fate,
}

/// One attempt for the log.
#[derive(Debug, Clone, Default)]
pub struct Attempt {
    /// `delivered`, `duplicate`, `stale`, `unreachable`, `transient` or `permanent`.
    pub outcome: &'static str,
    /// How long it took.
    pub duration: Duration,
    /// What happened.
    pub cause: Option<Cause>,
    /// What the other side answered.
    pub answer: Option<Answer>,
    /// SHA-256 of what was sent.
    pub sha256: Option<[u8; 32]>,
    /// Size of what was sent in bytes.
    pub size: u64,
}

/// What follows an attempt.
#[derive(Debug, Clone)]
pub enum Fate {
    /// The other side holds it.
    Delivered,
    /// Again later.
    Retry {
        /// After this time.
        after: Duration,
        /// Whether the attempt counts.
        spend: bool,
        /// To be sent from now on, byte for byte.
        pin: Option<Written>,
    },
    /// Set aside.
    Dead {
        /// Why.
        reason: DeadReason,
        /// What happened.
        cause: Cause,
        /// What it holds.
        holds: Holds,
        /// To be sent on a replay, byte for byte.
        pin: Option<Written>,
    },
}

/// Whether a settlement hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Written.
    Done,
    /// The delivery in this round was settled before: nothing changed.
    NotThere,
}

/// Deliveries to be added to a message that is here already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routing {
    /// Which message.
    pub message: MessageId,
    /// To whom.
    pub destinations: Vec<EndpointName>,
    /// Destinations that could not be asked, and why: dead letters of kind routing.
    pub faults: Vec<(EndpointName, String)>,
    /// The dead letter of kind routing that this answers.
    pub dead_letter: Option<i64>,
}

/// What the holder of a lane is asked to notice: a change that its tail read cannot see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// These deliveries are back with their old numbers.
    Requeued(HashMap<EndpointName, Vec<Number>>),
    /// Dead letters of these destinations were given up: their keys may be free.
    Freed(Vec<EndpointName>),
    /// An operator paused this endpoint or let it go: what waits there for a time goes now.
    Link(EndpointName),
    /// A node found this destination held or open, or its pace.
    Health(EndpointName),
}
