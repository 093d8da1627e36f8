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

use crate::{dispatcher::Signal, inbox::Inbox};

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
            // Looked for after the page was read and handed out before it: one that was skipped may
            // be of the same key as one of the page, which was taken after it.
            let missed = position.missed(self.clock.elapsed());
            if !missed.is_empty() {
                let rows = self.store.deliveries(Which::Numbers(&missed), missed.len()).await?;
                rows.iter().for_each(|row| position.found(row.number));
                for (destination, rows) in by_destination(rows) {
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

    async fn heed(&self, request: Request) -> Result<(), StoreError> {
        let tell = |destination: &EndpointName, signal: Signal| {
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

    fn found(&mut self, number: Number) {
        self.skipped.remove(&number);
    }
}
