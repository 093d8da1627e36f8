//! Time is an argument: [`SystemClock`] in the hub, [`ManualClock`] in tests.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

/// Where time comes from.
#[async_trait]
pub trait Clock: Debug + Send + Sync {
    /// The wall clock: for records and due times, never for measuring.
    fn now(&self) -> Timestamp;
    /// Time passed since some fixed moment, suspension of the machine included; never goes back.
    fn elapsed(&self) -> Duration;
    /// Returns once [`Clock::elapsed`] has reached `deadline`.
    async fn sleep_until(&self, deadline: Duration);
}

impl dyn Clock + '_ {
    /// Waits for `time` from now.
    pub async fn sleep(&self, time: Duration) {
        self.sleep_until(self.elapsed().saturating_add(time)).await;
    }

    /// The future's output, or `None` if `limit` has passed first.
    pub async fn timeout<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = self.sleep(limit) => None,
        }
    }
}

/// The machine's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

#[async_trait]
impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place where time comes in")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn elapsed(&self) -> Duration {
        // std's Instant stops while the machine sleeps, and a lease must not.
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place where time is waited for")]
    async fn sleep_until(&self, deadline: Duration) {
        // In steps, because tokio's timer stops while the machine sleeps.
        const STEP: Duration = Duration::from_secs(10);
        loop {
            let left = deadline.saturating_sub(self.elapsed());
            if left.is_zero() {
                // A past deadline gives way like every other wait: a loop over it must not starve
                // what it waits for.
                return tokio::task::yield_now().await;
            }
            tokio::time::sleep(left.min(STEP)).await;
        }
    }
}

/// A clock that a test moves by hand. It starts at 2026-01-01T00:00:00Z.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<tokio::sync::watch::Sender<Duration>>);

const MANUAL_START: Timestamp = Timestamp::constant(1_767_225_600, 0);

impl Default for ManualClock {
    fn default() -> Self {
        Self(Arc::new(tokio::sync::watch::Sender::new(Duration::ZERO)))
    }
}

impl ManualClock {
    /// Lets time pass and wakes whoever waited for it.
    pub fn advance(&self, time: Duration) {
        self.0.send_modify(|elapsed| *elapsed += time);
    }
}

#[async_trait]
impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        MANUAL_START + self.elapsed()
    }

    fn elapsed(&self) -> Duration {
        *self.0.borrow()
    }

    async fn sleep_until(&self, deadline: Duration) {
        let mut time = self.0.subscribe();
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = time.wait_for(|elapsed| *elapsed >= deadline).await;
    }
}

/// Tells everything that runs to take nothing new, finish what is in hand, and return.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    token: CancellationToken,
    why: Arc<Mutex<Option<String>>>,
}

impl Stop {
    /// One that has not fired.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Fires it; firing it again changes nothing.
    pub fn fire(&self) {
        self.token.cancel();
    }

    /// Fires it because something cannot go on; the first reason stays.
    pub fn fail(&self, why: impl Into<String>) {
        if let Ok(mut reason) = self.why.lock() {
            reason.get_or_insert_with(|| why.into());
        }
        self.fire();
    }

    /// Why it was fired by [`Stop::fail`].
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.why.lock().ok().and_then(|why| why.clone())
    }

    /// Whether it has fired.
    #[must_use]
    pub fn fired(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Returns once it fires.
    pub async fn wait(&self) {
        self.token.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_test_passes_time_and_never_sleeps() {
        let clock = ManualClock::default();
        let waiter: Arc<dyn Clock> = Arc::new(clock.clone());
        let woken = tokio::spawn(async move {
            waiter.sleep(Duration::from_secs(3600)).await;
            waiter.now()
        });
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(3599));
        tokio::task::yield_now().await;
        assert!(!woken.is_finished());
        clock.advance(Duration::from_secs(1));
        assert_eq!(woken.await.unwrap().to_string(), "2026-01-01T01:00:00Z");
    }
}
