//! Tells the world whether the destination is held.

use std::{sync::Arc, time::Duration};

use pabal_core::{LinkChange, Tripped};

use super::{ALERT_AGAIN, Chore, Dispatcher, reading::until_done};
use crate::{Event, HealthStatus};

impl Dispatcher {
    pub(super) fn tell_health(&mut self, was_held: bool, now: Duration) {
        let destination = &self.caller.destination.name;
        match (was_held, self.health.held()) {
            (false, Some((cause, _, until))) => {
                let probe_in = until.saturating_sub(now);
                let known = self.alerted.as_ref().is_some_and(|(last, at)| {
                    last == cause && now.saturating_sub(*at) < ALERT_AGAIN
                });
                if known {
                    tracing::info!(%destination, cause, ?probe_in, "held again");
                } else {
                    tracing::error!(
                        alert = true, %destination, cause, ?probe_in,
                        "the destination is held: no attempts are spent until a probe gets through"
                    );
                    self.alerted = Some((cause.to_owned(), now));
                }
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
    pub(super) fn keep_link_state(&mut self) {
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
            let write = || store.set_link_state(&destination, change.clone(), None);
            until_done(&*clock, "writing the held state", write).await;
            Chore::LinkWritten
        });
    }

    pub(super) fn publish_status(&self) {
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
}
