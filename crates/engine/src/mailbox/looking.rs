//! Finds what may go: the oldest first, and past what may not go however much that is.
//!
//! Every look sees the front. Where the front is full of what may not go it sees, too, what came last
//! and some of the keys in their turn; and now and then all that waits, in a lap.

use std::{sync::Arc, time::Duration};

use pabal_core::{
    Delivery, LAPSED, Loaded, Message, Order, PullAsk, Pulled, Scan, StoreError, Which,
};
use tokio::sync::OwnedMutexGuard;

use super::{InHand, Mailbox, POLL, POLL_WHILE_OUT, handout};
use crate::{Event, memory::Room};

/// Bodies of one pull together, in bytes; one goes whatever its size.
const BYTES_MAX: u64 = 8 * 1024 * 1024;
/// A lap goes on for so long in one look; the next look goes on where it stopped.
const LAP_IN_ONE_LOOK: Duration = Duration::from_millis(500);
/// Of its time a mailbox spends at most one part in so many on laps.
const LAP_PART: u32 = 20;
/// Pages of what came last in one look; beyond them a lap finds it.
const LAST_PAGES: usize = 4;

/// What one look leaves for the next one: hints, and no more.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// What lies behind this number came last.
    last: i64,
    /// The keys whose turn it is; `None`: the first ones.
    keys: Option<Scan>,
    lap: Option<Lap>,
    /// Before this time no lap begins.
    next_lap: Duration,
    /// As of this many rings nothing was there that could go before that time.
    nothing: Option<(u64, Duration)>,
}

/// A way through all that waits behind the front, by numbers and by keys: what is left of it.
#[derive(Debug)]
struct Lap {
    left: Vec<Scan>,
    cost: Duration,
}

impl Turn {
    pub(super) fn nothing_since(&self, rung: u64) -> Option<Duration> {
        self.nothing.filter(|(as_of, _)| *as_of == rung).map(|(_, again)| again)
    }
}

/// What a look gave.
#[derive(Debug)]
pub(super) enum Found {
    Some(Batch),
    /// It is there, and there is no room in memory for it.
    NoRoom,
    Nothing {
        /// When to look again at the latest.
        again: Duration,
    },
}

/// Messages that were handed out, until somebody takes them.
#[derive(Debug)]
pub(super) struct Batch {
    hand: InHand,
    pulled: Vec<Pulled>,
}

impl Batch {
    /// Into the hands of whoever asked.
    pub(super) fn claim(mut self) -> Vec<Pulled> {
        self.hand.rows.clear();
        self.pulled
    }
}

/// A look under way.
struct Look {
    hand: InHand,
    max: usize,
    due_in: Option<Duration>,
    /// Spent ones were set aside, which may have freed others.
    buried: bool,
}

impl Look {
    /// Whether nothing more may come to what is in hand.
    fn is_full(&self) -> bool {
        let alone = self.hand.rows.first().is_some_and(|first| first.started > 0);
        alone || self.hand.rows.len() >= self.max || self.bytes_left() == 0
    }

    fn bytes_left(&self) -> u64 {
        let bytes: u64 = self.hand.rows.iter().map(|row| row.size).sum();
        BYTES_MAX.saturating_sub(bytes)
    }
}

impl Mailbox {
    pub(super) async fn look_now(
        self,
        mut turn: OwnedMutexGuard<Turn>,
        rung: u64,
        max: usize,
    ) -> Result<Found, StoreError> {
        let clock = Arc::clone(&self.0.start.clock);
        turn.nothing = None;
        loop {
            let hand = InHand { mailbox: self.clone(), rows: Vec::new() };
            let mut look = Look { hand, max, due_in: None, buried: false };
            self.gather(&mut turn, &mut look).await?;
            if !look.hand.rows.is_empty() {
                if let Some(found) = self.fetch(look.hand).await? {
                    return Ok(found);
                }
            } else if !look.buried {
                let net = if look.due_in.is_some() { POLL_WHILE_OUT } else { POLL };
                let again = clock.elapsed().saturating_add(look.due_in.unwrap_or(net).min(net));
                turn.nothing = Some((rung, again));
                return Ok(Found::Nothing { again });
            }
        }
    }

    /// Takes what may go.
    async fn gather(&self, turn: &mut Turn, look: &mut Look) -> Result<(), StoreError> {
        let order = self.0.start.order;
        let Some(behind) = self.page(Scan::Numbers(0), look).await? else {
            // It was seen whole.
            return Ok(());
        };
        if order == Order::All {
            return Ok(());
        }
        self.see_the_last(turn, &behind, look).await?;
        if order == Order::Key && !look.is_full() {
            let before = look.hand.rows.len();
            let scan = turn.keys.clone().unwrap_or(Scan::Keys(None));
            let next = self.page(scan, look).await?;
            // Where something was found there may be more the next time.
            if look.hand.rows.len() == before {
                turn.keys = next;
            }
        }
        if look.hand.rows.is_empty() && !look.buried {
            self.lap(turn, behind, look).await?;
        }
        Ok(())
    }

    /// What came since the last look is behind everything else, with a key or without.
    async fn see_the_last(
        &self,
        turn: &mut Turn,
        behind: &Scan,
        look: &mut Look,
    ) -> Result<(), StoreError> {
        if let Scan::Numbers(front) = behind {
            turn.last = turn.last.max(*front);
        }
        for _ in 0..LAST_PAGES {
            if look.is_full() {
                break;
            }
            let before = look.hand.rows.len();
            match self.page(Scan::Numbers(turn.last), look).await? {
                Some(Scan::Numbers(next)) if look.hand.rows.len() == before => turn.last = next,
                _ => break,
            }
        }
        Ok(())
    }

