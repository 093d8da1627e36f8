//! Tells the world whether the destination is held.

use std::{sync::Arc, time::Duration};

use pabal_core::{LinkChange, LinkState, Timestamp, Tripped};

use super::{ALERT_AGAIN, Chore, Dispatcher, reading::until_done};
use crate::{Event, HealthStatus};

/// What nodes tell each other of a destination.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Known {
    /// Why it is held, and after how many failed probes.
    pub(super) held: Option<(String, u32)>,
    /// The pace its partner was found to keep.
    pub(super) pace: Option<f64>,
}

/// A pace that differs by less is not told.
const PACE_STEP: f64 = 0.2;

impl Known {
    pub(super) fn of(state: Option<&LinkState>) -> Self {
        let tripped = state.and_then(|state| state.tripped.as_ref());
        Self {
            held: tripped.map(|tripped| (tripped.cause.clone(), tripped.probes)),
            pace: state.and_then(|state| state.pace),
        }
    }

    /// What is to be written where `before` stands.
    fn changes(&self, before: &Self, at: Timestamp) -> Vec<LinkChange> {
        let mut changes = Vec::new();
        if self.held != before.held {
            let held = self.held.clone();
            let tripped = held.map(|(cause, probes)| Tripped { cause, at, probes });
            changes.push(LinkChange::Tripped(tripped));
        }
        let moved = match (self.pace, before.pace) {
            (Some(own), Some(known)) => (own - known).abs() > known * PACE_STEP,
            (own, known) => own.is_some() != known.is_some(),
        };
        if moved {
            changes.push(LinkChange::Pace(self.pace));
        }
        changes
    }
}

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

    /// Keeps the store's idea of the link up to date, and this node's of what others wrote; one
    /// thing at a time.
    pub(super) fn keep_link_state(&mut self) {
        if self.link_writing {
            return;
        }
        let own = Known {
            held: self.health.held().map(|(cause, probes, _)| (cause.to_owned(), probes)),
            pace: self.health.found_pace(),
        };
        let changes = own.changes(&self.link_known, self.caller.clock.now());
        if changes.is_empty() {
            return self.ask_link_state();
        }
        self.link_writing = true;
        if changes.iter().any(|change| matches!(change, LinkChange::Pace(_))) {
            self.link_known.pace = own.pace;
        }
        self.link_known.held = own.held;
        let (store, clock) = (Arc::clone(&self.caller.store), Arc::clone(&self.caller.clock));
        let destination = self.caller.destination.name.clone();
        self.chores.spawn(async move {
            for change in changes {
                let write = || store.set_link_state(&destination, change.clone(), None);
                until_done(&*clock, "writing the link state", write).await;
            }
            Chore::LinkWritten
        });
    }

    fn ask_link_state(&mut self) {
        if !self.link_ask || self.stop_at.is_some() {
            return;
        }
        (self.link_ask, self.link_writing) = (false, true);
        let (store, clock) = (Arc::clone(&self.caller.store), Arc::clone(&self.caller.clock));
        let (destination, known) = (self.caller.destination.name.clone(), self.link_known.clone());
        self.chores.spawn(async move {
            let states = until_done(&*clock, "reading", || store.link_states()).await;
            let state = states.into_iter().find(|state| state.endpoint == destination);
            Chore::LinkRead(known, state)
        });
    }

    /// Takes over what another node wrote, unless something has happened here since it was asked.
    pub(super) fn link_was_read(&mut self, asked: &Known, state: Option<&LinkState>) {
        self.link_writing = false;
        let held = self.health.held().map(|(cause, probes, _)| (cause.to_owned(), probes));
        if *asked != self.link_known || held != self.link_known.held {
            self.link_ask = true;
            return;
        }
        let now = self.now();
        let written = Known::of(state);
        if written.held != held {
            match &written.held {
                Some((cause, probes)) => {
                    let until = self.health.probe_after(*probes, now, fastrand::f64());
                    self.health.resume_held(cause.clone(), *probes, until);
                }
                None => self.health.resume_open(),
            }
            self.tell_health(held.is_some(), now);
        }
        if written.pace != self.link_known.pace {
            self.health.resume_pace(written.pace, now);
        }
        self.link_known = written;
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
            (status.lanes, status.lanes_of) = self.lanes.share();
        }
    }
}
