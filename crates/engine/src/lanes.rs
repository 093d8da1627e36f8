//! What may go next to one destination: pure lane state, held in memory by the node that holds the
//! lanes. The table stays the truth; this remembers which keys are blocked, and why.
//!
//! ```text
//!            offer              take             settled: delivered, passed
//!  (table) ────────► Ready ──────────► InFlight ─────────────┬──► Ready (next in memory)
//!                      ▲                   │                 ├──► Fetching (more in the table)
//!                      │ due               ├─ retry ► Waiting│
//!                      └───────────────────┼─────────────────┘
//!                                          └─ dead, holds ► Held ── replayed, freed ──► Ready
//! ```

mod owned;
mod queue;
mod reading;
mod row;

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use pabal_core::{Delivery, Number, Order, slot};

pub(crate) use self::row::{Fetch, KeyId, Outcome, Row};
use self::{
    owned::Owned,
    queue::{Queue, State},
};

/// Of a blocked key so many deliveries stand in memory; of the rest only that there are more.
pub(crate) const ROWS_PER_KEY: usize = 32;

#[derive(Debug)]
pub(crate) struct Lanes {
    order: Order,
    queues: HashMap<KeyId, Queue>,
    ready: VecDeque<KeyId>,
    waiting: BTreeSet<(Duration, KeyId)>,
    rows: usize,
    rows_max: usize,
    /// Everything up to this number was taken in.
    seen: Number,
    /// The highest number offered.
    offered: Number,
    /// Deliveries above this number did not fit and must be read again.
    forgotten: Option<Number>,
    /// A refill is under way, with this ticket, since this number was the highest one offered.
    refilling: Option<(u64, Number)>,
    /// Put back or found late while a refill is under way.
    aside: Vec<Delivery>,
    /// Of lanes that were given up, how many keys were in flight and still are.
    leaving: HashMap<u16, usize>,
    tickets: u64,
    owned: Owned,
}

impl Lanes {
    /// None of these lanes is held yet.
    pub(crate) fn new(order: Order, lanes: u16, rows_max: usize) -> Self {
        Self {
            order,
            queues: HashMap::new(),
            ready: VecDeque::new(),
            waiting: BTreeSet::new(),
            rows: 0,
            rows_max,
            seen: 0,
            offered: 0,
            forgotten: None,
            refilling: None,
            aside: Vec::new(),
            leaving: HashMap::new(),
            tickets: 0,
            owned: Owned::none_of(lanes),
        }
    }

    /// The same destination laid out anew: nothing of it is held or in flight. Answers to what was
    /// asked before are too old.
    pub(crate) fn laid_out(&self, order: Order, lanes: u16) -> Self {
        let (tickets, offered) = (self.tickets, self.offered);
        Self { tickets, offered, ..Self::new(order, lanes, self.rows_max) }
    }

    /// Takes a lane in. `careful`: it was taken over without a clean end. `read`: what is in the
    /// table already is still to come from the tail read; else it is asked for.
    pub(crate) fn gain(&mut self, index: u16, careful: bool, read: bool) {
        self.owned.gain(index, careful);
        if !read {
            // What is being read was asked for too early, and everything comes again.
            (self.refilling, self.forgotten) = (None, Some(0));
            self.aside.clear();
        }
    }

    /// Gives a lane up: what is not in flight is dropped at once.
    pub(crate) fn lose(&mut self, index: u16) {
        self.owned.lose(index);
        let Self { queues, owned, rows, .. } = self;
        let mut left = 0;
        queues.retain(|_, queue| {
            if owned.lane_of(queue.slot) != index {
                return true;
            }
            let in_flight = queue.state == State::InFlight;
            *rows -= queue.cut(usize::from(in_flight));
            queue.more = None;
            left += usize::from(in_flight);
            in_flight
        });
        self.leaving.insert(index, left);
        self.waiting.retain(|(_, key)| self.queues.contains_key(key));
    }

    /// Whether nothing of a lane is in flight here.
    pub(crate) fn is_drained(&self, index: u16) -> bool {
        self.leaving.get(&index).is_none_or(|left| *left == 0)
    }

