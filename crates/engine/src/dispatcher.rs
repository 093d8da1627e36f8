//! The way out of one destination: claims, sends, judges, settles. What may go is decided by
//! [`Lanes`], whether anything may by [`Health`]; this moves between them, the store and the sender.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use pabal_core::{
    DeadReason, Delivery, Fate, Holds, LinkChange, Number, OnDead, Order, Receipt, SendError,
    Settled, Settlement, StoreError, Tripped, Which,
};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    task::{Id, JoinError, JoinSet},
};

use crate::{
    DestinationStatus, Event, HealthStatus, Observer,
    careful::STARTS_MAX,
    health::{Health, Permission, Ruling},
    lanes::{Fetch, KeyId, Lanes, Outcome, Row},
    sending::{self, Caller, Outgoing, Tried},
    settler,
};

/// Deliveries whose lane state is held in memory, per destination.
const ROWS_MAX: usize = 100_000;
/// Deliveries read from the store in one go.
const LOAD_MAX: usize = 64;
/// Deliveries of one key, or of what did not fit into memory, read in one go.
const PAGE: usize = 500;
/// The whole of a destination is read again after this time, as the net below everything else.
const SWEEP: Duration = Duration::from_secs(600);
/// While the store cannot, it is asked again after this time.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// A delivery that panicked alone so often is a dead letter.
const PANICS_MAX: u32 = 3;

/// What a dispatcher is told.
#[derive(Debug)]
pub(crate) enum Signal {
    /// New deliveries, in order of their numbers; the permit bounds how many are under way.
    Rows(Vec<Delivery>, OwnedSemaphorePermit),
    /// Everything that was there at take-over, up to this number, was told.
    CaughtUp(Number),
    /// Late commits.
    Late(Vec<Delivery>),
    /// Deliveries were put back, or dead letters given up.
    Changed(Vec<Number>),
    /// A settlement was written.
    Settled { follow: Follow, settled: Settled },
    /// An operator paused it, or let go.
    Paused(bool),
    /// No more sends; those in hand get this long.
    Stop(Duration),
}

/// What follows once a settlement is written.
#[derive(Debug)]
pub(crate) struct Follow {
    key: KeyId,
    row: Row,
    next: Next,
    told: Option<Told>,
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
    rows: Vec<(KeyId, Row)>,
    probe: bool,
}

/// What was read on the side.
#[derive(Debug)]
enum Chore {
    Fetched(Fetch, Vec<Delivery>),
    Changed { held: Vec<(Option<String>, Number)>, back: Vec<Delivery> },
    LinkWritten,
}

pub(crate) struct Dispatcher {
    caller: Caller,
    observer: Arc<dyn Observer>,
    settler: mpsc::UnboundedSender<settler::Job>,
    signals: mpsc::UnboundedReceiver<Signal>,
    own: mpsc::UnboundedSender<Signal>,
    status: Arc<Mutex<DestinationStatus>>,
    lanes: Lanes,
    health: Health,
    paused: bool,
    stop_at: Option<Duration>,
    calls: JoinSet<Vec<Tried>>,
    in_hand: HashMap<Id, Call>,
    unsettled: usize,
    chores: JoinSet<Chore>,
    wake_at: Option<Duration>,
    store_pause: Duration,
    sweep_at: Duration,
    /// The held state as the store knows it, and whether it is being written.
    link_known: Option<(String, u32)>,
    link_writing: bool,
}

/// What a dispatcher starts with.
pub(crate) struct Start {
    pub(crate) caller: Caller,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) settler: mpsc::UnboundedSender<settler::Job>,
    pub(crate) status: Arc<Mutex<DestinationStatus>>,
    pub(crate) held: Vec<(Option<String>, Number)>,
    pub(crate) paused: bool,
    pub(crate) tripped: Option<Tripped>,
    /// The lane was taken over without a clean end.
    pub(crate) careful: bool,
}

