//! One tail read per node: new deliveries of all destinations, late commits, and what operators
//! ask for.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pabal_core::{Clock, Delivery, EndpointName, Number, Request, Stop, Store, StoreError, Which};
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use crate::{dispatcher::Signal, inbox::Inbox, mailbox::Mailbox};

/// Deliveries of one read.
const PAGE: usize = 1_000;
/// Pages that dispatchers have not taken in yet.
pub(crate) const PAGES_UNDER_WAY: usize = 16;
/// The net under the wake-ups.
const POLL: Duration = Duration::from_secs(5);

/// Wakes the tail read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wake {
    pub(crate) committed: Arc<Notify>,
    asked: Arc<AtomicBool>,
}

impl Wake {
    /// Looks for requests as well.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        self.committed.notify_one();
    }
}

pub(crate) struct Tail {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) wake: Wake,
    pub(crate) stop: Stop,
    pub(crate) dispatchers: HashMap<EndpointName, mpsc::UnboundedSender<Signal>>,
    /// Of destinations that are fetched from.
    pub(crate) mailboxes: HashMap<EndpointName, Mailbox>,
    pub(crate) inboxes: HashMap<EndpointName, Inbox>,
    /// Requests up to this one were known at the start.
    pub(crate) request: i64,
    pub(crate) pages: Arc<Semaphore>,
    /// All endpoints that any live node knows.
    pub(crate) known: watch::Receiver<HashSet<EndpointName>>,
}

impl Tail {
    pub(crate) async fn run(mut self) {
        let mut position = Position::default();
        let mut told = false;
        let mut ask = true;
        loop {
            if let Err(error) = self.read(&mut position, ask).await {
                tracing::warn!(%error, "reading new deliveries is tried again");
            } else if !told {
                told = true;
                for dispatcher in self.dispatchers.values() {
                    let _ = dispatcher.send(Signal::CaughtUp(position.tail));
                }
            }
            let (clock, store) = (Arc::clone(&self.clock), Arc::clone(&self.store));
            tokio::select! {
                () = self.stop.wait() => return,
                () = self.wake.committed.notified() => {
                    ask = self.wake.asked.swap(false, Ordering::AcqRel);
                }
                () = store.changed() => ask = true,
                () = clock.sleep(POLL) => ask = true,
            }
        }
    }

    async fn read(&mut self, position: &mut Position, ask: bool) -> Result<(), StoreError> {
        loop {
            let mut complete = false;
            if position.read.is_empty() {
                let which = Which::Tail { after: position.tail };
                position.read = self.store.deliveries(which, PAGE).await?;
                complete = position.read.len() < PAGE;
                position.pass(self.store.late_commits_for(), self.clock.elapsed());
            }
            // Looked for after the page was read, and handed out with it in the order of the numbers: of
            // the same key one of the page may be younger than it, and another one older.
            let missed = position.missed(self.clock.elapsed());
            if !missed.is_empty() {
                let rows = self.store.deliveries(Which::Numbers(&missed), missed.len()).await?;
                for (destination, rows) in by_destination(position.found(rows)) {
                    self.ring(&destination);
                    if let Some(dispatcher) = self.dispatchers.get(&destination) {
                        let _ = dispatcher.send(Signal::Late(rows));
                    }
                }
            }
            let rows = std::mem::take(&mut position.read);
            self.hand_out(rows, &mut position.strangers).await;
            if complete {
                break;
            }
        }
        if ask {
            for (id, request) in self.store.requests(self.request).await? {
                self.heed(request).await?;
                self.request = id;
            }
        }
        Ok(())
    }

    async fn hand_out(&self, rows: Vec<Delivery>, strangers: &mut HashSet<EndpointName>) {
        for (destination, rows) in by_destination(rows) {
            match self.dispatchers.get(&destination) {
                Some(dispatcher) => {
                    let Ok(permit) = Arc::clone(&self.pages).acquire_owned().await else {
                        return;
                    };
                    // A dispatcher that has ended leaves its rows in the table.
                    let _ = dispatcher.send(Signal::Rows(rows, permit));
                }
                None if self.mailboxes.contains_key(&destination) => self.ring(&destination),
                // Another node's business, whose configuration is another one.
                None if self.known.borrow().contains(&destination) => {}
                None if strangers.insert(destination.clone()) => tracing::error!(
                    alert = true, %destination,
                    "deliveries wait for a destination that is not configured"
                ),
                None => {}
            }
        }
    }

    fn ring(&self, destination: &EndpointName) {
        if let Some(mailbox) = self.mailboxes.get(destination) {
            mailbox.ring();
        }
    }

