//! What operators ask a store, and what it answers. All of it travels as JSON through the admin
//! interface.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{EndpointName, MessageId, Number, Reason};

/// Why a delivery or an arrival was set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the first nine are those of `Reason`")]
pub enum DeadReason {
    Conflict,
    Unreadable,
    Invalid,
    UnknownVersion,
    TooLarge,
    Refused,
    Expired,
    BodyGone,
    Panic,
    /// All attempts are spent.
    Exhausted,
    /// The process ended in the middle of its attempts, three times.
    KilledProcess,
    /// Redelivered so often that it was kept without being read.
    Unread,
    /// A destination's `when` could not be evaluated for it.
    Routing,
    /// It came through too many hubs.
    TooManyHops,
}

impl fmt::Display for DeadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The same word as in JSON and on the command line.
        let word = serde_json::to_value(self).map_err(|_| fmt::Error)?;
        f.write_str(word.as_str().unwrap_or_default())
    }
}

impl From<Reason> for DeadReason {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Conflict => Self::Conflict,
            Reason::Unreadable => Self::Unreadable,
            Reason::Invalid => Self::Invalid,
            Reason::UnknownVersion => Self::UnknownVersion,
            Reason::TooLarge => Self::TooLarge,
            Reason::Refused => Self::Refused,
            Reason::Expired => Self::Expired,
            Reason::BodyGone => Self::BodyGone,
            Reason::Panic => Self::Panic,
        }
    }
}

/// What was set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeadKind {
    /// A message on its way to one destination.
    Delivery,
    /// An arrival that was not taken.
    Source,
    /// The question whether a destination takes a message.
    Routing,
}

/// What waits behind a dead delivery until an operator decides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Holds {
    /// Nothing.
    #[default]
    Nothing,
    /// The messages of its key at this destination.
    Key,
    /// All messages of this destination.
    Destination,
}

/// One dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Its own number.
    pub id: i64,
    /// What was set aside.
    pub kind: DeadKind,
    /// The destination, or for an arrival the source.
    pub endpoint: EndpointName,
    /// The message; none where an arrival was not taken.
    pub message: Option<MessageId>,
    /// The origin's id, if it gave one.
    pub origin_id: Option<String>,
    /// The message's type.
    pub message_type: String,
    /// The message's key.
    pub key: Option<String>,
    /// The delivery's order number.
    pub number: Option<Number>,
    /// Why.
    pub reason: DeadReason,
    /// What happened, the same for the same kind of failure.
    pub cause: String,
    /// What happened this time.
    pub detail: Option<String>,
    /// How often the delivery was replayed.
    pub round: u32,
    /// What waits behind it for an operator's decision.
    pub holds: Holds,
    /// Since when.
    pub at: Timestamp,
}

/// Which dead letters; every field that is set narrows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeadLetterQuery {
    /// These, by their own numbers; empty: any.
    pub ids: Vec<i64>,
    /// Of this kind.
    pub kind: Option<DeadKind>,
    /// Of this source or destination.
    pub endpoint: Option<EndpointName>,
    /// For this reason.
    pub reason: Option<DeadReason>,
    /// For this cause.
    pub cause: Option<String>,
    /// Of this message.
    pub message: Option<MessageId>,
    /// After this number of its own.
    pub after: i64,
    /// At most so many; 0: as many as the store gives at once (1,000).
    pub limit: u32,
}

/// Dead letters of one kind, endpoint, reason and cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetterGroup {
    /// The destination, or for arrivals the source.
    pub endpoint: EndpointName,
    /// What was set aside.
    pub kind: DeadKind,
    /// Why.
    pub reason: DeadReason,
    /// What happened.
    pub cause: String,
    /// How many.
    pub count: u64,
    /// How many of them hold their key.
    pub holding: u64,
    /// The oldest.
    pub oldest: Timestamp,
    /// The newest.
    pub newest: Timestamp,
}

/// What stands at one source or destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointCounts {
    /// Which.
    pub endpoint: EndpointName,
    /// Deliveries not settled, held ones included.
    pub waiting: u64,
    /// Deliveries behind a dead letter that holds their key.
    pub held: u64,
    /// Keys held by a dead letter.
    pub keys_held: u64,
    /// When the oldest delivery that may go out was accepted.
    pub oldest: Option<Timestamp>,
    /// Dead letters.
    pub dead: u64,
}

