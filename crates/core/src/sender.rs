//! The two sides of every transport: what takes messages, and what brings them.

use std::{fmt::Debug, sync::Arc};

use async_trait::async_trait;

use crate::{Finding, Message, Stop, Verdict};

/// Anything that takes responsibility for messages: a broker, a partner's API, a directory, and
/// the hub's own inbox.
#[async_trait]
pub trait Sender: Debug + Send + Sync {
    /// What one call may carry; the engine splits to fit.
    fn limits(&self) -> Limits;

    /// The size of this message on the wire in bytes, headers included.
    fn wire_size(&self, message: &Message) -> usize;

    /// Hands a batch over: as many verdicts as messages, in the same order.
    ///
    /// Of one key, the next message is not sent before the one ahead of it has a receipt; after a
    /// failure the rest of that key gets `NotSent` ([`crate::by_key`] does this). Dropping the
    /// future loses nothing: what has no verdict counts as failed.
    async fn send(&self, batch: &[Message]) -> Vec<Verdict>;

    /// Looks at the other side without handing anything over, and says what was found, worst first;
    /// nothing if all is well. The caller sets the time limit: dropping the future leaves nothing
    /// behind.
    async fn probe(&self) -> Vec<Finding> {
        Vec::new()
    }
}

/// What one call of [`Sender::send`] may carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Messages in one call; 1 for a protocol that carries one at a time.
    pub batch_max: usize,
    /// All messages of one call together on the wire, in bytes.
    pub batch_bytes_max: usize,
    /// One message on the wire, in bytes.
    pub message_bytes_max: usize,
}

impl Limits {
    /// One message a call, each of at most `message_bytes_max` bytes on the wire.
    #[must_use]
    pub fn one_by_one(message_bytes_max: usize) -> Self {
        Self { batch_max: 1, batch_bytes_max: message_bytes_max, message_bytes_max }
    }
}

/// Anything that brings messages.
#[async_trait]
pub trait Receiver: Debug + Send + Sync {
    /// True: only one node at a time runs it, under a lease of the engine.
    fn exclusive(&self) -> bool;

    /// Hands every message to `inbox`; acknowledges at the origin only those with a receipt. Once
    /// `stop` fires it takes nothing new, finishes what is in hand, and returns.
    ///
    /// # Errors
    /// If it cannot go on by itself; the engine runs it again after a pause.
    async fn run(&self, inbox: Arc<dyn Sender>, stop: Stop) -> Result<(), ReceiveError>;

    /// Looks at the origin without taking anything from it; see [`Sender::probe`].
    async fn probe(&self) -> Vec<Finding> {
        Vec::new()
    }
}

/// Why a receiver gave up; the engine starts it again after a pause.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct ReceiveError(pub String);
