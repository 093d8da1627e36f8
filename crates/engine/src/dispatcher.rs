//! The way out of one destination: claims, sends, judges, settles. What may go is decided by
//! [`Lanes`], whether anything may by [`Health`]; this moves between them, the store and the sender.

mod holding;
mod launch;
mod link;
mod reading;
mod verdicts;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use pabal_core::{
    DeadReason, Delivery, Epoch, Lane, Layout, LinkState, Number, Order, Settled, Written,
};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    task::{Id, JoinSet},
};

use crate::{
    DestinationStatus, Observer,
    careful::Pass,
    health::Health,
    keeper::KeeperSignal,
    lanes::{Fetch, KeyId, Lanes, Row},
    sending::{Caller, Tried},
    settler,
};

/// Deliveries whose lane state is held in memory, per destination.
const ROWS_MAX: usize = 200_000;
/// Deliveries read from the store in one go.
const LOAD_MAX: usize = 64;
/// Deliveries of one key, or of what did not fit into memory, read in one go.
const PAGE: usize = 500;
/// The whole of a destination is read again after this time, as the net below everything else.
const SWEEP: Duration = Duration::from_secs(600);
/// While the store cannot, it is asked again after this time.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// Deliveries sent whose verdict is not written yet; while the store cannot, no more are sent.
const UNSETTLED_MAX: usize = 1_000;
/// The same cause is an alert again after this time.
const ALERT_AGAIN: Duration = Duration::from_secs(300);
/// A delivery that panicked alone so often is a dead letter.
const PANICS_MAX: u32 = 3;

/// What a dispatcher is told.
#[derive(Debug)]
pub(crate) enum Signal {
    /// This node holds a lane from now on.
    Gain {
        layout: Layout,
        index: u16,
        /// It was taken over without a clean end.
        careful: bool,
        /// The keys that dead letters hold; `None`: to be asked for, and so is what waits already.
        held: Option<HeldKeys>,
    },
    /// It holds a lane no longer; the keeper is told once nothing of it is in flight.
    Lose { lane: Lane, keeper: mpsc::UnboundedSender<KeeperSignal> },
    /// New deliveries, in order of their numbers; the permit bounds how many are under way.
    Rows(Vec<Delivery>, OwnedSemaphorePermit),
    /// Everything that was there at take-over, up to this number, was told.
    CaughtUp(Number),
    /// Late commits.
    Late(Vec<Delivery>),
    /// Deliveries were put back, or dead letters given up.
    Changed(Vec<Number>),
    /// A settlement was written; `None`: it never can be, and the delivery stays as it was.
    Settled { follow: Follow, settled: Option<Settled> },
    /// An operator paused it, or let go.
    Paused(bool),
    /// Another node may have found it held or open, or its pace.
    Health,
    /// No more sends; those in hand are cut off at this time.
    Stop(Duration),
}

/// Keys that dead letters hold, with the lowest number of each.
pub(crate) type HeldKeys = Vec<(Option<String>, Number)>;

/// What follows once a settlement is written.
#[derive(Debug)]
pub(crate) struct Follow {
    key: KeyId,
    row: Row,
    next: Next,
    told: Option<Told>,
    _alone: Option<Pass>,
}

#[derive(Debug, Clone, Copy)]
enum Next {
    Gone,
    Holds,
    Retry { after: Duration, spent: bool },
    Turn,
    Back,
}

/// What observers are told of an attempt.
#[derive(Debug, Clone, Copy)]
struct Told {
    outcome: &'static str,
    spent: bool,
    duration: Duration,
    dead: Option<DeadReason>,
}

#[derive(Debug)]
struct Call {
    rows: Vec<InHand>,
    probe: bool,
    /// In whose name it was begun.
    epoch: Epoch,
}

/// What is remembered of a delivery while it is sent, should its call be lost.
#[derive(Debug)]
struct InHand {
    key: KeyId,
    row: Row,
    pin: Option<Written>,
    sha256: [u8; 32],
    size: u64,
}

/// What was read on the side.
#[derive(Debug)]
enum Chore {
    Fetched(Fetch, Vec<Delivery>),
    Changed {
        /// What was held when it was asked.
        asked: HashMap<KeyId, u64>,
        held: HeldKeys,
        back: Vec<Delivery>,
    },
    Gained {
        index: u16,
        ticket: u64,
        careful: bool,
        held: HeldKeys,
    },
    LinkWritten,
    LinkRead(link::Known, Option<LinkState>),
}

pub(crate) struct Dispatcher {
    caller: Caller,
    observer: Arc<dyn Observer>,
    settler: mpsc::UnboundedSender<settler::Job>,
    signals: mpsc::UnboundedReceiver<Signal>,
    own: mpsc::UnboundedSender<Signal>,
    status: Arc<Mutex<DestinationStatus>>,
    lanes: Lanes,
    /// How the destination is laid out; nothing is held before there is one.
    layout: i64,
    order: Order,
    /// Lanes that are being taken in, each with a ticket of its own.
    coming: HashMap<u16, u64>,
    tickets: u64,
    /// Lanes that are given up, with who is told once they are drained.
    leaving: Vec<(Lane, mpsc::UnboundedSender<KeeperSignal>)>,
    health: Health,
    paused: bool,
    stop_at: Option<Duration>,
    cut_off: bool,
    calls: JoinSet<Vec<Tried>>,
    in_hand: HashMap<Id, Call>,
    unsettled: usize,
    chores: JoinSet<Chore>,
    wake_at: Option<Duration>,
    store_pause: Duration,
    sweep_at: Duration,
    /// The link state as the store knows it, and whether it is being written or asked for.
    link_known: link::Known,
    link_ask: bool,
    /// The last alert, so that a partner who is busy again and again is no stream of alerts.
    alerted: Option<(String, Duration)>,
    link_writing: bool,
}

