//! A bound on the bodies in memory, of all destinations together.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bodies up to this size share one room, larger ones another, so that many small ones cannot keep
/// a large one out for ever; in bytes.
const SMALL_BYTES_MAX: u64 = 1024 * 1024;
/// All bodies of one room being sent together, in bytes.
const ROOM_BYTES: u64 = 128 * 1024 * 1024;
const UNIT: u64 = 1024;

/// The memory of one node for bodies being sent. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

/// Room for one body; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Room(#[expect(dead_code, reason = "held, not read")] OwnedSemaphorePermit);

impl Default for Memory {
    fn default() -> Self {
        let room = || Arc::new(Semaphore::new((ROOM_BYTES / UNIT) as usize));
        Self { small: room(), large: room() }
    }
}

impl Memory {
    /// Room for a body of this size, if there is any now. One that is larger than all of it goes
    /// alone among the large ones.
    pub(crate) fn room_for(&self, size: u64) -> Option<Room> {
        let room = if size <= SMALL_BYTES_MAX { &self.small } else { &self.large };
        let units = size.div_ceil(UNIT).clamp(1, ROOM_BYTES / UNIT);
        let units = u32::try_from(units).ok()?;
        Arc::clone(room).try_acquire_many_owned(units).ok().map(Room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_being_sent_have_a_bound_together_and_small_ones_keep_no_large_one_out() {
        let memory = Memory::default();
        let small: Vec<_> = std::iter::from_fn(|| memory.room_for(SMALL_BYTES_MAX)).collect();
        assert_eq!(small.len(), 128);
        let huge = memory.room_for(u64::MAX).unwrap();
        assert!(memory.room_for(SMALL_BYTES_MAX + 1).is_none());
        drop(huge);
        assert!(memory.room_for(SMALL_BYTES_MAX + 1).is_some());
        drop(small);
        assert!(memory.room_for(0).is_some());
    }
}