    /// How many lanes are held, and of how many.
    pub(crate) fn share(&self) -> (u16, u16) {
        (self.owned.count(), self.owned.lanes())
    }

    /// What was there when lanes were taken over ends here.
    pub(crate) fn caught_up(&mut self, number: Number) {
        self.owned.caught_up(number);
    }

    fn key_of(&self, delivery: &Delivery) -> KeyId {
        match (self.order, &delivery.key) {
            (Order::All, _) => KeyId::All,
            (Order::Key, Some(key)) => KeyId::Key(Arc::clone(key)),
            (Order::Key, None) | (Order::None, _) => KeyId::Single(delivery.number),
        }
    }

    /// A dead letter holds this key (`None`: a message without one, which holds nothing but with
    /// `order = "all"` everything).
    pub(crate) fn hold(&mut self, key: Option<&str>) {
        let key = match (self.order, key) {
            (Order::All, _) => KeyId::All,
            (Order::Key, Some(key)) => KeyId::Key(key.into()),
            (Order::Key, None) | (Order::None, _) => return,
        };
        // `order = "all"` has one lane.
        let slot = if let KeyId::Key(key) = &key { slot(key) } else { 0 };
        if self.owned.holds(slot) {
            let queue = || Queue::new(slot, State::Held, None, Some(0));
            self.queues.entry(key).or_insert_with(queue);
        }
    }

    /// Deliveries of the tail read, in order of their numbers.
    pub(crate) fn offer(&mut self, deliveries: &[Delivery], now: Duration) {
        for delivery in deliveries {
            self.offered = self.offered.max(delivery.number);
            if delivery.number > self.seen && self.owned.holds(delivery.slot) {
                self.add(delivery, now);
            }
        }
    }

    /// A late commit, or a delivery put back: it may stand before others of its key. Held keys are
    /// left to [`Lanes::still_held`].
    ///
    /// The keys whose reading has to begin anew.
    #[must_use]
    pub(crate) fn offer_back(&mut self, deliveries: &[Delivery], now: Duration) -> Vec<KeyId> {
        let mut again = Vec::new();
        // What is read from now on may count on them.
        let highest = deliveries.iter().map(|delivery| delivery.number).max();
        self.offered = self.offered.max(highest.unwrap_or(0));
        if self.refilling.is_some() {
            // Whether the page that is being read has them is not known before it is there.
            self.aside.extend_from_slice(deliveries);
            return again;
        }
        for delivery in deliveries {
            if !self.owned.holds(delivery.slot) {
                continue;
            }
            let key = self.key_of(delivery);
            let row = self.row(delivery, now, false);
            let Some(queue) = self.queues.get_mut(&key) else {
                if self.forgotten.is_some_and(|after| delivery.number > after) {
                    // It is read again in its turn; older ones of its key may come before.
                    continue;
                }
                // What else the table has of this key is not known here.
                let more = (!matches!(key, KeyId::Single(_))).then_some(delivery.number);
                self.insert(delivery.slot, key, row, more);
                continue;
            };
            if queue.rows.iter().any(|known| known.number == row.number) {
                continue;
            }
            if queue.state == State::Held {
                continue;
            }
            // What is in flight stays where it is.
            let first = usize::from(queue.state == State::InFlight);
            let place = (first..queue.rows.len())
                .find(|place| queue.rows[*place].number > row.number)
                .unwrap_or(queue.rows.len());
            if place == queue.rows.len() && queue.more.is_some_and(|more| more < row.number) {
                queue.left = queue.left.max(row.number);
                if queue.state == State::Fetching {
                    // The answer under way may have been read before this one was there.
                    (queue.ticket, queue.asked) = (0, false);
                    if again.last() != Some(&key) {
                        again.push(key);
                    }
                }
                continue;
            }
            queue.rows.insert(place, row);
            self.rows += 1;
            match queue.state {
                State::Waiting(due) if place == 0 => {
                    self.waiting.remove(&(due, key.clone()));
                    self.make_ready(&key);
                }
                State::Fetching => self.make_ready(&key),
                _ => {}
            }
        }
        again
    }