/// What a dispatcher starts with.
pub(crate) struct Start {
    pub(crate) caller: Caller,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) settler: mpsc::UnboundedSender<settler::Job>,
    pub(crate) status: Arc<Mutex<DestinationStatus>>,
    pub(crate) link: Option<LinkState>,
}

impl Dispatcher {
    pub(crate) fn new(start: Start) -> (Self, mpsc::UnboundedSender<Signal>) {
        let (own, signals) = mpsc::unbounded_channel();
        let destination = &start.caller.destination;
        let order = destination.order;
        let lanes = Lanes::new(order, 1, ROWS_MAX);
        let mut health = Health::new(destination.breaker.clone(), destination.rate);
        let paused = start.link.as_ref().is_some_and(|link| link.paused.is_some());
        let link_known = link::Known::of(start.link.as_ref());
        if let Some((cause, probes)) = &link_known.held {
            health.resume_held(cause.clone(), *probes, Duration::ZERO);
        }
        let now = start.caller.clock.elapsed();
        health.resume_pace(link_known.pace, now);
        let dispatcher = Self {
            caller: start.caller,
            observer: start.observer,
            settler: start.settler,
            signals,
            own: own.clone(),
            status: start.status,
            lanes,
            layout: 0,
            order,
            coming: HashMap::new(),
            tickets: 0,
            leaving: Vec::new(),
            health,
            paused,
            stop_at: None,
            cut_off: false,
            calls: JoinSet::new(),
            in_hand: HashMap::new(),
            unsettled: 0,
            chores: JoinSet::new(),
            wake_at: None,
            store_pause: Duration::ZERO,
            // Not all destinations at the same moment.
            sweep_at: now + SWEEP.mul_f64(0.5 + fastrand::f64()),
            link_known,
            link_ask: false,
            alerted: None,
            link_writing: false,
        };
        (dispatcher, own)
    }

    fn now(&self) -> Duration {
        self.caller.clock.elapsed()
    }

    /// Runs until it was stopped and everything in hand is settled.
    pub(crate) async fn run(mut self) {
        let clock = Arc::clone(&self.caller.clock);
        let mut lease = self.caller.lease.clone();
        loop {
            // Before anything is sent: a lane may be another node's by now.
            while let Ok(signal) = self.signals.try_recv() {
                self.heed(signal);
            }
            self.send_what_may_go().await;
            self.tell_what_is_drained();
            self.read_what_is_wanted();
            self.keep_link_state();
            self.publish_status();
            if self.stop_at.is_some()
                && self.in_hand.is_empty()
                && self.unsettled == 0
                && !self.link_writing
            {
                return;
            }
            let wake_at = self.wake_at.unwrap_or(Duration::MAX).min(self.sweep_at);
            let stop_at = self.stop_at.unwrap_or(Duration::MAX);
            tokio::select! {
                signal = self.signals.recv() => {
                    if let Some(signal) = signal {
                        self.heed(signal);
                    }
                }
                Some(ended) = self.calls.join_next_with_id() => self.ended(ended),
                Some(chore) = self.chores.join_next() => self.did(chore),
                () = clock.sleep_until(wake_at) => {}
                () = lease.renewed() => {}
                () = clock.sleep_until(stop_at), if !self.cut_off => {
                    self.cut_off = true;
                    self.calls.abort_all();
                }
            }
        }
    }

    fn heed(&mut self, signal: Signal) {
        let now = self.now();
        match signal {
            Signal::Gain { layout, index, careful, held } => {
                self.gain(layout, index, careful, held);
            }
            Signal::Lose { lane, keeper } => self.lose(lane, keeper),
            Signal::Rows(rows, _permit) => self.lanes.offer(&rows, now),
            Signal::CaughtUp(number) => self.lanes.caught_up(number),
            Signal::Late(rows) => self.take_back(&rows, now),
            Signal::Changed(numbers) => self.read_changes(numbers),
            Signal::Settled { follow, settled } => self.settled(follow, settled, now),
            Signal::Paused(paused) => {
                self.paused = paused;
                if !paused {
                    self.health.hasten(now);
                    self.lanes.hasten(now, |_| true);
                }
            }
            Signal::Health => self.link_ask = true,
            Signal::Stop(deadline) => self.stop_at = Some(deadline),
        }
    }

    async fn send_what_may_go(&mut self) {
        let now = self.now();
        self.wake_at = None;
        if self.sweep_at <= now {
            self.sweep_at = now + SWEEP;
            self.lanes.sweep();
        }
        if self.paused || self.stop_at.is_some() || !self.caller.lease.may_begin() {
            return;
        }
        if self.store_pause > now {
            self.wake_at = Some(self.store_pause);
            return;
        }
        if let Some((taken, probe)) = self.take(now) {
            self.launch(taken, probe).await;
            // There may be more; but first what has happened meanwhile, a pause or stop.
            self.wake_at = Some(self.store_pause.max(now));
        }
    }
}
