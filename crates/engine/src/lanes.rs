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

mod row;

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use pabal_core::{Delivery, Number, Order};

pub(crate) use self::row::{Fetch, KeyId, Outcome, Row};

/// Of a blocked key so many deliveries stand in memory; of the rest only that there are more.
pub(crate) const ROWS_PER_KEY: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    InFlight,
    Waiting(Duration),
    Fetching,
    Held(Number),
}

#[derive(Debug)]
struct Queue {
    state: State,
    rows: VecDeque<Row>,
    /// The table has further deliveries of this key above this number.
    more: Option<Number>,
}

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
    refilling: bool,
    /// Deliveries up to this number were there when the lane was taken over without a clean end.
    careful_up_to: Number,
}

impl Lanes {
    /// `careful`: taken over without a clean end; until [`Lanes::caught_up`] everything was there.
    pub(crate) fn new(order: Order, rows_max: usize, careful: bool) -> Self {
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
            refilling: false,
            careful_up_to: if careful { Number::MAX } else { 0 },
        }
    }

    /// What was there at take-over ends here.
    pub(crate) fn caught_up(&mut self, number: Number) {
        self.careful_up_to = self.careful_up_to.min(number);
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
    pub(crate) fn hold(&mut self, key: Option<&str>, number: Number) {
        let key = match (self.order, key) {
            (Order::All, _) => KeyId::All,
            (Order::Key, Some(key)) => KeyId::Key(key.into()),
            (Order::Key, None) | (Order::None, _) => return,
        };
        self.queues.entry(key).or_insert_with(|| Queue {
            state: State::Held(number),
            rows: VecDeque::new(),
            more: Some(0),
        });
    }

    /// Deliveries of the tail read, in order of their numbers.
    pub(crate) fn offer(&mut self, deliveries: &[Delivery], now: Duration) {
        for delivery in deliveries {
            if delivery.number <= self.seen {
                continue;
            }
            if self.forgotten.is_none() || self.queues.contains_key(&self.key_of(delivery)) {
                self.add(delivery, now);
            }
            self.offered = self.offered.max(delivery.number);
            if self.forgotten.is_none() {
                self.seen = delivery.number;
            }
        }
    }

    /// A late commit, or a delivery put back: it may stand before others of its key. Held keys are
    /// left to [`Lanes::still_held`].
    pub(crate) fn offer_back(&mut self, deliveries: &[Delivery], now: Duration) {
        for delivery in deliveries {
            let key = self.key_of(delivery);
            let row = self.row(delivery, now, false);
            let Some(queue) = self.queues.get_mut(&key) else {
                let more = (!matches!(key, KeyId::Single(_))).then_some(delivery.number);
                self.insert(key, Queue { state: State::Ready, rows: [row].into(), more });
                continue;
            };
            if queue.rows.iter().any(|known| known.number == row.number) {
                continue;
            }
            if matches!(queue.state, State::Held(_)) {
                continue;
            }
            // What is in flight stays where it is.
            let first = usize::from(queue.state == State::InFlight);
            let place = (first..queue.rows.len())
                .find(|place| queue.rows[*place].number > row.number)
                .unwrap_or(queue.rows.len());
            if place == queue.rows.len() && queue.more.is_some_and(|more| more < row.number) {
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
    }

    fn make_ready(&mut self, key: &KeyId) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.state = State::Ready;
            self.ready.push_back(key.clone());
        }
    }

    fn row(&self, delivery: &Delivery, now: Duration, head: bool) -> Row {
        let careful = head && delivery.number <= self.careful_up_to;
        Row { careful, ..Row::of(delivery, now) }
    }

    fn add(&mut self, delivery: &Delivery, now: Duration) {
        let key = self.key_of(delivery);
        let Some(queue) = self.queues.get(&key) else {
            if self.rows >= self.rows_max {
                self.forgotten = Some(delivery.number - 1);
                return;
            }
            let row = self.row(delivery, now, true);
            self.insert(key, Queue { state: State::Ready, rows: [row].into(), more: None });
            return;
        };
        let last = queue.rows.back().map(|row| row.number);
        if queue.more.is_some() || last.is_some_and(|last| delivery.number <= last) {
            return;
        }
        if queue.rows.len() >= ROWS_PER_KEY || self.rows >= self.rows_max {
            let more = last.unwrap_or(delivery.number - 1);
            self.queues.entry(key).and_modify(|queue| queue.more = Some(more));
            return;
        }
        let row = self.row(delivery, now, false);
        self.queues.entry(key).and_modify(|queue| queue.rows.push_back(row));
        self.rows += 1;
    }

    /// Puts a queue with one row in.
    fn insert(&mut self, key: KeyId, mut queue: Queue) {
        self.rows += queue.rows.len();
        // Due times are looked at when it is taken.
        queue.state = State::Ready;
        self.ready.push_back(key.clone());
        self.queues.insert(key, queue);
    }

    /// The next delivery that may go, round-robin over the keys.
    pub(crate) fn take(&mut self, now: Duration) -> Option<(KeyId, Row)> {
        self.wake(now);
        while let Some(key) = self.ready.pop_front() {
            let Some(queue) = self.queues.get_mut(&key) else {
                continue;
            };
            let Some(row) = queue.rows.front() else {
                continue;
            };
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
        let key = loop {
            match self.ready.pop_front() {
                Some(key) if self.queues.get(&key).is_some_and(|q| !q.rows.is_empty()) => {
                    break key;
                }
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
        let probed: Vec<KeyId> = self
            .waiting
            .iter()
            .filter(|(_, key)| {
                self.queues.get(key).and_then(|q| q.rows.front()).is_some_and(|row| row.probed)
            })
            .map(|(_, key)| key.clone())
            .collect();
        for key in probed {
            let Some(queue) = self.queues.get_mut(&key) else {
                continue;
            };
            if let State::Waiting(due) = queue.state {
                self.waiting.remove(&(due, key.clone()));
            }
            if let Some(row) = queue.rows.front_mut() {
                row.probed = false;
                row.due = now;
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
                    queue.state = State::Held(number);
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
            queue.state = State::Fetching;
        } else {
            self.queues.remove(key);
        }
    }

    /// What is to be read from the table now; answered by [`Lanes::fetched`].
    pub(crate) fn wants(&mut self, key: &KeyId) -> Option<Fetch> {
        let queue = self.queues.get(key)?;
        (queue.state == State::Fetching).then_some(())?;
        queue.more.map(|after| Fetch::Key { key: key.clone(), after })
    }

    /// Whether what did not fit into memory is to be read now.
    pub(crate) fn wants_refill(&mut self) -> Option<Fetch> {
        let after = self.forgotten.filter(|_| !self.refilling && self.rows * 2 < self.rows_max)?;
        self.refilling = true;
        Some(Fetch::Forgotten { after })
    }

    /// The answer to a fetch; `complete`: the table has no further ones.
    pub(crate) fn fetched(
        &mut self,
        fetch: &Fetch,
        deliveries: &[Delivery],
        complete: bool,
        now: Duration,
    ) {
        match fetch {
            Fetch::Key { key, after } => {
                let rows: Vec<Row> =
                    deliveries.iter().map(|delivery| self.row(delivery, now, false)).collect();
                let Some(queue) = self.queues.get_mut(key) else {
                    return;
                };
                // Something was put back in between: read again behind it.
                if queue.state != State::Fetching || queue.more != Some(*after) {
                    return;
                }
                queue.more = match rows.last() {
                    Some(last) if !complete => Some(last.number),
                    _ => None,
                };
                self.rows += rows.len();
                queue.rows.extend(rows);
                self.go_on(key);
            }
            Fetch::Forgotten { .. } => {
                self.refilling = false;
                self.forgotten = None;
                self.offer(deliveries, now);
                // More in the table, or offered while this was read: go on from here.
                if self.forgotten.is_none() && (!complete || self.offered > self.seen) {
                    self.forgotten = Some(self.seen);
                }
            }
            Fetch::Sweep { .. } => {
                for delivery in deliveries {
                    self.add(delivery, now);
                }
            }
        }
    }

    /// These keys, with these numbers, are still held by dead letters; the other held ones are free
    /// and are returned, to be fetched.
    pub(crate) fn still_held(&mut self, held: &[(Option<String>, Number)]) -> Vec<KeyId> {
        let still: Vec<KeyId> = held
            .iter()
            .filter_map(|(key, _)| match (self.order, key) {
                (Order::All, _) => Some(KeyId::All),
                (_, Some(key)) => Some(KeyId::Key(key.as_str().into())),
                (_, None) => None,
            })
            .collect();
        let mut freed = Vec::new();
        for (key, queue) in &mut self.queues {
            if matches!(queue.state, State::Held(_)) && !still.contains(key) {
                queue.state = State::Fetching;
                // Whatever stands in memory is read again, in order.
                self.rows -= queue.rows.len();
                queue.rows.clear();
                queue.more = Some(0);
                freed.push(key.clone());
            }
        }
        freed
    }
}

#[cfg(test)]
#[path = "lanes_tests.rs"]
mod tests;
