//! For how long this node may act on what it holds.
//!
//! The holder counts from before it asked for the renewal, on a clock that runs on while the machine
//! sleeps; whoever would take over waits longer than that from when it saw the heartbeat. No clock
//! of another machine and no time of day is asked.

use std::{sync::Arc, time::Duration};

use pabal_core::{Clock, Epoch};
use tokio::sync::watch;

/// What the node holds by, as it was renewed last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Term {
    pub(crate) epoch: Epoch,
    /// By the clock's elapsed time; the longest there is where no other node can come.
    pub(crate) until: Duration,
    /// Grows when it was renewed too late: what was begun before must end.
    pub(crate) tenure: u64,
}

/// A view of the node's lease.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    term: watch::Receiver<Term>,
    clock: Arc<dyn Clock>,
    /// With less than this left nothing is begun: it would only be cut off.
    margin: Duration,
    /// For so long after its end nobody takes over: others wait for a tenth of it longer.
    moment: Duration,
}

impl Lease {
    pub(crate) fn new(
        term: watch::Receiver<Term>,
        clock: Arc<dyn Clock>,
        period: Duration,
    ) -> Self {
        Self { term, clock, margin: period / 4, moment: period / 20 }
    }

    pub(crate) fn term(&self) -> Term {
        *self.term.borrow()
    }

    /// Whether something may be begun.
    pub(crate) fn may_begin(&self) -> bool {
        let left = self.term().until.saturating_sub(self.clock.elapsed());
        !left.is_zero() && left >= self.margin
    }

    /// How long one may still look at what came, once it has lapsed. Who stood still for longer than
    /// the lease may find others at work.
    pub(crate) fn moment(&self) -> Duration {
        self.moment
    }

    /// Returns once this tenure is over.
    pub(crate) async fn lapsed(&self, tenure: u64) {
        let mut term = self.term.clone();
        loop {
            let now = *term.borrow_and_update();
            if now.tenure != tenure || now.until <= self.clock.elapsed() {
                return;
            }
            tokio::select! {
                () = self.clock.sleep_until(now.until), if now.until < Duration::MAX => {}
                // Nobody renews it any more; it runs out.
                Ok(()) = term.changed() => {}
                else => std::future::pending().await,
            }
        }
    }

    /// Returns once it was renewed.
    pub(crate) async fn renewed(&mut self) {
        if self.term.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
