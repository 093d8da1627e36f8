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

#[cfg(test)]
mod tests {
    use pabal_core::{
        Cause, DeadLetterQuery, DeadReason, Entry, Fingerprint, ManualClock, Message, SetAside,
    };
    use pabal_store_sqlite::{Options, SqliteStore};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    async fn dead(store: &dyn Store) -> usize {
        store.dead_letters(&DeadLetterQuery::default()).await.unwrap().len()
    }

    #[tokio::test]
    async fn nothing_is_removed_in_the_first_hour_and_then_all_that_is_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hub.db");
        let clock = Arc::new(ManualClock::default());
        let options = Options { path, hub_name: "test".to_owned() };
        let store: Arc<dyn Store> =
            Arc::new(SqliteStore::open(options, clock.clone()).await.unwrap());
        // More than one step removes.
        let aside: Vec<_> = (0..1_500)
            .map(|number| {
                let body = number.to_string();
                let (reason, cause) = (DeadReason::Invalid, Cause::with("no", ""));
                let fingerprint = Fingerprint::of(body.as_bytes());
                let message = Message::new("town/in".parse().unwrap(), "test", body);
                Entry::SetAside(SetAside { message, fingerprint, reason, cause })
            })
            .collect();
        store.accept(&aside).await.unwrap();

        let (keep, stop) =
            (Retention { dead_letters: MINUTE, ..Retention::default() }, Stop::new());
        let task = tokio::spawn(run(store.clone(), keep, clock.clone(), stop.clone()));
        // On this runtime it now waits.
        tokio::task::yield_now().await;
        clock.advance(59 * MINUTE);
        tokio::task::yield_now().await;
        assert!(dead(&*store).await > 0, "over, but nobody was heard yet");
        clock.advance(MINUTE);
        let all_gone = async {
            while dead(&*store).await > 0 {
                clock.advance(BREATH);
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), all_gone).await.unwrap();
        stop.fire();
        task.await.unwrap();
    }
}
