//! What a store keeps, for how long, and how it is.

use std::time::Duration;

use serde::{Deserialize, Serialize};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// For how long what is over is kept. What still waits, holds or is dead is kept whatever its age.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// Messages with their bodies, after they were received.
    pub bodies: Duration,
    /// The delivery log.
    pub history: Duration,
    /// The ids by which repeats are known, after they were last seen; at least as long as the message
    /// itself.
    pub inbox: Duration,
    /// Dead letters that hold no key.
    pub dead_letters: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { bodies: 7 * DAY, history: 365 * DAY, inbox: 90 * DAY, dead_letters: 90 * DAY }
    }
}

/// What a call of [`crate::Store::housekeep`] removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Housekeeping {
    /// Messages, as far as they are counted: a dropped partition counts as what was in it.
    pub messages: u64,
    /// Lines of the delivery log, counted likewise.
    pub log: u64,
    /// Remembered ids.
    pub inbox: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// There is more to remove.
    pub more: bool,
}

impl Housekeeping {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            messages: self.messages + other.messages,
            log: self.log + other.log,
            inbox: self.inbox + other.inbox,
            dead_letters: self.dead_letters + other.dead_letters,
            more: self.more || other.more,
        }
    }
}

/// How a store is; `None` where it has no such thing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Vitals {
    /// Whether it hears of other nodes' writes at once.
    pub listening: Option<bool>,
    /// How often it had to listen anew since it was opened.
    pub relistened: u64,
    /// The age of the oldest open transaction of its database, in seconds: it keeps what was deleted
    /// from being cleaned up.
    pub oldest_transaction: Option<f64>,
    /// For how many days ahead there is room for what arrives; below 1 something is wrong.
    pub days_ahead: Option<i64>,
}
