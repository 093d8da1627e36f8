//! Who a message is: its id, its fingerprint, its slot.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::{EndpointName, Message};

/// The namespace of Pabal's message ids (a random UUID, fixed for ever).
const NAMESPACE: Uuid = Uuid::from_u128(0x6f1d_34c8_5a0e_4b52_9d53_8f10_c2a7_7be1);

/// The id of a message on every wire: a UUID that is a pure function of where the message came
/// from, so that a repeat and a hub that forgot both arrive at the same one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MessageId(pub Uuid);

impl MessageId {
    /// The id of a message that the inbox has not taken yet.
    pub const UNASSIGNED: Self = Self(Uuid::nil());

    /// UUID version 5 over the length-prefixed names, so that no two origins can share one.
    #[must_use]
    pub fn of(hub: &str, source: &EndpointName, origin_source: &str, origin_id: &str) -> Self {
        let mut name = Vec::new();
        for part in [hub, source.as_str(), origin_source, origin_id] {
            name.extend_from_slice(&(part.len() as u64).to_be_bytes());
            name.extend_from_slice(part.as_bytes());
        }
        Self(Uuid::new_v5(&NAMESPACE, &name))
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for MessageId {
    type Err = uuid::Error;
    fn from_str(text: &str) -> Result<Self, uuid::Error> {
        text.parse().map(Self)
    }
}

/// By what an arrival is told from all others: the primary key of the inbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// The authenticated way in.
    pub source: EndpointName,
    /// Where it says it comes from.
    pub origin_source: String,
    /// The id it has there.
    pub origin_id: String,
}

impl Identity {
    /// Of a message; `None` while it has no id of its origin.
    #[must_use]
    pub fn of(message: &Message) -> Option<Self> {
        Some(Self {
            source: message.source.clone(),
            origin_source: message.origin.source.clone(),
            origin_id: message.origin.id.clone()?,
        })
    }

    /// The id under which a message of this identity goes out.
    #[must_use]
    pub fn message_id(&self, hub: &str) -> MessageId {
        MessageId::of(hub, &self.source, &self.origin_source, &self.origin_id)
    }
}

/// SHA-256 of a body as received: the same id with another fingerprint is a conflict, never a
/// duplicate.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The slot of an ordering key: `xxh3_64(key) % 256`, stored with the row for ever.
#[must_use]
pub fn slot(key: &str) -> u8 {
    (xxhash_rust::xxh3::xxh3_64(key.as_bytes()) % u64::from(crate::SLOTS)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(hub: &str, source: &str, origin_source: &str, origin_id: &str) -> MessageId {
        MessageId::of(hub, &source.parse().unwrap(), origin_source, origin_id)
    }

    #[test]
    fn an_id_is_the_same_for_ever() {
        // Fixed: a change here would give every message that partners know another id.
        assert_eq!(
            id("central", "welfare/decisions", "/welfare/decisions", "A-1").to_string(),
            "96366656-0ee9-5bda-b5ea-7fa33908ee1d"
        );
    }

    #[test]
    fn two_origins_never_share_an_id() {
        let first = id("h", "p/a", "s", "1");
        assert_ne!(first, id("h", "p/b", "s", "1"));
        assert_ne!(first, id("h", "q/a", "s", "1"));
        assert_ne!(first, id("h2", "p/a", "s", "1"));
        assert_ne!(id("h", "p/a", "s1", "1"), id("h", "p/a", "s", "11"));
    }

    #[test]
    fn slots_are_the_same_for_ever() {
        assert_eq!(["", "1", "11110", "application-7", "서울"].map(slot), [194, 88, 10, 152, 212]);
    }
}
