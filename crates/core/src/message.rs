//! What moves: a message and its parts.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{EndpointName, MessageId, StateWrite, slot};

/// One message in canonical form: an envelope after CloudEvents 1.0, and a body that is bytes.
///
/// On the way in a receiver fills what it knows and leaves [`Message::id`] unassigned: the inbox
/// gives it. What the store holds is immutable.
#[derive(Debug, Clone)]
pub struct Message {
    /// [`MessageId::UNASSIGNED`] until the inbox has taken the message.
    pub id: MessageId,
    /// The authenticated way in: the hub's own source.
    pub source: EndpointName,
    /// Where it says it comes from, and its id there.
    pub origin: Origin,
    /// What happened or is asked, e.g. `application.submitted` (CloudEvents `type`).
    pub message_type: String,
    /// The ordering key: nothing of one key overtakes another of the same key at one destination.
    pub key: Option<String>,
    /// The business version, growing per key.
    pub version: Option<i64>,
    /// CloudEvents `dataschema`, e.g. `urn:pabal:schema:decision:1.0`.
    pub schema: Option<String>,
    /// The media type of the body.
    pub content_type: Option<String>,
    /// CloudEvents `time` as the origin wrote it.
    pub time: Option<String>,
    /// CloudEvents `subject`.
    pub subject: Option<String>,
    /// What this message belongs to.
    pub correlation: Option<String>,
    /// What caused this message.
    pub causation: Option<String>,
    /// W3C trace context (`traceparent`).
    pub trace: Option<String>,
    /// The one destination it is addressed to; only from a source that may address.
    pub destination: Option<String>,
    /// Further headers, passed on as they came.
    pub headers: Headers,
    /// The body as received, byte for byte.
    pub body: Body,
    /// What only the way in knows.
    pub arrival: Arrival,
}

impl Message {
    /// An arrival with nothing but the necessary: the rest is public and starts empty.
    #[must_use]
    pub fn new(
        source: EndpointName,
        message_type: impl Into<String>,
        body: impl Into<Bytes>,
    ) -> Self {
        Self {
            id: MessageId::UNASSIGNED,
            origin: Origin { source: format!("/{source}"), id: None },
            source,
            message_type: message_type.into(),
            key: None,
            version: None,
            schema: None,
            content_type: None,
            time: None,
            subject: None,
            correlation: None,
            causation: None,
            trace: None,
            destination: None,
            headers: Headers::default(),
            body: Body::Inline(body.into()),
            arrival: Arrival::default(),
        }
    }

    /// The slot of its key; a message without a key is its own key.
    #[must_use]
    pub fn slot(&self) -> u8 {
        match &self.key {
            Some(key) => slot(key),
            None => slot(&self.id.to_string()),
        }
    }
}

/// Where a message says it comes from. Never trusted in place of the authenticated source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    /// CloudEvents `source`; `/{partner}/{source}` where the origin names none.
    pub source: String,
    /// The id the origin gave it; `None` where it gave none.
    pub id: Option<String>,
}

/// A body: inline bytes, or a reference to where a large one is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// The bytes themselves.
    Inline(Bytes),
    /// Kept in the claim store.
    Stored(BodyReference),
}

/// Where a large body is kept, and what it must be when it comes back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BodyReference {
    /// The object's place in the claim store.
    pub place: String,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of the bytes.
    pub sha256: [u8; 32],
}

impl Body {
    /// Size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Stored(reference) => reference.size,
        }
    }

    /// The bytes, if they are here.
    #[must_use]
    pub fn inline(&self) -> Option<&Bytes> {
        match self {
            Self::Inline(bytes) => Some(bytes),
            Self::Stored(_) => None,
        }
    }
}

/// Header names and values in the order they came; names compare without case.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// The first value under `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Adds one, behind those that are there.
    pub fn push(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// No header at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names and values together, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// What only the way in knows of a message.
#[derive(Debug, Clone, Default)]
pub struct Arrival {
    /// How often the origin says it has handed this message over before.
    pub redeliveries: u32,
    /// When the origin handed it over, by the origin's clock.
    pub origin_time: Option<Timestamp>,
    /// Through how many hubs it came.
    pub hops: u8,
    /// The origin cannot be told of a refusal: what is refused is kept as a dead letter, whatever the
    /// source is set to.
    pub one_way: bool,
    /// A resume point of the receiver that commits together with the message.
    pub state: Option<StateWrite>,
    /// What the origin wants done in the transaction that takes the message, where the store is in
    /// the origin's own database ([`crate::Store::alongside`]).
    pub alongside: Option<Alongside>,
}

/// A statement of the origin's that commits together with a message: its row in an outbox table is
/// marked as sent exactly if the message was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alongside {
    /// Takes one parameter, the rows of a group of messages as a list of texts, and hits each of
    /// them once. The same for all messages that can be dealt with together.
    pub statement: Arc<str>,
    /// The row this message came from.
    pub row: String,
}
