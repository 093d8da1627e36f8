//! What the engine tells while it works: metrics count it, tests wait for it.

use std::{fmt::Debug, time::Duration};

use pabal_core::{DeadReason, EndpointName, MessageId, Reason};

/// Something that has happened; where it concerns the store, it is durable.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<'a> {
    /// A message was stored for the first time.
    Accepted {
        /// The way in.
        source: &'a EndpointName,
        /// Which.
        message: MessageId,
        /// How many destinations take it; 0: it is unrouted.
        destinations: usize,
    },
    /// A message came again.
    Duplicate {
        /// The way in.
        source: &'a EndpointName,
        /// Which.
        message: MessageId,
    },
    /// The hot cache was asked about an arrival.
    HotCache {
        /// The way in.
        source: &'a EndpointName,
        /// What it was worth.
        hint: Hint,
    },
    /// A known id came with other content.
    Conflict {
        /// The way in.
        source: &'a EndpointName,
        /// Which.
        message: MessageId,
    },
    /// An arrival was refused to its origin; nothing is kept.
    Refused {
        /// The way in.
        source: &'a EndpointName,
        /// Why.
        reason: Reason,
    },
    /// An arrival was kept as a dead letter of its source.
    SetAside {
        /// The way in.
        source: &'a EndpointName,
        /// Why.
        reason: DeadReason,
    },
    /// One message was tried; the outcome is written.
    Attempt {
        /// To whom.
        destination: &'a EndpointName,
        /// Which.
        message: MessageId,
        /// `delivered`, `duplicate`, `stale`, `unreachable`, `transient` or `permanent`.
        outcome: &'static str,
        /// Whether it spent one of the message's attempts.
        spent: bool,
        /// How long it took.
        duration: Duration,
    },
    /// The other side holds a message, or a newer version of it, and the store knows.
    Delivered {
        /// To whom.
        destination: &'a EndpointName,
        /// Which.
        message: MessageId,
        /// How many attempts it took, the last included.
        attempts: u32,
        /// From accept to receipt.
        age: Duration,
    },
    /// A delivery was set aside.
    Dead {
        /// To whom.
        destination: &'a EndpointName,
        /// Which.
        message: MessageId,
        /// Why.
        reason: DeadReason,
    },
    /// A settlement hit nothing: somebody else had settled the delivery.
    SettledBefore {
        /// To whom.
        destination: &'a EndpointName,
        /// Which.
        message: MessageId,
    },
    /// A destination opened or closed: `cause` says why it is held, `None` that it is not.
    Breaker {
        /// Which.
        destination: &'a EndpointName,
        /// Why it is held.
        cause: Option<&'a str>,
    },
    /// A lane, or the right to run a receiver, was taken or let go.
    Lane {
        /// Whose: a destination, or for a receiver its source.
        destination: &'a EndpointName,
        /// Whether this node holds it.
        held: bool,
    },
    /// Which configurations the nodes run was compared, with another result than before.
    PlansDiffer {
        /// How many live nodes run another one than this node.
        nodes: usize,
    },
}

/// What a hot cache's answer was worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hint {
    /// It had seen the message, and the store confirmed a repeat: nothing was written.
    Repeat,
    /// It had seen the message, and the store knew nothing of it, or other content.
    Wrong,
    /// It had not seen the message.
    Unseen,
}

/// Is told. Called from the engine's tasks: it must not block.
pub trait Observer: Debug + Send + Sync {
    /// Something has happened.
    fn observe(&self, event: Event<'_>);
}

/// Listens to nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn observe(&self, _event: Event<'_>) {}
}
