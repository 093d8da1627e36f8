//! Judges what calls gave, and has it written.

use std::time::Duration;

use pabal_core::{
    Cause, DeadReason, Epoch, Fate, Holds, OnDead, Order, SendError, Settled, Settlement, Written,
};
use tokio::task::{Id, JoinError};

use super::{Call, Dispatcher, Follow, InHand, Next, PANICS_MAX, Told};
use crate::{
    Event,
    health::Ruling,
    lanes::{KeyId, Outcome, Row},
    sending::{self, Tried},
    settler,
};

/// The cause of a panic.
const PANICKED: &str = "the sender panicked";

impl Dispatcher {
    pub(super) fn ended(&mut self, ended: Result<(Id, Vec<Tried>), JoinError>) {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let Some(call) = self.in_hand.remove(&id) else {
            return;
        };
        match ended {
            Ok((_, tried)) => {
                for tried in tried {
                    self.judge(tried, call.probe, call.epoch);
                }
            }
            Err(lost) => self.lost(call, lost),
        }
    }

    /// The task of a call panicked or was cut off: nobody knows whether the partner has it.
    fn lost(&mut self, call: Call, lost: JoinError) {
        let (cut, alone, epoch) = (lost.is_cancelled(), call.rows.len() == 1, call.epoch);
        let cause = if cut {
            Cause::from("cut off when the hub stopped")
        } else {
            Cause::with(PANICKED, panic_text(lost))
        };
        for InHand { key, row, pin, sha256, size } in call.rows {
            let tried = Tried {
                key,
                row,
                verdict: Err(SendError::Transient { cause: cause.clone(), retry_after: None }),
                duration: Duration::ZERO,
                pin,
                sha256: Some(sha256),
                size,
                alone: None,
                cut,
            };
            if cut {
                self.cut_off(tried, call.probe, epoch);
            } else {
                self.panicked(tried, call.probe, alone, epoch);
            }
        }
    }

    /// A panic is a failure like another, so that one on every message opens the breaker; a message
    /// that panics alone while others get through is found out.
    fn panicked(&mut self, mut tried: Tried, probe: bool, alone: bool, epoch: Epoch) {
        let ruling = self.rule(&tried, probe);
        let spent = matches!(ruling, Ruling::Again { spend: true, .. });
        tried.row.panics += u32::from(alone && spent);
        let panics = tried.row.panics;
        self.lanes.mark(&tried.key, tried.row.number, |row| {
            (row.alone, row.panics) = (true, panics);
        });
        tracing::error!(
            alert = true, destination = %self.caller.destination.name,
            message_id = %tried.row.message, panics, "a send panicked"
        );
        if panics >= PANICS_MAX {
            self.settle_dead(tried, DeadReason::Panic, epoch);
        } else {
            self.follow(tried, ruling, probe, epoch);
        }
    }

    fn rule(&mut self, tried: &Tried, probe: bool) -> Ruling {
        let now = self.now();
        let held = self.health.held().is_some();
        let jitter = fastrand::f64();
        let ruling = self.health.judge(&tried.verdict, tried.row.message, probe, now, jitter);
        self.tell_health(held, now);
        ruling
    }

    /// We cut it off: it may have reached the partner, whose fault it was not.
    fn cut_off(&mut self, tried: Tried, probe: bool, epoch: Epoch) {
        if probe {
            self.health.not_sent();
        }
        self.settle_again(tried, true, None, epoch);
    }

    fn judge(&mut self, tried: Tried, probe: bool, epoch: Epoch) {
        if tried.cut {
            return self.cut_off(tried, probe, epoch);
        }
        if let Err(SendError::Transient { cause, .. }) = &tried.verdict
            && cause.summary == sending::NO_VERDICT
        {
            self.lanes.mark(&tried.key, tried.row.number, |row| row.alone = true);
        }
        let ruling = self.rule(&tried, probe);
        self.follow(tried, ruling, probe, epoch);
    }

    fn follow(&mut self, tried: Tried, ruling: Ruling, probe: bool, epoch: Epoch) {
        match ruling {
            Ruling::Delivered => {
                self.settle(tried, Fate::Delivered, Next::Gone, None, epoch);
            }
            Ruling::Dead => {
                let reason = match &tried.verdict {
                    Err(SendError::Permanent { reason, .. }) => (*reason).into(),
                    _ => DeadReason::Refused,
                };
                self.settle_dead(tried, reason, epoch);
            }
            Ruling::Again { spend: true, not_before } => {
                self.settle_again(tried, true, not_before, epoch);
            }
            Ruling::Again { spend: false, .. } if tried.verdict == Err(SendError::NotSent) => {
                self.go_back(tried, epoch);
            }
            Ruling::Again { spend: false, .. } if probe => {
                let pin = pin_of(&tried);
                let fate = Fate::Retry { after: Duration::ZERO, spend: false, pin };
                self.settle(tried, fate, Next::Turn, None, epoch);
            }
            Ruling::Again { spend: false, not_before } => {
                self.lanes.mark(&tried.key, tried.row.number, |row| row.setbacks += 1);
                self.settle_again(tried, false, not_before, epoch);
            }
        }
    }

