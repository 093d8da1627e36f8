//! What travels between the operators' interface and the command line, as JSON.

use pabal_core::{
    DeadLetter, DeadLetterGroup, DeadLetterQuery, EndpointName, Epoch, LinkState, Message,
    MessageId, MessageStory, Paused, Timestamp, Tripped,
};
use pabal_engine::{DestinationStatus, ReplayReport};
use serde::{Deserialize, Serialize};

/// `GET /api/v1/status`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// The hub's name.
    pub(crate) hub: String,
    /// This program's version.
    pub(crate) version: String,
    /// Whether it runs.
    pub(crate) state: Phase,
    /// The ways in.
    pub(crate) sources: Vec<SourceStatus>,
    /// The ways out.
    pub(crate) destinations: Vec<OutStatus>,
    /// Messages nobody takes.
    pub(crate) unrouted: u64,
    /// The nodes that share the store; none where there is only one.
    #[serde(default)]
    pub(crate) nodes: Vec<NodeStatus>,
}

/// One node of many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeStatus {
    /// Its name.
    pub(crate) node: String,
    /// Its life.
    pub(crate) epoch: Epoch,
    /// Since its last heartbeat, in milliseconds.
    pub(crate) beat_ms_ago: u64,
    /// Whether it was heard of within the lease.
    pub(crate) live: bool,
    /// The hash of the configuration it runs.
    pub(crate) plan: String,
    /// Whether that is another one than the one that is asked has.
    pub(crate) differs: bool,
    /// Whether it is the node that is asked.
    pub(crate) this: bool,
    /// Lanes it holds, of all destinations together.
    pub(crate) lanes: usize,
}

/// `POST /api/v1/prune`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Prune {
    /// Who.
    pub(crate) by: String,
}

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pruned {
    /// Messages removed.
    pub(crate) messages: u64,
    /// Lines of the delivery log.
    pub(crate) log: u64,
    /// Remembered ids.
    pub(crate) inbox: u64,
    /// Dead letters.
    pub(crate) dead_letters: u64,
    /// There is more to remove: ask again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) more: bool,
}

/// Whether the hub runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    /// Not yet.
    Starting,
    /// It takes and sends.
    Running,
    /// No longer.
    Stopping,
    /// It does not: the command line looks at the store itself.
    NotRunning,
}

/// Where a source stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SourceStatus {
    /// Which.
    pub(crate) source: EndpointName,
    /// By whom and why it is paused, if it is.
    pub(crate) paused: Option<Paused>,
    /// Its dead letters.
    pub(crate) dead: u64,
}

/// Where a destination stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct OutStatus {
    /// Which.
    pub(crate) destination: EndpointName,
    /// On this node; none for a destination that only the store knows.
    pub(crate) now: Option<DestinationStatus>,
    /// By whom and why it is paused, if it is.
    pub(crate) paused: Option<Paused>,
    /// What holds it, if anything does.
    pub(crate) tripped: Option<Tripped>,
    /// Deliveries not settled.
    pub(crate) waiting: u64,
    /// Of these, behind a dead letter that holds their key.
    pub(crate) held: u64,
    /// Keys held by a dead letter.
    pub(crate) keys_held: u64,
    /// When the oldest delivery that may go out was accepted.
    pub(crate) oldest: Option<Timestamp>,
    /// Its dead letters.
    pub(crate) dead: u64,
}

/// `POST /api/v1/messages`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HandOver {
    /// The message's type.
    #[serde(rename = "type")]
    pub(crate) message_type: String,
    /// Only to this destination.
    #[serde(default)]
    pub(crate) to: Option<EndpointName>,
    /// Its id; random if none is given.
    #[serde(default)]
    pub(crate) id: Option<String>,
    /// Its ordering key.
    #[serde(default)]
    pub(crate) key: Option<String>,
    /// What it belongs to.
    #[serde(default)]
    pub(crate) correlation: Option<String>,
    /// What caused it.
    #[serde(default)]
    pub(crate) causation: Option<String>,
    /// Further headers.
    #[serde(default)]
    pub(crate) headers: Vec<(String, String)>,
    /// The media type of the body.
    #[serde(default)]
    pub(crate) content_type: Option<String>,
    /// The body in Base64.
    pub(crate) body: String,
}

