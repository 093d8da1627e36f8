//! What became of messages in their partner's hands.

use std::{collections::HashMap, time::Duration};

use pabal_core::{
    Attempt, Cause, DeadReason, Delivery, Fate, Handout, Holds, LAPSED, Number, OnDead, Order,
    Refusal, Settled, Settlement, StoreError, Which,
};

use super::{Mailbox, handout};
use crate::Event;

/// Whether a commit happened is asked by doing it again, so often.
const WRITES: u32 = 3;
/// What is told of a message that its partner did not take: the same for all of them.
const NOT_TAKEN: &str = "not taken by the partner";
const REFUSED: &str = "refused by the partner";

impl Mailbox {
    pub(super) async fn settle_acks(&self, which: &[Handout]) -> Result<Vec<Settled>, StoreError> {
        let rows = self.rows(which).await?;
        let settlement = |it: &Handout| {
            let attempt = self.attempt("delivered", None, rows.get(&it.number));
            Settlement { attempt: Some(attempt), ..self.settlement(it) }
        };
        self.settle(which.iter().map(settlement).collect(), &rows).await
    }

    pub(super) async fn settle_refusals(
        &self,
        which: &[Handout],
        why: &Refusal,
    ) -> Result<Vec<Settled>, StoreError> {
        let retry = &self.0.start.retry;
        let rows = self.rows(which).await?;
        let summary = if why.permanent { REFUSED } else { NOT_TAKEN };
        let cause = Cause::with(summary, why.reason.as_deref().unwrap_or_default());
        let settlement = |it: &Handout| {
            let row = rows.get(&it.number);
            let dead = match why.permanent {
                true => Some(DeadReason::Refused),
                false => (it.attempt >= retry.attempts).then_some(DeadReason::Exhausted),
            };
            let fate = match dead {
                Some(reason) => self.dead(reason, cause.clone(), row),
                None => {
                    let after = why.delay;
                    let after = after.unwrap_or_else(|| retry.wait(it.attempt, fastrand::f64()));
                    Fate::Retry { after, spend: true, pin: None }
                }
            };
            let outcome = if why.permanent { "permanent" } else { "transient" };
            let attempt = self.attempt(outcome, Some(cause.clone()), row);
            Settlement { attempt: Some(attempt), fate, ..self.settlement(it) }
        };
        self.settle(which.iter().map(settlement).collect(), &rows).await
    }

    /// Sets aside what lapsed for the last time.
    pub(super) async fn bury(&self, spent: &[Delivery]) -> Result<(), StoreError> {
        self.set_aside(spent, DeadReason::Exhausted, LAPSED, |row| row.attempts + row.started).await
    }

    /// Sets aside what was handed out just now and cannot be.
    pub(super) async fn bury_without_body(&self, gone: &[Delivery]) -> Result<(), StoreError> {
        let now = |row: &Delivery| handout(row).attempt;
        self.set_aside(gone, DeadReason::BodyGone, "its body is gone", now).await
    }

    async fn set_aside(
        &self,
        which: &[Delivery],
        reason: DeadReason,
        cause: &'static str,
        attempt: impl Fn(&Delivery) -> u32,
    ) -> Result<(), StoreError> {
        if which.is_empty() {
            return Ok(());
        }
        let rows = which.iter().map(|row| (row.number, row.clone())).collect();
        let settlement = |row: &Delivery| {
            let it = Handout { attempt: attempt(row), ..handout(row) };
            let tried = self.attempt("transient", Some(cause.into()), Some(row));
            let fate = self.dead(reason, cause.into(), Some(row));
            Settlement { attempt: Some(tried), fate, ..self.settlement(&it) }
        };
        self.settle(which.iter().map(settlement).collect(), &rows).await.map(drop)
    }

