//! Which slots of the destination this node holds, and how carefully each lane was taken over.

use std::collections::BTreeMap;

use pabal_core::Number;

/// A lane is a set of slots: those with `slot % lanes == index`.
#[derive(Debug)]
pub(super) struct Owned {
    lanes: u16,
    /// Of each lane held: deliveries up to this number were there when it was taken over without a
    /// clean end, and may have been in flight then.
    careful_up_to: BTreeMap<u16, Number>,
}

impl Owned {
    pub(super) fn none_of(lanes: u16) -> Self {
        Self { lanes: lanes.max(1), careful_up_to: BTreeMap::new() }
    }

    pub(super) fn lane_of(&self, slot: u8) -> u16 {
        u16::from(slot) % self.lanes
    }

    pub(super) fn holds(&self, slot: u8) -> bool {
        self.careful_up_to.contains_key(&self.lane_of(slot))
    }

    pub(super) fn is_careful(&self, slot: u8, number: Number) -> bool {
        self.careful_up_to.get(&self.lane_of(slot)).is_some_and(|up_to| number <= *up_to)
    }

    pub(super) fn gain(&mut self, index: u16, careful: bool) {
        self.careful_up_to.insert(index, if careful { Number::MAX } else { 0 });
    }

    pub(super) fn lose(&mut self, index: u16) {
        self.careful_up_to.remove(&index);
    }

    /// What was there at take-over ends here.
    pub(super) fn caught_up(&mut self, number: Number) {
        for up_to in self.careful_up_to.values_mut() {
            *up_to = (*up_to).min(number);
        }
    }

    pub(super) fn count(&self) -> u16 {
        u16::try_from(self.careful_up_to.len()).unwrap_or(u16::MAX)
    }

    pub(super) fn lanes(&self) -> u16 {
        self.lanes
    }
}
