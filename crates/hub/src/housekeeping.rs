//! Keeps the store in order while the hub runs: room for what arrives, and nothing that is over for
//! longer than it is kept.

use std::{sync::Arc, time::Duration};

use pabal_core::{Clock, Housekeeping, Retention, Stop, Store, StoreError};

/// Between two rounds. The first comes as late: after a long stop, sources must be heard before the
/// ids by which their repeats are known are forgotten.
const INTERVAL: Duration = Duration::from_secs(3600);
/// Between two steps of a round, so that what moves is not held up.
const BREATH: Duration = Duration::from_millis(100);

/// Runs until `stop` fires.
pub(crate) async fn run(store: Arc<dyn Store>, keep: Retention, clock: Arc<dyn Clock>, stop: Stop) {
    loop {
        tokio::select! {
            () = stop.wait() => return,
            () = clock.sleep(INTERVAL) => {}
        }
        tokio::select! {
            () = stop.wait() => return,
            done = round(&*store, &keep, &*clock, Duration::MAX) => match done {
                Ok(done) if done == Housekeeping::default() => {}
                Ok(done) => tracing::info!(
                    messages = done.messages, log = done.log, inbox = done.inbox,
                    dead_letters = done.dead_letters, "removed what is over"
                ),
                Err(error) => tracing::warn!(%error, "housekeeping is tried again in an hour"),
            },
        }
    }
}

/// Steps until there is nothing more to do, or `limit` is over; what was removed.
pub(crate) async fn round(
    store: &dyn Store,
    keep: &Retention,
    clock: &dyn Clock,
    limit: Duration,
) -> Result<Housekeeping, StoreError> {
    let end = clock.elapsed().saturating_add(limit);
    let mut done = Housekeeping::default();
    loop {
        let step = store.housekeep(keep).await?;
        done = Housekeeping { more: step.more, ..done.and(step) };
        if !step.more || clock.elapsed() >= end {
            return Ok(done);
        }
        clock.sleep(BREATH).await;
    }
}
