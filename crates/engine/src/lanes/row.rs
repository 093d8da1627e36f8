//! What a lane remembers of a delivery, and what passes between it and its dispatcher.

use std::{sync::Arc, time::Duration};

use pabal_core::{Delivery, MessageId, Number};

/// What may not overtake each other at one destination.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum KeyId {
    /// The deliveries of one key.
    Key(Arc<str>),
    /// A delivery that waits for no other.
    Single(Number),
    /// All deliveries of the destination.
    All,
}

/// A delivery as the lane remembers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) number: Number,
    pub(crate) message: MessageId,
    pub(crate) attempts: u32,
    pub(crate) round: u32,
    /// Noted sends that were never settled.
    pub(crate) started: u32,
    /// May go out from this time on (the clock's elapsed time).
    pub(crate) due: Duration,
    /// When the message was accepted (the same clock; negative times are cut to zero).
    pub(crate) accepted: Duration,
    /// The size of its body in bytes.
    pub(crate) size: u64,
    /// It may have been in flight when an earlier holder died.
    pub(crate) careful: bool,
    /// Its send panicked or lost its verdict: it goes alone until it is told apart.
    pub(crate) alone: bool,
    /// Panics while it was sent alone.
    pub(crate) panics: u32,
    /// How often the place refused it while the destination was open.
    pub(crate) setbacks: u32,
    /// It failed as a probe: it goes behind all others until the destination opens.
    pub(crate) probed: bool,
}

impl Row {
    pub(crate) fn of(delivery: &Delivery, now: Duration) -> Self {
        Self {
            number: delivery.number,
            message: delivery.message,
            attempts: delivery.attempts,
            round: delivery.round,
            started: delivery.started,
            due: now.saturating_add(delivery.due_in),
            accepted: now.saturating_sub(delivery.age),
            size: delivery.size,
            careful: false,
            alone: false,
            panics: 0,
            setbacks: 0,
            probed: false,
        }
    }
}

/// What the lane wants to be read from the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fetch {
    /// The next deliveries of a key.
    Key { key: KeyId, after: Number, ticket: u64, offered: Number },
    /// Deliveries that did not fit into memory.
    Forgotten { after: Number, ticket: u64 },
}

/// What becomes of the delivery in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has left the table.
    Gone,
    /// It is a dead letter that holds its key.
    Holds,
    /// Again at this time, after one more attempt if it was spent.
    Retry { due: Duration, spent: bool },
    /// It was not tried.
    Back,
    /// It failed as a probe, which costs nothing but its turn.
    Turn,
}