    async fn heed(&self, request: Request) -> Result<(), StoreError> {
        let tell = |destination: &EndpointName, signal: Signal| {
            self.ring(destination);
            if let Some(dispatcher) = self.dispatchers.get(destination) {
                let _ = dispatcher.send(signal);
            }
        };
        match request {
            Request::Requeued(numbers) => {
                for (destination, numbers) in numbers {
                    tell(&destination, Signal::Changed(numbers));
                }
            }
            Request::Freed(destinations) => {
                for destination in destinations {
                    tell(&destination, Signal::Changed(Vec::new()));
                }
            }
            Request::Health(endpoint) => tell(&endpoint, Signal::Health),
            Request::Link(endpoint) => {
                let states = self.store.link_states().await?;
                let state = states.into_iter().find(|state| state.endpoint == endpoint);
                let paused = state.is_some_and(|state| state.paused.is_some());
                if let Some(inbox) = self.inboxes.get(&endpoint) {
                    inbox.pause(paused);
                }
                if let Some(mailbox) = self.mailboxes.get(&endpoint) {
                    mailbox.pause(paused);
                }
                tell(&endpoint, Signal::Paused(paused));
            }
        }
        Ok(())
    }
}

fn by_destination(rows: Vec<Delivery>) -> HashMap<EndpointName, Vec<Delivery>> {
    let mut groups: HashMap<EndpointName, Vec<Delivery>> = HashMap::new();
    for row in rows {
        groups.entry(row.destination.clone()).or_default().push(row);
    }
    groups
}

/// How far the tail was read, and which numbers it skipped: those may still appear, because a
/// number is given before its transaction commits.
#[derive(Debug, Default)]
struct Position {
    tail: Number,
    skipped: BTreeMap<Number, Duration>,
    /// Read and not handed out yet.
    read: Vec<Delivery>,
    strangers: HashSet<EndpointName>,
}

/// More skipped numbers than this are left to the sweep.
const SKIPPED_MAX: usize = 10_000;

impl Position {
    fn pass(&mut self, late_for: Duration, now: Duration) {
        for row in &self.read {
            if !late_for.is_zero() {
                let room = SKIPPED_MAX.saturating_sub(self.skipped.len());
                // Before the first one almost everything was settled long ago; but what was given
                // just before it may still be on its way.
                let room = if self.tail == 0 { room.min(SKIPPED_MAX / 2) } else { room };
                let skipped = (self.tail + 1..row.number).rev().take(room);
                self.skipped.extend(skipped.map(|number| (number, now + late_for)));
            }
            self.tail = row.number;
        }
    }

    fn missed(&mut self, now: Duration) -> Vec<Number> {
        self.skipped.retain(|_, until| *until >= now);
        self.skipped.keys().copied().collect()
    }

    /// Skipped ones that have appeared: those that are older than all that was read last, in order.
    /// The others take their places in it.
    fn found(&mut self, mut rows: Vec<Delivery>) -> Vec<Delivery> {
        for row in &rows {
            self.skipped.remove(&row.number);
        }
        let first = self.read.first().map_or(Number::MAX, |row| row.number);
        rows.sort_unstable_by_key(|row| row.number);
        let between = rows.split_off(rows.partition_point(|row| row.number < first));
        self.read.extend(between);
        self.read.sort_unstable_by_key(|row| row.number);
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: Number) -> Delivery {
        Delivery {
            number,
            message: pabal_core::MessageId::UNASSIGNED,
            destination: "p/d".parse().unwrap(),
            slot: 0,
            key: None,
            attempts: 0,
            round: 0,
            started: 0,
            due_in: Duration::ZERO,
            age: Duration::ZERO,
            size: 0,
        }
    }

    fn numbers(rows: &[Delivery]) -> Vec<Number> {
        rows.iter().map(|row| row.number).collect()
    }

    #[test]
    fn what_was_skipped_is_looked_for_and_takes_its_place_among_what_was_read() {
        let (late_for, now) = (Duration::from_secs(60), Duration::ZERO);
        let mut position = Position { tail: 10, ..Position::default() };
        position.read = vec![row(12)];
        position.pass(late_for, now);
        position.read = vec![row(14), row(17)];
        position.pass(late_for, now);
        assert_eq!(position.missed(now), [11, 13, 15, 16]);
        let older = position.found(vec![row(16), row(11), row(13)]);
        assert_eq!((numbers(&older), numbers(&position.read)), (vec![11, 13], vec![14, 16, 17]));
        assert_eq!(position.missed(now), [15]);
        position.read.clear();
        assert_eq!(numbers(&position.found(vec![row(15)])), [15]);
        assert!(position.read.is_empty() && position.missed(now).is_empty());
    }
}