impl Dispatcher {
    pub(crate) fn new(start: Start) -> (Self, mpsc::UnboundedSender<Signal>) {
        let (own, signals) = mpsc::unbounded_channel();
        let destination = &start.caller.destination;
        let mut lanes = Lanes::new(destination.order, ROWS_MAX, start.careful);
        for (key, number) in &start.held {
            lanes.hold(key.as_deref(), *number);
        }
        let mut health = Health::new(destination.breaker.clone(), destination.rate);
        let link_known = start.tripped.map(|tripped| {
            health.resume_held(tripped.cause.clone(), tripped.probes);
            (tripped.cause, tripped.probes)
        });
        let now = start.caller.clock.elapsed();
        let dispatcher = Self {
            caller: start.caller,
            observer: start.observer,
            settler: start.settler,
            signals,
            own: own.clone(),
            status: start.status,
            lanes,
            health,
            paused: start.paused,
            stop_at: None,
            calls: JoinSet::new(),
            in_hand: HashMap::new(),
            unsettled: 0,
            chores: JoinSet::new(),
            wake_at: None,
            store_pause: Duration::ZERO,
            sweep_at: now + SWEEP,
            link_known,
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
        loop {
            self.send_what_may_go().await;
            self.read_what_is_wanted();
            self.keep_link_state();
            self.publish_status();
            if self.stop_at.is_some() && self.in_hand.is_empty() && self.unsettled == 0 {
                return;
            }
            let wake_at = self.wake_at.unwrap_or(Duration::MAX).min(self.sweep_at);
            let stop_at = self.stop_at.unwrap_or(Duration::MAX);
            tokio::select! {
                signal = self.signals.recv() => {
                    if let Some(signal) = signal {
                        self.heed(signal);
                    }
                    while let Ok(signal) = self.signals.try_recv() {
                        self.heed(signal);
                    }
                }
                Some(ended) = self.calls.join_next_with_id() => self.ended(ended),
                Some(chore) = self.chores.join_next() => self.did(chore),
                () = clock.sleep_until(wake_at) => {}
                () = clock.sleep_until(stop_at) => self.calls.abort_all(),
            }
        }
    }

    fn heed(&mut self, signal: Signal) {
        let now = self.now();
        match signal {
            Signal::Rows(rows, _permit) => self.lanes.offer(&rows, now),
            Signal::CaughtUp(number) => self.lanes.caught_up(number),
            Signal::Late(rows) => self.lanes.offer_back(&rows, now),
            Signal::Changed(numbers) => self.read_changes(numbers),
            Signal::Settled { follow, settled } => self.settled(follow, settled, now),
            Signal::Paused(paused) => self.paused = paused,
            Signal::Stop(grace) => self.stop_at = Some(now.saturating_add(grace)),
        }
    }

    // --- out ---

    async fn send_what_may_go(&mut self) {
        let now = self.now();
        self.wake_at = None;
        if self.sweep_at <= now {
            self.sweep_at = now + SWEEP;
            self.fetch(Fetch::Sweep { after: 0 });
        }
        if self.paused || self.stop_at.is_some() {
            return;
        }
        if self.store_pause > now {
            self.wake_at = Some(self.store_pause);
            return;
        }
        while let Some((taken, probe)) = self.take(now) {
            self.launch(taken, probe).await;
            if self.store_pause > now {
                self.wake_at = Some(self.store_pause);
                return;
            }
        }
    }

    /// The next deliveries that may go, as many as calls are free; `None`: none, and
    /// [`Dispatcher::wake_at`] says until when.
    fn take(&mut self, now: Duration) -> Option<(Vec<(KeyId, Row)>, bool)> {
        let destination = &self.caller.destination;
        let batch_max = destination.sender.limits().batch_max.max(1);
        let free = destination.concurrency.saturating_sub(self.calls.len()) * batch_max;
        let mut taken = Vec::new();
        let mut probe = false;
        while taken.len() < free.min(LOAD_MAX) && !probe {
            let next = match self.health.permission(now) {
                Permission::Yes => self.lanes.take(now),
                Permission::Probe => {
                    probe = true;
                    self.lanes.take_for_probe()
                }
                Permission::NotBefore(time) => {
                    self.wake_at = time;
                    break;
                }
            };
            let Some(next) = next else {
                self.wake_at = if probe { None } else { self.lanes.next_due() };
                break;
            };
            self.health.sent(now);
            taken.push(next);
        }
        (!taken.is_empty()).then_some((taken, probe))
    }

    async fn launch(&mut self, taken: Vec<(KeyId, Row)>, probe: bool) {
        let ids: Vec<_> = taken.iter().map(|(_, row)| (row.number, row.message)).collect();
        let loaded = match self.caller.store.load(&ids).await {
            Ok(loaded) => loaded,
            Err(error) => return self.give_back(taken, &error),
        };
        let destination = Arc::clone(&self.caller.destination);
        let mut outgoing = Vec::new();
        let mut missing = Vec::new();
        for ((key, row), loaded) in taken.into_iter().zip(loaded) {
            match loaded {
                None => missing.push((key, row)),
                Some(_) if row.started >= STARTS_MAX => {
                    self.set_aside(
                        key,
                        row,
                        DeadReason::KilledProcess,
                        "the process ended while it was sent",
                    );
                }
                Some(loaded) => match sending::write(&destination, &key, &row, loaded) {
                    Ok(out) => outgoing.push(out),
                    Err(error) => self.cannot_be_sent(key, row, &error),
                },
            }
        }
        self.look_for(missing).await;
        if probe && outgoing.is_empty() {
            self.health.not_sent();
        }
        match self.note_careful(outgoing).await {
            Ok(outgoing) => self.call(outgoing, probe),
            Err((outgoing, error)) => {
                self.give_back(
                    outgoing.into_iter().map(|out| (out.key, out.row)).collect(),
                    &error,
                );
            }
        }
    }

    fn give_back(&mut self, rows: Vec<(KeyId, Row)>, error: &StoreError) {
        tracing::warn!(destination = %self.caller.destination.name, %error, "sending waits for the store");
        self.health.not_sent();
        for (key, row) in rows {
            self.lanes.settled(&key, row.number, Outcome::Back);
        }
        self.store_pause = self.now() + STORE_PAUSE;
    }

    /// Deliveries without a message: settled meanwhile, or their body is gone.
    async fn look_for(&mut self, missing: Vec<(KeyId, Row)>) {
        if missing.is_empty() {
            return;
        }
        let numbers: Vec<_> = missing.iter().map(|(_, row)| row.number).collect();
        match self.caller.store.deliveries(Which::Numbers(&numbers), numbers.len()).await {
            Ok(there) => {
                for (key, row) in missing {
                    if there.iter().any(|delivery| delivery.number == row.number) {
                        self.set_aside(key, row, DeadReason::BodyGone, "its body is gone");
                    } else {
                        self.lanes.settled(&key, row.number, Outcome::Gone);
                        self.want(&key);
                    }
                }
            }
            Err(error) => self.give_back(missing, &error),
        }
    }

    /// Notes those that may have been in flight when an earlier holder died, all at once. Suspects
    /// are noted when their turn alone has come.
    async fn note_careful(
        &self,
        outgoing: Vec<Outgoing>,
    ) -> Result<Vec<Outgoing>, (Vec<Outgoing>, StoreError)> {
        let careful: Vec<_> = outgoing
            .iter()
            .filter(|out| out.row.careful && out.row.started == 0)
            .map(|out| out.row.number)
            .collect();
        if careful.is_empty() {
            return Ok(outgoing);
        }
        match self.caller.store.mark_started(self.caller.epoch, &careful).await {
            Ok(()) => Ok(outgoing),
            Err(error) => Err((outgoing, error)),
        }
    }

    fn call(&mut self, outgoing: Vec<Outgoing>, probe: bool) {
        let sender = Arc::clone(&self.caller.destination.sender);
        let limits = sender.limits();
        let mut batch: Vec<Outgoing> = Vec::new();
        let mut bytes = 0;
        for out in outgoing {
            if out.row.started > 0 || out.row.alone {
                self.start_call(vec![out], probe);
                continue;
            }
            let size = sender.wire_size(&out.message);
            if batch.len() >= limits.batch_max || bytes + size > limits.batch_bytes_max {
                let full = std::mem::take(&mut batch);
                self.start_call(full, probe);
                bytes = 0;
            }
            bytes += size;
            batch.push(out);
        }
        self.start_call(batch, probe);
    }

    fn start_call(&mut self, batch: Vec<Outgoing>, probe: bool) {
        if batch.is_empty() {
            return;
        }
        let alone = batch.iter().any(|out| out.row.started > 0);
        let rows = batch.iter().map(|out| (out.key.clone(), out.row.clone())).collect();
        let task = self.calls.spawn(self.caller.clone().call(batch, alone));
        self.in_hand.insert(task.id(), Call { rows, probe });
    }

    // --- verdicts ---

    fn ended(&mut self, ended: Result<(Id, Vec<Tried>), JoinError>) {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let Some(call) = self.in_hand.remove(&id) else {
            return;
        };
        match ended {
            Ok((_, tried)) => tried.into_iter().for_each(|tried| self.judge(tried, call.probe)),
            Err(lost) => self.lost(call, lost),
        }
    }

    /// The task of a call panicked or was cut off: nobody knows whether the partner has it.
    fn lost(&mut self, call: Call, lost: JoinError) {
        if call.probe {
            self.health.not_sent();
        }
        let (cut, alone) = (lost.is_cancelled(), call.rows.len() == 1);
        let cause = if cut {
            pabal_core::Cause::from("cut off when the hub stopped")
        } else {
            pabal_core::Cause::with("the sender panicked", panic_text(lost))
        };
        for (key, mut row) in call.rows {
            if !cut {
                row.panics += u32::from(alone);
                let panics = row.panics;
                self.lanes.mark(&key, row.number, |row| (row.alone, row.panics) = (true, panics));
                tracing::error!(
                    alert = true, destination = %self.caller.destination.name,
                    message = %row.message, panics, %cause, "a send panicked"
                );
            }
            let error = SendError::Transient { cause: cause.clone(), retry_after: None };
            let tried = Tried {
                key,
                row,
                verdict: Err(error),
                duration: Duration::ZERO,
                pin: None,
                sha256: None,
                size: 0,
            };
            if tried.row.panics >= PANICS_MAX {
                self.settle_dead(tried, DeadReason::Panic);
            } else {
                self.settle_again(tried, true, None);
            }
        }
    }

    fn judge(&mut self, tried: Tried, probe: bool) {
        let now = self.now();
        if let Err(SendError::Transient { cause, .. }) = &tried.verdict
            && cause.summary == sending::NO_VERDICT
        {
            self.lanes.mark(&tried.key, tried.row.number, |row| row.alone = true);
        }
        let held = self.health.held().is_some();
        let ruling =
            self.health.judge(&tried.verdict, tried.row.message, probe, now, fastrand::f64());
        self.tell_health(held, now);
        match ruling {
            Ruling::Delivered => self.settle(tried, Fate::Delivered, Next::Gone, None, false),
            Ruling::Dead => {
                let reason = match &tried.verdict {
                    Err(SendError::Permanent { reason, .. }) => (*reason).into(),
                    _ => DeadReason::Refused,
                };
                self.settle_dead(tried, reason);
            }
            Ruling::Again { spend: true, not_before } => self.settle_again(tried, true, not_before),
            Ruling::Again { spend: false, .. } if tried.verdict == Err(SendError::NotSent) => {
                self.go_back(tried);
            }
            Ruling::Again { spend: false, .. } if probe => {
                let fate =
                    Fate::Retry { after: Duration::ZERO, spend: false, pin: tried.pin.clone() };
                self.settle(tried, fate, Next::Turn, None, false);
            }
            Ruling::Again { spend: false, not_before } => {
                self.lanes.mark(&tried.key, tried.row.number, |row| row.setbacks += 1);
                self.settle_again(tried, false, not_before);
            }
        }
    }

    /// It was not tried: nothing to write, unless a note has to be taken back.
    fn go_back(&mut self, tried: Tried) {
        if tried.row.careful || tried.row.started > 0 {
            let fate = Fate::Retry { after: Duration::ZERO, spend: false, pin: None };
            self.settle(tried, fate, Next::Back, None, false);
        } else {
            self.lanes.settled(&tried.key, tried.row.number, Outcome::Back);
        }
    }

    fn settle_again(&mut self, tried: Tried, spend: bool, not_before: Option<Duration>) {
        let retry = &self.caller.destination.retry;
        let attempts = tried.row.attempts + u32::from(spend);
        if spend && attempts >= retry.attempts {
            return self.settle_dead(tried, DeadReason::Exhausted);
        }
        let failures = if spend { attempts } else { tried.row.setbacks + 1 };
        let after = retry.wait(failures, fastrand::f64()).max(not_before.unwrap_or_default());
        // What may have reached the partner is sent the same for ever.
        let reached = !matches!(tried.verdict, Err(SendError::Unreachable { .. }));
        let pin = if reached { tried.pin.clone() } else { None };
        let fate = Fate::Retry { after, spend, pin };
        self.settle(tried, fate, Next::Retry { after, spent: spend }, None, spend);
    }

    fn settle_dead(&mut self, tried: Tried, reason: DeadReason) {
        let cause = match &tried.verdict {
            Err(error) => error.cause().cloned().unwrap_or_else(|| "not sent".into()),
            Ok(_) => "taken".into(),
        };
        let destination = &self.caller.destination;
        let holds = match (destination.on_dead, destination.order, &tried.row, &tried.key) {
            (OnDead::Pass, ..) | (_, Order::None, ..) | (_, _, _, KeyId::Single(_)) => {
                Holds::Nothing
            }
            (OnDead::Hold, Order::Key, ..) => Holds::Key,
            (OnDead::Hold, Order::All, ..) => Holds::Destination,
        };
        tracing::warn!(
            destination = %destination.name, message = %tried.row.message, ?reason, %cause, ?holds,
            "a delivery is a dead letter"
        );
        let next = if holds == Holds::Nothing { Next::Gone } else { Next::Holds };
        let fate = Fate::Dead { reason, cause, holds, pin: tried.pin.clone() };
        self.settle(tried, fate, next, Some(reason), true);
    }

    /// Set aside without having been tried this time.
    fn set_aside(&mut self, key: KeyId, row: Row, reason: DeadReason, cause: &'static str) {
        let verdict = Err(SendError::transient(cause));
        let (duration, pin, sha256, size) = (Duration::ZERO, None, None, 0);
        self.settle_dead(Tried { key, row, verdict, duration, pin, sha256, size }, reason);
    }

    fn cannot_be_sent(&mut self, key: KeyId, row: Row, error: &SendError) {
        let reason = match error {
            SendError::Permanent { reason, .. } => (*reason).into(),
            _ => DeadReason::Invalid,
        };
        let (duration, pin, sha256, size) = (Duration::ZERO, None, None, 0);
        let verdict: Result<Receipt, _> = Err(error.clone());
        self.settle_dead(Tried { key, row, verdict, duration, pin, sha256, size }, reason);
    }

    fn settle(
        &mut self,
        tried: Tried,
        fate: Fate,
        next: Next,
        dead: Option<DeadReason>,
        spent: bool,
    ) {
        let attempt = tried.attempt();
        let told = (attempt.outcome != "not-sent").then_some(Told {
            outcome: attempt.outcome,
            spent,
            duration: attempt.duration,
            dead,
        });
        let settlement = Settlement {
            number: tried.row.number,
            message: tried.row.message,
            destination: self.caller.destination.name.clone(),
            round: tried.row.round,
            attempt: told.is_some().then_some(attempt),
            fate,
        };
        let follow = Follow { key: tried.key, row: tried.row, next, told };
        self.unsettled += 1;
        let job = settler::Job { settlement, follow, dispatcher: self.own.clone() };
        if self.settler.send(job).is_err() {
            tracing::error!("the settler has ended before its dispatchers");
        }
    }

    fn settled(&mut self, follow: Follow, settled: Settled, now: Duration) {
        self.unsettled -= 1;
        let Follow { key, row, next, told } = follow;
        let destination = &self.caller.destination.name;
        let message = row.message;
        let observe = |event: Event<'_>| self.observer.observe(event);
        if settled == Settled::NotThere {
            tracing::warn!(%destination, %message, "it was settled before");
            observe(Event::SettledBefore { destination, message });
            self.lanes.settled(&key, row.number, Outcome::Gone);
            return self.want(&key);
        }
        if let Some(Told { outcome, spent, duration, dead }) = told {
            observe(Event::Attempt { destination, message, outcome, spent, duration });
            if let Some(reason) = dead {
                observe(Event::Dead { destination, message, reason });
            } else if matches!(next, Next::Gone) {
                let age = now.saturating_sub(row.accepted);
                observe(Event::Delivered { destination, message, attempts: row.attempts + 1, age });
            }
        }
        let outcome = match next {
            Next::Gone => Outcome::Gone,
            Next::Holds => Outcome::Holds,
            Next::Retry { after, spent } => Outcome::Retry { due: now + after, spent },
            // It opened while this was written: it may go at once.
            Next::Turn if self.health.held().is_none() => Outcome::Retry { due: now, spent: false },
            Next::Turn => Outcome::Turn,
            Next::Back => Outcome::Back,
        };
        self.lanes.settled(&key, row.number, outcome);
        self.want(&key);
    }

    // --- health ---

    fn tell_health(&mut self, was_held: bool, now: Duration) {
        let destination = &self.caller.destination.name;
        match (was_held, self.health.held()) {
            (false, Some((cause, _, until))) => {
                tracing::error!(
                    alert = true, %destination, cause,
                    probe_in = ?until.saturating_sub(now),
                    "the destination is held: no attempts are spent until a probe gets through"
                );
                self.observer.observe(Event::Breaker { destination, cause: Some(cause) });
            }
            (true, None) => {
                tracing::info!(%destination, "the destination is open again");
                self.observer.observe(Event::Breaker { destination, cause: None });
                self.lanes.opened(now);
            }
            _ => {}
        }
    }

    /// Keeps the store's idea of the held state up to date, one write at a time.
    fn keep_link_state(&mut self) {
        let held = self.health.held().map(|(cause, probes, _)| (cause.to_owned(), probes));
        if self.link_writing || self.link_known == held {
            return;
        }
        self.link_writing = true;
        self.link_known.clone_from(&held);
        let (store, clock) = (Arc::clone(&self.caller.store), Arc::clone(&self.caller.clock));
        let destination = self.caller.destination.name.clone();
        self.chores.spawn(async move {
            let tripped = held.map(|(cause, probes)| Tripped { cause, at: clock.now(), probes });
            let change = LinkChange::Tripped(tripped);
            if let Err(error) = store.set_link_state(&destination, change, None).await {
                tracing::warn!(%destination, %error, "the held state is not written");
            }
            Chore::LinkWritten
        });
    }

    fn publish_status(&self) {
        let health = match self.health.held() {
            _ if self.paused => HealthStatus::Paused,
            None => HealthStatus::Open,
            Some((cause, probes, until)) => {
                let left = until.saturating_sub(self.now()).as_millis();
                let probe_in_ms = u64::try_from(left).unwrap_or(u64::MAX);
                HealthStatus::Held { cause: cause.to_owned(), probes, probe_in_ms }
            }
        };
        let in_flight = self.in_hand.values().map(|call| call.rows.len()).sum();
        if let Ok(mut status) = self.status.lock() {
            (status.health, status.in_flight, status.pace) =
                (health, in_flight, self.health.pace());
        }
    }

    // --- reading ---

    fn want(&mut self, key: &KeyId) {
        if let Some(fetch) = self.lanes.wants(key) {
            self.fetch(fetch);
        }
    }

    fn read_what_is_wanted(&mut self) {
        if let Some(fetch) = self.lanes.wants_refill() {
            self.fetch(fetch);
        }
    }

    fn fetch(&mut self, fetch: Fetch) {
        let (store, clock) = (Arc::clone(&self.caller.store), Arc::clone(&self.caller.clock));
        let destination = self.caller.destination.name.clone();
        self.chores.spawn(async move {
            let which = match &fetch {
                Fetch::Key { key: KeyId::Key(key), after } => {
                    Which::Key { destination: &destination, key, after: *after }
                }
                Fetch::Key { after, .. } | Fetch::Forgotten { after } | Fetch::Sweep { after } => {
                    Which::Destination { destination: &destination, after: *after }
                }
            };
            let page = page_of(&fetch);
            let rows = until_read(&*clock, || store.deliveries(which, page)).await;
            Chore::Fetched(fetch, rows)
        });
    }

    fn read_changes(&mut self, numbers: Vec<Number>) {
        let (store, clock) = (Arc::clone(&self.caller.store), Arc::clone(&self.caller.clock));
        let destination = self.caller.destination.name.clone();
        self.chores.spawn(async move {
            let held = until_read(&*clock, || store.held(&destination)).await;
            let which = Which::Numbers(&numbers);
            let back = until_read(&*clock, || store.deliveries(which, numbers.len())).await;
            Chore::Changed { held, back }
        });
    }

    fn did(&mut self, chore: Result<Chore, JoinError>) {
        let now = self.now();
        match chore {
            Ok(Chore::Fetched(fetch, rows)) => {
                let complete = rows.len() < page_of(&fetch);
                self.lanes.fetched(&fetch, &rows, complete, now);
                match (&fetch, rows.last()) {
                    (Fetch::Key { key, .. }, _) => self.want(key),
                    (Fetch::Sweep { .. }, Some(last)) if !complete => {
                        self.fetch(Fetch::Sweep { after: last.number });
                    }
                    _ => {}
                }
            }
            Ok(Chore::Changed { held, back }) => {
                for key in self.lanes.still_held(&held) {
                    self.want(&key);
                }
                self.lanes.offer_back(&back, now);
            }
            Ok(Chore::LinkWritten) => self.link_writing = false,
            Err(error) => tracing::error!(%error, "reading on the side failed"),
        }
    }
}

fn page_of(fetch: &Fetch) -> usize {
    match fetch {
        // As many as stand in memory.
        Fetch::Key { .. } => crate::lanes::ROWS_PER_KEY,
        Fetch::Forgotten { .. } | Fetch::Sweep { .. } => PAGE,
    }
}

/// Reads until the store can.
async fn until_read<T, F: Future<Output = Result<T, StoreError>>>(
    clock: &dyn pabal_core::Clock,
    read: impl Fn() -> F,
) -> T {
    loop {
        match read().await {
            Ok(answer) => return answer,
            Err(error) => {
                tracing::warn!(%error, "reading is tried again");
                clock.sleep(STORE_PAUSE).await;
            }
        }
    }
}

fn panic_text(lost: JoinError) -> String {
    match lost.try_into_panic() {
        Ok(panic) => panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default(),
        Err(lost) => lost.to_string(),
    }
}