/// Which messages; every field that is set narrows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MessageQuery {
    /// Message id, origin id or correlation id.
    pub id: Option<String>,
    /// This key.
    pub key: Option<String>,
    /// This type.
    pub message_type: Option<String>,
    /// From this source.
    pub source: Option<EndpointName>,
    /// Received at or after.
    pub since: Option<Timestamp>,
    /// Received before.
    pub until: Option<Timestamp>,
    /// Only those nobody takes.
    pub unrouted: bool,
    /// After this message of an earlier answer.
    pub after: Option<i64>,
    /// At most so many; 0: 50.
    pub limit: u32,
}

/// One message in a list. Bodies are never in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageSummary {
    /// Its place in the list, for [`MessageQuery::after`].
    pub sequence: i64,
    /// The message id.
    pub id: MessageId,
    /// The way in.
    pub source: EndpointName,
    /// The origin's id.
    pub origin_id: String,
    /// The type.
    pub message_type: String,
    /// The key.
    pub key: Option<String>,
    /// The correlation id.
    pub correlation: Option<String>,
    /// When it was accepted.
    pub received: Timestamp,
    /// The body's size in bytes.
    pub size: u64,
    /// One word per delivery: `destination: waiting | delivered | stale | dead | unrouted`.
    pub deliveries: Vec<DeliverySummary>,
}

/// Where one delivery stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliverySummary {
    /// To whom.
    pub destination: EndpointName,
    /// Where it stands.
    pub state: DeliveryState,
    /// Attempts spent in this round.
    pub attempts: u32,
    /// How often it was replayed.
    pub round: u32,
    /// When it may go out, if it waits for a time.
    pub due: Option<Timestamp>,
}

/// Where a delivery stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeliveryState {
    /// Not settled.
    Waiting,
    /// The other side holds it.
    Delivered,
    /// The other side dropped it, because it holds a newer version of its key.
    Stale,
    /// Set aside.
    Dead,
    /// Given up by an operator.
    Discarded,
}

/// Everything known of one message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageStory {
    /// The message.
    pub summary: MessageSummary,
    /// The schema.
    pub schema: Option<String>,
    /// The media type.
    pub content_type: Option<String>,
    /// The business version.
    pub version: Option<i64>,
    /// How often it came again.
    pub duplicates: u64,
    /// What was tried, oldest first.
    pub log: Vec<LogLine>,
    /// Its dead letters.
    pub dead_letters: Vec<DeadLetter>,
}

/// One line of the delivery log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// When.
    pub at: Timestamp,
    /// To whom.
    pub destination: EndpointName,
    /// `delivered`, `duplicate`, `stale`, `unreachable`, `transient`, `permanent`, `discarded` or
    /// `replayed`.
    pub outcome: String,
    /// How long the attempt took, in milliseconds.
    pub duration_ms: u64,
    /// The transport's status.
    pub status: Option<u16>,
    /// What happened.
    pub cause: Option<String>,
    /// The start of the answer.
    pub answer: Option<String>,
    /// SHA-256 of what was sent, in hex.
    pub sha256: Option<String>,
    /// Size of what was sent in bytes.
    pub size: Option<u64>,
    /// The replay round.
    pub round: u32,
}

/// Who paused a source or destination, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// Who.
    pub by: String,
    /// Why.
    pub why: Option<String>,
    /// Since when.
    pub at: Timestamp,
}

/// An open breaker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tripped {
    /// What opened it.
    pub cause: String,
    /// Since when.
    pub at: Timestamp,
    /// Failed probes so far.
    pub probes: u32,
}

/// What outlives a restart and is shared by nodes, per source or destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkState {
    /// Which.
    pub endpoint: EndpointName,
    /// Paused by an operator.
    pub paused: Option<Paused>,
    /// Held by its breaker, or because it cannot be reached.
    pub tripped: Option<Tripped>,
    /// The pace its partner was found to keep, in messages a second over all nodes.
    pub pace: Option<f64>,
}

/// One part of a [`LinkState`] changes.
#[derive(Debug, Clone, PartialEq)]
pub enum LinkChange {
    /// An operator pauses, or lets go (`None`).
    Paused(Option<Paused>),
    /// The breaker opens or a probe fails, or it closes (`None`).
    Tripped(Option<Tripped>),
    /// The partner's pace was found or forgotten.
    Pace(Option<f64>),
}

/// What an operator did, kept for ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorAct {
    /// Who: the system user of the command line, or the name the console knows.
    pub by: String,
    /// What, e.g. `replay`.
    pub verb: String,
    /// On what, e.g. a destination or a message id.
    pub subject: String,
    /// Why, in their words.
    pub why: Option<String>,
}
