//! One key's deliveries in memory.

use std::{collections::VecDeque, time::Duration};

use pabal_core::Number;

use super::Row;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    InFlight,
    Waiting(Duration),
    Fetching,
    Held,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) slot: u8,
    pub(super) state: State,
    pub(super) rows: VecDeque<Row>,
    /// The table may have further deliveries of this key above this number.
    pub(super) more: Option<Number>,
    /// The highest number that was offered and left to be read because of `more`.
    pub(super) left: Number,
    /// Of the last fetch or hold; the answer to an earlier one is too old.
    pub(super) ticket: u64,
    /// A fetch with this ticket is under way.
    pub(super) asked: bool,
}

impl Queue {
    pub(super) fn new(slot: u8, state: State, row: Option<Row>, more: Option<Number>) -> Self {
        Self {
            slot,
            state,
            rows: row.into_iter().collect(),
            more,
            left: 0,
            ticket: 0,
            asked: false,
        }
    }

    /// Leaves a delivery to be read from the table, behind what stands in memory.
    pub(super) fn leave(&mut self, number: Number) {
        let last = self.rows.back().map_or(number - 1, |row| row.number);
        self.more.get_or_insert(last);
        self.left = self.left.max(number);
    }

    /// Forgets what stands in memory behind the first `keep` deliveries.
    pub(super) fn cut(&mut self, keep: usize) -> usize {
        let cut = self.rows.drain(keep.min(self.rows.len())..).map(|row| row.number);
        let numbers: Vec<Number> = cut.collect();
        if let Some(first) = numbers.first() {
            self.more = Some(self.more.map_or(first - 1, |more| more.min(first - 1)));
        }
        numbers.len()
    }
}