    /// It was not tried: nothing to write, unless a note has to be taken back.
    fn go_back(&mut self, tried: Tried, epoch: Epoch) {
        // A suspect is noted only when its call begins, and a failed note is no send.
        if tried.row.careful && tried.row.started == 0 {
            let fate = Fate::Retry { after: Duration::ZERO, spend: false, pin: None };
            self.settle(tried, fate, Next::Back, None, epoch);
        } else {
            self.lanes.settled(&tried.key, tried.row.number, Outcome::Back);
        }
    }

    fn settle_again(
        &mut self,
        tried: Tried,
        spend: bool,
        not_before: Option<Duration>,
        epoch: Epoch,
    ) {
        let retry = &self.caller.destination.retry;
        let attempts = tried.row.attempts + u32::from(spend);
        if spend && attempts >= retry.attempts {
            return self.settle_dead(tried, DeadReason::Exhausted, epoch);
        }
        let failures = if spend { attempts } else { tried.row.setbacks + 1 };
        let after = retry.wait(failures, fastrand::f64()).max(not_before.unwrap_or_default());
        let fate = Fate::Retry { after, spend, pin: pin_of(&tried) };
        self.settle(tried, fate, Next::Retry { after, spent: spend }, None, epoch);
    }

    fn settle_dead(&mut self, tried: Tried, reason: DeadReason, epoch: Epoch) {
        let cause = match &tried.verdict {
            Err(error) => error.cause().cloned().unwrap_or_else(|| "not sent".into()),
            Ok(_) => "taken".into(),
        };
        let destination = &self.caller.destination;
        let holds = match (destination.on_dead, self.order, &tried.row, &tried.key) {
            (OnDead::Pass, ..) | (_, Order::None, ..) | (_, _, _, KeyId::Single(_)) => {
                Holds::Nothing
            }
            (OnDead::Hold, Order::Key, ..) => Holds::Key,
            (OnDead::Hold, Order::All, ..) => Holds::Destination,
        };
        // Not the detail: what a partner answers may be about people.
        tracing::warn!(
            destination = %destination.name, message_id = %tried.row.message, %reason,
            cause = %cause.summary, holds = ?holds, "a delivery is a dead letter"
        );
        let next = if holds == Holds::Nothing { Next::Gone } else { Next::Holds };
        let fate = Fate::Dead { reason, cause, holds, pin: tried.pin.clone() };
        self.settle(tried, fate, next, Some(reason), epoch);
    }

    /// Set aside without having been tried this time.
    pub(super) fn set_aside(
        &mut self,
        key: KeyId,
        row: Row,
        reason: DeadReason,
        cause: &'static str,
    ) {
        let verdict = Err(SendError::transient(cause));
        self.settle_dead(Tried::untried(key, row, verdict), reason, self.caller.lease.term().epoch);
    }

    pub(super) fn cannot_be_sent(&mut self, key: KeyId, row: Row, error: SendError) {
        let reason = match &error {
            SendError::Permanent { reason, .. } => (*reason).into(),
            _ => DeadReason::Invalid,
        };
        let tried = Tried::untried(key, row, Err(error));
        self.settle_dead(tried, reason, self.caller.lease.term().epoch);
    }

    fn settle(
        &mut self,
        tried: Tried,
        fate: Fate,
        next: Next,
        dead: Option<DeadReason>,
        epoch: Epoch,
    ) {
        let spent = dead.is_some() || matches!(next, Next::Retry { spent: true, .. });
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
            handout: None,
            attempt: told.is_some().then_some(attempt),
            fate,
        };
        let Tried { key, row, alone, .. } = tried;
        let follow = Follow { key, row, next, told, _alone: alone };
        self.unsettled += 1;
        let job = settler::Job { settlement, epoch, follow, dispatcher: self.own.clone() };
        if self.settler.send(job).is_err() {
            tracing::error!("the settler has ended before its dispatchers");
        }
    }

    pub(super) fn settled(&mut self, follow: Follow, settled: Option<Settled>, now: Duration) {
        self.unsettled -= 1;
        let Follow { key, row, next, told, .. } = follow;
        // Without a written verdict nothing of its key may go on.
        let Some(settled) = settled else { return };
        let destination = &self.caller.destination.name;
        let message = row.message;
        let observe = |event: Event<'_>| self.observer.observe(event);
        if settled == Settled::NotThere {
            tracing::warn!(%destination, message_id = %message, "it was settled before");
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
            Next::Retry { after, spent } => {
                Outcome::Retry { due: now.saturating_add(after), spent }
            }
            // It opened while this was written: it may go at once.
            Next::Turn if self.health.held().is_none() => Outcome::Retry { due: now, spent: false },
            Next::Turn => Outcome::Turn,
            Next::Back => Outcome::Back,
        };
        self.lanes.settled(&key, row.number, outcome);
        self.want(&key);
    }
}

/// What may have reached the partner is sent the same for ever.
fn pin_of(tried: &Tried) -> Option<Written> {
    match tried.verdict {
        Err(SendError::Unreachable { .. } | SendError::NotSent) => None,
        _ => tried.pin.clone(),
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
