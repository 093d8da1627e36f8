//! Claims what may go and starts the calls.

use std::time::Duration;

use pabal_core::{DeadReason, StoreError, Which};

use super::{Call, Dispatcher, InHand, LOAD_MAX, STORE_PAUSE, UNSETTLED_MAX};
use crate::{
    careful::STARTS_MAX,
    health::Permission,
    lanes::{KeyId, Outcome, Row},
    memory::Room,
    sending::{self, Outgoing},
};

/// While there is no room for a body, it is looked for again after this time.
const MEMORY_PAUSE: Duration = Duration::from_millis(50);

/// A delivery to be sent, with the room for its body.
pub(super) struct Taken {
    key: KeyId,
    row: Row,
    room: Room,
}

impl Dispatcher {
    /// The next deliveries that may go, as many as calls are free; `None`: none, and
    /// [`Dispatcher::wake_at`] says until when.
    pub(super) fn take(&mut self, now: Duration) -> Option<(Vec<Taken>, bool)> {
        let batch_max = self.caller.sender.limits().batch_max.max(1);
        let free = self.concurrency().saturating_sub(self.calls.len()) * batch_max;
        let mut taken = Vec::new();
        let mut probe = false;
        if self.unsettled >= UNSETTLED_MAX {
            return None;
        }
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
            let (key, row) = next;
            let Some(room) = self.caller.memory.room_for(row.size) else {
                self.lanes.settled(&key, row.number, Outcome::Back);
                self.wake_at = Some(now + MEMORY_PAUSE);
                break;
            };
            self.health.sent(now);
            taken.push(Taken { key, row, room });
        }
        (!taken.is_empty()).then_some((taken, probe))
    }

    pub(super) async fn launch(&mut self, taken: Vec<Taken>, probe: bool) {
        let ids: Vec<_> = taken.iter().map(|it| (it.row.number, it.row.message)).collect();
        let loaded = match self.caller.store.load(&ids).await {
            Ok(loaded) => loaded,
            Err(error) => {
                let rows = taken.into_iter().map(|it| (it.key, it.row)).collect();
                return self.give_back(rows, &error);
            }
        };
        let mut outgoing = Vec::new();
        let mut missing = Vec::new();
        for (Taken { key, row, room }, loaded) in taken.into_iter().zip(loaded) {
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
                Some(loaded) => match sending::write(&self.caller, &key, &row, loaded, room) {
                    Ok(out) => outgoing.push(out),
                    Err(error) => self.cannot_be_sent(key, row, error),
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

    /// Deliveries that were not loaded: settled meanwhile, or their body is gone.
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
            .map(|out| (out.row.number, 1))
            .collect();
        if careful.is_empty() {
            return Ok(outgoing);
        }
        match self.caller.store.mark_started(self.caller.lease.term().epoch, &careful).await {
            Ok(()) => Ok(outgoing),
            Err(error) => Err((outgoing, error)),
        }
    }

    fn call(&mut self, outgoing: Vec<Outgoing>, probe: bool) {
        let limits = self.caller.sender.limits();
        let mut batches: Vec<Vec<Outgoing>> = Vec::new();
        let mut open = false;
        let mut bytes = 0;
        for out in outgoing {
            let single = out.row.started > 0 || out.row.alone;
            match batches.last_mut() {
                Some(batch)
                    if open
                        && !single
                        && batch.len() < limits.batch_max
                        && bytes + out.wire_size <= limits.batch_bytes_max =>
                {
                    bytes += out.wire_size;
                    batch.push(out);
                }
                _ => {
                    (open, bytes) = (!single, out.wire_size);
                    batches.push(vec![out]);
                }
            }
        }
        // More calls than are free, because some go alone or the batch is full by size.
        let free = self.concurrency().saturating_sub(self.calls.len());
        let late = batches.split_off(free.min(batches.len()));
        for out in late.into_iter().flatten().rev() {
            self.lanes.settled(&out.key, out.row.number, Outcome::Back);
        }
        batches.into_iter().for_each(|batch| self.start_call(batch, probe));
    }

    fn start_call(&mut self, batch: Vec<Outgoing>, probe: bool) {
        let alone = batch.iter().any(|out| out.row.started > 0);
        let rows = batch
            .iter()
            .map(|out| InHand {
                key: out.key.clone(),
                row: out.row.clone(),
                pin: out.pin.clone(),
                sha256: out.sha256,
                size: out.message.body.size(),
            })
            .collect();
        let term = self.caller.lease.term();
        let task = self.calls.spawn(self.caller.clone().call(batch, alone, term));
        self.in_hand.insert(task.id(), Call { rows, probe, epoch: term.epoch });
    }
}