    fn make_ready(&mut self, key: &KeyId) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.state = State::Ready;
            self.ready.push_back(key.clone());
        }
    }

    fn row(&self, delivery: &Delivery, now: Duration, head: bool) -> Row {
        let careful = head && self.owned.is_careful(delivery.slot, delivery.number);
        Row { careful, ..Row::of(delivery, now) }
    }

    /// Takes a delivery in that follows all that were taken in before. While something is forgotten
    /// nothing is put behind what stands in memory: what was forgotten may belong in between.
    fn add(&mut self, delivery: &Delivery, now: Duration) {
        let key = self.key_of(delivery);
        let row = self.row(delivery, now, true);
        let full = self.rows >= self.rows_max;
        let forgetful = self.forgotten.is_some();
        let Some(queue) = self.queues.get_mut(&key) else {
            if full && !forgetful {
                self.forgotten = Some(delivery.number - 1);
            }
            if !full && !forgetful {
                self.seen = delivery.number;
                self.insert(delivery.slot, key, row, None);
            }
            return;
        };
        if !forgetful {
            self.seen = delivery.number;
        }
        let known = queue.rows.back().is_some_and(|last| delivery.number <= last.number);
        if known {
            return;
        }
        if forgetful || full || queue.more.is_some() || queue.rows.len() >= ROWS_PER_KEY {
            queue.leave(delivery.number);
        } else {
            queue.rows.push_back(Row { careful: false, ..row });
            self.rows += 1;
        }
    }

    /// Takes in the first delivery of a key that is not known here; the rest of the key is read
    /// when its turn comes.
    fn admit(&mut self, delivery: &Delivery, now: Duration) {
        if !self.owned.holds(delivery.slot) {
            return;
        }
        let key = self.key_of(delivery);
        if let Some(queue) = self.queues.get_mut(&key) {
            if queue.rows.back().is_none_or(|last| delivery.number > last.number) {
                queue.leave(delivery.number);
            }
        } else if self.rows < self.rows_max {
            let row = self.row(delivery, now, true);
            let more = (!matches!(key, KeyId::Single(_))).then_some(delivery.number);
            self.insert(delivery.slot, key, row, more);
        }
    }

    /// Puts a key in. Due times are looked at when it is taken.
    fn insert(&mut self, slot: u8, key: KeyId, row: Row, more: Option<Number>) {
        self.rows += 1;
        self.ready.push_back(key.clone());
        self.queues.insert(key, Queue::new(slot, State::Ready, Some(row), more));
    }

    /// The next delivery that may go, round-robin over the keys.
    pub(crate) fn take(&mut self, now: Duration) -> Option<(KeyId, Row)> {
        self.wake(now);
        while let Some(key) = self.ready.pop_front() {
            let Some(queue) = self.queues.get_mut(&key) else { continue };
            let (State::Ready, Some(row)) = (queue.state, queue.rows.front()) else { continue };
            if row.due > now {
                queue.state = State::Waiting(row.due);
                self.waiting.insert((row.due, key));
                continue;
            }
            queue.state = State::InFlight;
            return Some((key, row.clone()));
        }
        None
    }

    /// The next delivery for a probe, whatever the due times: one that never failed before one that
    /// did, and of those the one whose turn is longest ago.
    pub(crate) fn take_for_probe(&mut self) -> Option<(KeyId, Row)> {
        let is_ready = |queue: &Queue| queue.state == State::Ready && !queue.rows.is_empty();
        let key = loop {
            match self.ready.pop_front() {
                Some(key) if self.queues.get(&key).is_some_and(is_ready) => break key,
                Some(_) => {}
                None => break self.waiting.pop_first()?.1,
            }
        };
        let queue = self.queues.get_mut(&key)?;
        queue.state = State::InFlight;
        queue.rows.front().cloned().map(|row| (key, row))
    }

    /// The destination is open again: what failed as a probe may go at once.
    pub(crate) fn opened(&mut self, now: Duration) {
        self.hasten(now, |row| row.probed);
    }

    /// What waits for a time and is chosen may go at once.
    pub(crate) fn hasten(&mut self, now: Duration, chosen: impl Fn(&Row) -> bool) {
        let head = |key: &KeyId| self.queues.get(key).and_then(|queue| queue.rows.front());
        let is_chosen = |(_, key): &&(Duration, KeyId)| head(key).is_some_and(&chosen);
        let waiting: Vec<_> = self.waiting.iter().filter(is_chosen).cloned().collect();
        for waiting in waiting {
            self.waiting.remove(&waiting);
            let (_, key) = waiting;
            if let Some(row) = self.queues.get_mut(&key).and_then(|queue| queue.rows.front_mut()) {
                (row.probed, row.due) = (false, now);
            }
            self.make_ready(&key);
        }
    }

    fn wake(&mut self, now: Duration) {
        while let Some((due, _)) = self.waiting.first()
            && *due <= now
        {
            if let Some((_, key)) = self.waiting.pop_first() {
                self.make_ready(&key);
            }
        }
    }

    /// When the next delivery falls due; `None`: nothing is ready or waits for a time.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        if self.ready.is_empty() {
            self.waiting.first().map(|(due, _)| *due)
        } else {
            Some(Duration::ZERO)
        }
    }

    /// The delivery in flight of this key was settled, or was not tried.
    pub(crate) fn settled(&mut self, key: &KeyId, number: Number, outcome: Outcome) {
        let Some(queue) = self.queues.get_mut(key) else {
            return;
        };
        let Some(place) = queue.rows.iter().position(|row| row.number == number) else {
            return;
        };
        if !self.owned.holds(queue.slot) {
            // Whoever holds the lane now goes on with it.
            self.rows -= queue.rows.len();
            if let Some(left) = self.leaving.get_mut(&self.owned.lane_of(queue.slot)) {
                *left -= 1;
            }
            self.queues.remove(key);
            return;
        }
        match outcome {
            Outcome::Gone => {
                queue.rows.remove(place);
                self.rows -= 1;
                self.go_on(key);
            }
            Outcome::Holds => {
                queue.rows.remove(place);
                self.rows -= 1;
                if matches!(key, KeyId::Single(_)) {
                    self.go_on(key);
                } else {
                    self.tickets += 1;
                    (queue.state, queue.ticket) = (State::Held, self.tickets);
                    // Read again once it is free, so that held keys leave room for others.
                    self.rows -= queue.cut(0);
                    queue.more = Some(0);
                }
            }
            Outcome::Retry { due, spent } => {
                let row = &mut queue.rows[place];
                row.due = due;
                row.attempts += u32::from(spent);
                row.started = 0;
                row.careful = false;
                queue.state = State::Waiting(due);
                self.waiting.insert((due, key.clone()));
                if self.rows * 2 > self.rows_max {
                    self.rows -= queue.cut(1);
                }
            }
            Outcome::Back => {
                queue.state = State::Ready;
                self.ready.push_front(key.clone());
            }
            Outcome::Turn => {
                let due = self.waiting.last().map_or(Duration::ZERO, |(due, _)| *due);
                let row = &mut queue.rows[place];
                row.probed = true;
                row.started = 0;
                row.careful = false;
                queue.state = State::Waiting(due + Duration::from_millis(1));
                self.waiting.insert((due + Duration::from_millis(1), key.clone()));
            }
        }
    }

    /// Remembers what a send told about a delivery, for the next one.
    pub(crate) fn mark(&mut self, key: &KeyId, number: Number, change: impl FnOnce(&mut Row)) {
        let row = self
            .queues
            .get_mut(key)
            .and_then(|queue| queue.rows.iter_mut().find(|row| row.number == number));
        if let Some(row) = row {
            change(row);
        }
    }

    fn go_on(&mut self, key: &KeyId) {
        let Some(queue) = self.queues.get_mut(key) else {
            return;
        };
        if !queue.rows.is_empty() {
            self.make_ready(key);
        } else if queue.more.is_some() {
            (queue.state, queue.asked) = (State::Fetching, false);
        } else {
            self.queues.remove(key);
        }
    }
}

#[cfg(test)]
#[path = "lanes_tests.rs"]
mod tests;