    /// The deliveries of these, as they stand.
    async fn rows(&self, which: &[Handout]) -> Result<HashMap<Number, Delivery>, StoreError> {
        let numbers: Vec<_> = which.iter().map(|it| it.number).collect();
        let rows = self.0.start.store.deliveries(Which::Numbers(&numbers), numbers.len()).await?;
        let ours = rows.into_iter().filter(|row| row.destination == self.0.start.name);
        Ok(ours.map(|row| (row.number, row)).collect())
    }

    /// A success of this handing out; the rest is to be filled in.
    pub(super) fn settlement(&self, it: &Handout) -> Settlement {
        Settlement {
            number: it.number,
            message: it.message,
            destination: self.0.start.name.clone(),
            round: it.round,
            handout: Some(it.attempt),
            attempt: None,
            fate: Fate::Delivered,
        }
    }

    fn attempt(
        &self,
        outcome: &'static str,
        cause: Option<Cause>,
        row: Option<&Delivery>,
    ) -> Attempt {
        let lease = self.0.start.lease;
        let out = |row: &Delivery| lease.saturating_sub(row.due_in);
        let (duration, size) = row.map_or((Duration::ZERO, 0), |row| (out(row), row.size));
        Attempt { outcome, duration, cause, size, ..Attempt::default() }
    }

    fn dead(&self, reason: DeadReason, cause: Cause, row: Option<&Delivery>) -> Fate {
        let key = row.and_then(|row| row.key.as_ref());
        let holds = match (self.0.start.on_dead, self.0.start.order, key) {
            (OnDead::Pass, ..) | (_, Order::None, _) | (_, Order::Key, None) => Holds::Nothing,
            (OnDead::Hold, Order::Key, Some(_)) => Holds::Key,
            (OnDead::Hold, Order::All, _) => Holds::Destination,
        };
        Fate::Dead { reason, cause, holds, pin: None }
    }

    /// Writes what became of them, and tells who listens and who waits.
    async fn settle(
        &self,
        group: Vec<Settlement>,
        rows: &HashMap<Number, Delivery>,
    ) -> Result<Vec<Settled>, StoreError> {
        let settled = self.write(&group).await?;
        for (it, settled) in group.iter().zip(&settled) {
            self.tell(it, *settled, rows.get(&it.number));
        }
        self.ring();
        Ok(settled)
    }

    pub(super) async fn write(&self, group: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        let start = &self.0.start;
        let mut left = WRITES;
        loop {
            left -= 1;
            let missing = std::iter::repeat_n(Settled::NotThere, group.len());
            match start.store.settle(start.node.term().epoch, group).await {
                Err(StoreError::Unknown(_)) if left > 0 => {}
                Ok(settled) => {
                    return Ok(settled.into_iter().chain(missing).take(group.len()).collect());
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn tell(&self, it: &Settlement, settled: Settled, row: Option<&Delivery>) {
        let (destination, message) = (&self.0.start.name, it.message);
        let observe = |event: Event<'_>| self.0.start.observer.observe(event);
        if settled == Settled::NotThere {
            return observe(Event::SettledBefore { destination, message });
        }
        if let Some(Attempt { outcome, duration, .. }) = &it.attempt {
            let (outcome, duration) = (*outcome, *duration);
            let spent = !matches!(it.fate, Fate::Delivered);
            observe(Event::Attempt { destination, message, outcome, spent, duration });
        }
        match &it.fate {
            // Of one that was dead already nobody knows here how old it was.
            Fate::Delivered => {
                if let Some(row) = row {
                    let (attempts, age) = (it.handout.unwrap_or(1), row.age);
                    observe(Event::Delivered { destination, message, attempts, age });
                }
            }
            Fate::Dead { reason, cause, holds, .. } => {
                // Not the detail: what a partner says may be about people.
                tracing::warn!(
                    %destination, message_id = %message, %reason, cause = %cause.summary,
                    holds = ?holds, "a delivery is a dead letter"
                );
                observe(Event::Dead { destination, message, reason: *reason });
            }
            Fate::Retry { .. } => {}
        }
    }
}