    /// Goes on with the lap, or begins one if it is time.
    async fn lap(&self, turn: &mut Turn, behind: Scan, look: &mut Look) -> Result<(), StoreError> {
        let clock = &self.0.start.clock;
        let begun = clock.elapsed();
        if begun < turn.next_lap {
            return Ok(());
        }
        let mut lap = turn.lap.take().unwrap_or_else(|| {
            let keys = (self.0.start.order == Order::Key).then_some(Scan::Keys(None));
            let left = std::iter::once(behind).chain(keys).collect();
            Lap { left, cost: Duration::ZERO }
        });
        let mut spent = Duration::ZERO;
        while let Some(scan) = lap.left.first().cloned()
            && look.hand.rows.is_empty()
            && !look.buried
            && spent < LAP_IN_ONE_LOOK
        {
            let next = self.page(scan.clone(), look).await?;
            if look.hand.rows.is_empty() {
                // In turns, by numbers and by keys.
                lap.left.remove(0);
                lap.left.extend(next);
            }
            spent = clock.elapsed().saturating_sub(begun);
        }
        lap.cost += spent;
        let found = !look.hand.rows.is_empty() || look.buried;
        let pause =
            if lap.left.is_empty() { POLL.max(lap.cost * LAP_PART) } else { spent * LAP_PART };
        if !found {
            turn.next_lap = clock.elapsed().saturating_add(pause);
        }
        turn.lap = Some(lap).filter(|lap| !lap.left.is_empty());
        Ok(())
    }

    /// One page of the store; where it goes on.
    async fn page(&self, scan: Scan, look: &mut Look) -> Result<Option<Scan>, StoreError> {
        let start = &self.0.start;
        let ask = PullAsk {
            order: start.order,
            scan,
            max: look.max.saturating_sub(look.hand.rows.len()),
            bytes_max: look.bytes_left(),
            lease: start.lease,
            attempts_max: start.retry.attempts,
            unsuspected: !look.hand.rows.is_empty(),
        };
        let page = start.store.pull(&start.name, &ask).await?;
        for lapsed in page.taken.iter().chain(&page.spent).filter(|row| row.started > 0) {
            tracing::warn!(
                destination = %start.name, message_id = %lapsed.message,
                attempt = lapsed.attempts + lapsed.started, "{LAPSED}"
            );
        }
        for lapsed in page.taken.iter().filter(|row| row.started > 0) {
            start.observer.observe(Event::Attempt {
                destination: &start.name,
                message: lapsed.message,
                outcome: "transient",
                spent: true,
                duration: start.lease,
            });
        }
        look.hand.rows.extend(page.taken);
        look.due_in = look.due_in.into_iter().chain(page.due_in).min();
        if !page.spent.is_empty() {
            look.buried = true;
            self.bury(&page.spent).await?;
        }
        Ok(page.next)
    }

    /// Fetches the messages of what was taken; `None`: all of them were settled meanwhile.
    async fn fetch(&self, mut hand: InHand) -> Result<Option<Found>, StoreError> {
        let start = &self.0.start;
        let mut rooms = Vec::new();
        for row in &hand.rows {
            match start.memory.room_for(row.size) {
                Some(room) => rooms.push(room),
                None => break,
            }
        }
        if rooms.is_empty() {
            return Ok(Some(Found::NoRoom));
        }
        let rest = hand.rows.split_off(rooms.len());
        // Dropped, it goes back.
        drop(InHand { mailbox: self.clone(), rows: rest });
        let ids: Vec<_> = hand.rows.iter().map(|row| (row.number, row.message)).collect();
        let loaded = start.store.load(&ids).await?;
        let (mut pulled, mut missing) = (Vec::new(), Vec::new());
        for ((row, room), loaded) in hand.rows.iter().zip(rooms).zip(loaded) {
            match loaded.and_then(message) {
                Some(message) => pulled.push(pulled_of(row, message, room)),
                None => missing.push(row.clone()),
            }
        }
        let is_missing = |row: &Delivery| missing.iter().any(|it| it.number == row.number);
        hand.rows.retain(|row| !is_missing(row));
        self.look_for(missing).await?;
        Ok((!pulled.is_empty()).then_some(Found::Some(Batch { hand, pulled })))
    }

    /// Those whose message is not there: settled meanwhile, or without a body.
    async fn look_for(&self, missing: Vec<Delivery>) -> Result<(), StoreError> {
        if missing.is_empty() {
            return Ok(());
        }
        let numbers: Vec<_> = missing.iter().map(|row| row.number).collect();
        let there = self.0.start.store.deliveries(Which::Numbers(&numbers), numbers.len()).await?;
        let gone = |row: &&Delivery| there.iter().any(|it| it.number == row.number);
        let gone: Vec<_> = missing.iter().filter(gone).cloned().collect();
        self.bury_without_body(&gone).await
    }
}

fn pulled_of(row: &Delivery, message: Message, room: Room) -> Pulled {
    Pulled { handout: handout(row), message, room: Box::new(room) }
}

/// As it is pinned, if it is, and with its body; `None`: the body is not here.
fn message(loaded: Loaded) -> Option<Message> {
    let Loaded { mut message, written } = loaded;
    if let Some(written) = written {
        message.body = pabal_core::Body::Inline(written.body);
        message.content_type = written.content_type;
    }
    message.body.inline().is_some().then_some(message)
}