/// What a hand-over is answered with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Taken {
    /// The message id.
    pub(crate) id: String,
    /// Whether the hub had it already.
    pub(crate) duplicate: bool,
}

/// `GET /api/v1/messages/{id}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Told {
    /// Everything but the content.
    pub(crate) story: MessageStory,
    /// The content, if it was asked for and is still there.
    pub(crate) content: Option<Content>,
}

/// `GET /api/v1/dead-letters/{id}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ToldDead {
    /// The dead letter.
    pub(crate) dead_letter: DeadLetter,
    /// The content, if it was asked for and is still there.
    pub(crate) content: Option<Content>,
}

/// The personal part of a message: shown only when asked for, which is recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Content {
    /// The media type.
    pub(crate) content_type: Option<String>,
    /// Further headers as they came.
    pub(crate) headers: Vec<(String, String)>,
    /// Size in bytes.
    pub(crate) size: u64,
    /// The body as received, in Base64; none if it is kept elsewhere.
    pub(crate) body: Option<String>,
}

impl From<&Message> for Content {
    fn from(message: &Message) -> Self {
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Self {
            content_type: message.content_type.clone(),
            headers: message.headers.iter().map(pair).collect(),
            size: message.body.size(),
            body: message.body.inline().map(|bytes| super::to_base64(bytes)),
        }
    }
}

/// `POST /api/v1/messages/reroute`: either the ids or all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reroute {
    /// These messages.
    #[serde(default)]
    pub(crate) ids: Vec<MessageId>,
    /// All that nobody took.
    #[serde(default)]
    pub(crate) all: bool,
    /// Why.
    #[serde(default)]
    pub(crate) why: Option<String>,
    /// Who.
    pub(crate) by: String,
}

/// What a reroute did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rerouted {
    /// So many messages found a destination.
    pub(crate) routed: u64,
}

/// `POST /api/v1/dead-letters/replay` and `…/discard`: either the ids or a query.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Selection {
    /// These.
    #[serde(default)]
    pub(crate) ids: Vec<i64>,
    /// All that fit; `{}` is all there are.
    #[serde(default)]
    pub(crate) query: Option<DeadLetterQuery>,
    /// Only so many, the oldest.
    #[serde(default)]
    pub(crate) canary: Option<u32>,
    /// Only says what would be done.
    #[serde(default)]
    pub(crate) dry_run: bool,
    /// Why.
    #[serde(default)]
    pub(crate) why: Option<String>,
    /// Who.
    pub(crate) by: String,
}

/// What is chosen, before anything is done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Preview {
    /// Counted by endpoint, kind, reason and cause.
    pub(crate) groups: Vec<DeadLetterGroup>,
    /// All of them, after `canary`.
    pub(crate) count: u64,
}

/// What a replay did, or with `dry_run` would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Replayed {
    /// What would be done; only with `dry_run`.
    pub(crate) preview: Option<Preview>,
    /// What was done.
    pub(crate) report: Option<ReplayReport>,
}

/// What a discard did, or with `dry_run` would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Discarded {
    /// What would be done; only with `dry_run`.
    pub(crate) preview: Option<Preview>,
    /// The numbers of those that were given up.
    pub(crate) discarded: Vec<i64>,
}

/// What a pause or resume is answered with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Linked {
    /// How it stands now.
    #[serde(flatten)]
    pub(crate) state: LinkState,
    /// Whether it was paused before.
    #[serde(default)]
    pub(crate) was_paused: bool,
}

/// `POST /api/v1/links/{partner}/{name}/pause` and `…/resume`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LinkAct {
    /// Why.
    #[serde(default)]
    pub(crate) why: Option<String>,
    /// Who.
    pub(crate) by: String,
}
