//! A bound on the bodies in memory, of all destinations together.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// All bodies being sent together, in bytes.
const BYTES_MAX: u64 = 256 * 1024 * 1024;
const UNIT: u64 = 1024;

/// The memory of one node for bodies being sent. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Memory(Arc<Semaphore>);

/// Room for one body; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Room(#[expect(dead_code, reason = "held, not read")] OwnedSemaphorePermit);

impl Default for Memory {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new((BYTES_MAX / UNIT) as usize)))
    }
}

impl Memory {
    /// Room for a body of this size, if there is any now. One that is larger than all of it goes
    /// alone.
    pub(crate) fn room_for(&self, size: u64) -> Option<Room> {
        let units = size.div_ceil(UNIT).clamp(1, BYTES_MAX / UNIT);
        let units = u32::try_from(units).ok()?;
        Arc::clone(&self.0).try_acquire_many_owned(units).ok().map(Room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_being_sent_have_a_bound_together() {
        let memory = Memory::default();
        let half = memory.room_for(BYTES_MAX / 2).unwrap();
        let other = memory.room_for(BYTES_MAX / 2).unwrap();
        assert!(memory.room_for(0).is_none());
        drop(other);
        assert!(memory.room_for(1).is_some());
        drop(half);
        assert!(memory.room_for(u64::MAX).is_some());
    }
}
