//! The way out of one destination whose partner fetches its messages: no lane, no call, no breaker.
//! What may go is asked of the store with every pull, by any node; what is kept here is only a hint.

mod looking;
mod settling;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use pabal_core::{
    Clock, Delivery, EndpointName, Fate, Handout, OnDead, Order, PullError, Pulled, Refusal,
    RetryPolicy, Settled, Settlement, Stop, Store, StoreError,
};
use tokio::sync::{Mutex, watch};

use self::looking::{Found, Turn};
use crate::{Observer, lease::Lease, memory::Memory};

/// The net under the wake-ups of whoever waits, ...
const POLL: Duration = Duration::from_secs(5);
/// ... and while something is out, which another node may hear of.
const POLL_WHILE_OUT: Duration = Duration::from_secs(1);

/// Clones are one mailbox.
#[derive(Debug, Clone)]
pub(crate) struct Mailbox(Arc<Inner>);

/// What a mailbox is made of.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) name: EndpointName,
    pub(crate) order: Order,
    pub(crate) on_dead: OnDead,
    pub(crate) retry: RetryPolicy,
    pub(crate) lease: Duration,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) observer: Arc<dyn Observer>,
    /// Settlements are written in its name, as all of this node's are.
    pub(crate) node: Lease,
    pub(crate) memory: Memory,
    pub(crate) stop: Stop,
}

#[derive(Debug)]
struct Inner {
    start: Start,
    paused: AtomicBool,
    /// Counts what may have changed.
    bell: watch::Sender<u64>,
    /// One look at a time: what one of many who wait finds nothing of, the others need not look for.
    turn: Arc<Mutex<Turn>>,
}

impl Mailbox {
    pub(crate) fn new(start: Start) -> Self {
        let (paused, bell, turn) = (AtomicBool::new(false), watch::Sender::new(0), Arc::default());
        Self(Arc::new(Inner { start, paused, bell, turn }))
    }

    /// There may be something new for those who wait.
    pub(crate) fn ring(&self) {
        self.0.bell.send_modify(|rung| *rung += 1);
    }

    /// An operator paused it, or let it go.
    pub(crate) fn pause(&self, paused: bool) {
        self.0.paused.store(paused, Ordering::Release);
        self.ring();
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.0.paused.load(Ordering::Acquire)
    }

    pub(crate) fn name(&self) -> &EndpointName {
        &self.0.start.name
    }

    fn open(&self) -> Result<&Start, PullError> {
        if self.is_paused() { Err(PullError::Paused) } else { Ok(&self.0.start) }
    }

    /// Looks in a task of its own, so that whoever goes away leaves nothing half done behind: what
    /// was taken for it goes back.
    async fn look(&self, max: usize, first: bool) -> Result<Found, StoreError> {
        let turn = Arc::clone(&self.0.turn).lock_owned().await;
        let now = self.0.start.clock.elapsed();
        let rung = *self.0.bell.borrow();
        if let Some(again) = turn.nothing_since(rung).filter(|again| !first && *again > now) {
            return Ok(Found::Nothing { again });
        }
        let mailbox = self.clone();
        let look = tokio::spawn(async move { mailbox.look_now(turn, rung, max).await });
        look.await.unwrap_or_else(|panic| Err(StoreError::Unavailable(panic.to_string())))
    }
}

fn unavailable(error: StoreError) -> PullError {
    PullError::Unavailable(error.to_string())
}

#[async_trait]
impl pabal_core::Mailbox for Mailbox {
    async fn pull(&self, max: usize, wait: Duration) -> Result<Vec<Pulled>, PullError> {
        let Start { clock, stop, .. } = &self.0.start;
        let until = clock.elapsed().saturating_add(wait);
        let mut bell = self.0.bell.subscribe();
        let mut first = true;
        loop {
            self.open()?;
            if stop.fired() {
                return Ok(Vec::new());
            }
            bell.mark_unchanged();
            let again = match self.look(max, first).await.map_err(unavailable)? {
                Found::Some(found) => return Ok(found.claim()),
                Found::NoRoom => {
                    return Err(PullError::Unavailable("too much is in hand".to_owned()));
                }
                Found::Nothing { again } => again,
            };
            first = false;
            if clock.elapsed() >= until {
                return Ok(Vec::new());
            }
            tokio::select! {
                () = stop.wait() => {}
                _ = bell.changed() => {}
                () = clock.sleep_until(again.min(until)) => {}
            }
        }
    }

    async fn ack(&self, which: &[Handout]) -> Result<Vec<Settled>, PullError> {
        self.settle_acks(which).await.map_err(unavailable)
    }

    async fn nack(&self, which: &[Handout], why: &Refusal) -> Result<Vec<Settled>, PullError> {
        self.settle_refusals(which, why).await.map_err(unavailable)
    }
}

/// Deliveries that are out, and so far in nobody's hands: dropped, they go back as if nothing had
/// been.
#[derive(Debug)]
struct InHand {
    mailbox: Mailbox,
    rows: Vec<Delivery>,
}

impl Drop for InHand {
    fn drop(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        if rows.is_empty() {
            return;
        }
        let mailbox = self.mailbox.clone();
        // Without a runtime they come back when their lease lapses.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { mailbox.give_back(rows).await });
        }
    }
}

impl Mailbox {
    async fn give_back(&self, rows: Vec<Delivery>) {
        let fate = Fate::Retry { after: Duration::ZERO, spend: false, pin: None };
        let settlement = |row: &Delivery| Settlement {
            attempt: None,
            fate: fate.clone(),
            ..self.settlement(&handout(row))
        };
        let group: Vec<_> = rows.iter().map(settlement).collect();
        if let Err(error) = self.write(&group).await {
            tracing::warn!(
                destination = %self.name(), %error, count = rows.len(),
                "messages that nobody waited for come back when their lease lapses"
            );
        }
        self.ring();
    }
}

/// How a delivery that the store has just handed out is called.
fn handout(row: &Delivery) -> Handout {
    let attempt = row.attempts.saturating_add(row.started).saturating_add(1);
    Handout { number: row.number, message: row.message, round: row.round, attempt }
}
