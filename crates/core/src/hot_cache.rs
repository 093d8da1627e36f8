//! A memory of what was taken lately, in front of the store's.

use std::fmt::Debug;

use async_trait::async_trait;

use crate::MessageId;

/// Says which messages have probably been taken already, so that the store is only asked about them
/// and need not be written to. It may forget any of them at any time, and it may be wrong: what it
/// says is only a hint, and the store decides. So it neither loses a message nor lets one in twice,
/// whatever happens to it.
///
/// It never fails: one that cannot answer in time has seen nothing.
#[async_trait]
pub trait HotCache: Debug + Send + Sync {
    /// Which of these it has seen: as many answers, in the same order.
    async fn seen(&self, messages: &[MessageId]) -> Vec<bool>;

    /// These were taken, durably.
    async fn note(&self, messages: &[MessageId]);
}
