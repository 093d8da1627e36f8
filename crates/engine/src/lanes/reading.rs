//! What lane state wants to be read from the table, and what it makes of the answers, which may be
//! too old by then.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use pabal_core::{Delivery, Number, Order};

use super::{Fetch, KeyId, Lanes, Row, queue::State};

impl Lanes {
    /// What is to be read from the table now; answered by [`Lanes::fetched`].
    pub(crate) fn wants(&mut self, key: &KeyId) -> Option<Fetch> {
        let queue = self.queues.get_mut(key)?;
        let (State::Fetching, false, Some(after)) = (queue.state, queue.asked, queue.more) else {
            return None;
        };
        self.tickets += 1;
        (queue.ticket, queue.left, queue.asked) = (self.tickets, 0, true);
        let (ticket, offered) = (queue.ticket, self.offered);
        Some(Fetch::Key { key: key.clone(), after, ticket, offered })
    }

    /// Has the whole table read again, as the net below everything else: what is known already is
    /// left as it is. Not while memory is short.
    pub(crate) fn sweep(&mut self) {
        if self.forgotten.is_none() && self.rows * 2 < self.rows_max {
            self.forgotten = Some(0);
        }
    }

    /// Whether what did not fit into memory is to be read now.
    pub(crate) fn wants_refill(&mut self) -> Option<Fetch> {
        let room = self.rows * 4 < self.rows_max * 3;
        let after = self.forgotten.filter(|_| self.refilling.is_none() && room)?;
        self.tickets += 1;
        self.refilling = Some((self.tickets, self.offered));
        Some(Fetch::Forgotten { after, ticket: self.tickets })
    }

    /// The answer to a fetch; `complete`: the table had no further ones when it was read. The keys
    /// whose reading has to begin anew.
    pub(crate) fn fetched(
        &mut self,
        fetch: &Fetch,
        deliveries: &[Delivery],
        complete: bool,
        now: Duration,
    ) -> Vec<KeyId> {
        match fetch {
            Fetch::Key { key, after, ticket, offered } => {
                let (deliveries, complete) = up_to(deliveries, *offered, complete);
                let rows: Vec<Row> =
                    deliveries.iter().map(|delivery| self.row(delivery, now, false)).collect();
                let Some(queue) = self.queues.get_mut(key) else { return Vec::new() };
                // Something was put back in between: it is asked again behind that.
                if queue.state != State::Fetching || queue.ticket != *ticket {
                    return Vec::new();
                }
                queue.asked = false;
                let read = rows.last().map_or(*after, |last| last.number);
                // What was offered while the table was read may be missing in the answer.
                queue.more = (!complete || queue.left > read).then_some(read);
                self.rows += rows.len();
                queue.rows.extend(rows);
                self.go_on(key);
                Vec::new()
            }
            Fetch::Forgotten { after, ticket } => {
                let Some((_, offered)) = self.refilling.take_if(|(latest, _)| latest == ticket)
                else {
                    return Vec::new();
                };
                let (deliveries, complete) = up_to(deliveries, offered, complete);
                self.forgotten = None;
                for delivery in deliveries {
                    if self.rows >= self.rows_max {
                        self.forgotten = Some(delivery.number - 1);
                        break;
                    }
                    self.admit(delivery, now);
                }
                let read = deliveries.last().map_or(*after, |last| last.number);
                if self.forgotten.is_none() {
                    if complete && self.offered == offered {
                        self.seen = self.seen.max(offered);
                        self.owned.caught_up(self.seen);
                    } else {
                        self.forgotten = Some(if complete { offered.max(read) } else { read });
                    }
                }
                let aside = std::mem::take(&mut self.aside);
                self.offer_back(&aside, now)
            }
        }
    }

    /// The keys that dead letters hold now, each with the ticket of this hold: a key may be freed
    /// and held again by the same dead letter before an answer comes.
    pub(crate) fn held(&self) -> HashMap<KeyId, u64> {
        let held = self.queues.iter().filter(|(_, queue)| queue.state == State::Held);
        held.map(|(key, queue)| (key.clone(), queue.ticket)).collect()
    }

    /// Of the keys that were held when it was asked, `still` are: the others are free and returned,
    /// to be fetched.
    pub(crate) fn still_held(
        &mut self,
        asked: &HashMap<KeyId, u64>,
        still: &[(Option<String>, Number)],
    ) -> Vec<KeyId> {
        let still: HashSet<KeyId> = still
            .iter()
            .filter_map(|(key, _)| match (self.order, key) {
                (Order::All, _) => Some(KeyId::All),
                (_, Some(key)) => Some(KeyId::Key(key.as_str().into())),
                (_, None) => None,
            })
            .collect();
        let mut freed = Vec::new();
        for (key, ticket) in asked {
            if let Some(queue) = self.queues.get_mut(key)
                && (queue.state, queue.ticket) == (State::Held, *ticket)
                && !still.contains(key)
            {
                (queue.state, queue.asked) = (State::Fetching, false);
                queue.more = Some(0);
                freed.push(key.clone());
            }
        }
        freed
    }
}

/// What of an answer counts: up to what was offered when it was asked for. Beyond that one may stand
/// in the table whose elder of the same key was not committed yet when it was read; those are offered
/// in their turn.
fn up_to(deliveries: &[Delivery], offered: Number, complete: bool) -> (&[Delivery], bool) {
    let known = deliveries.partition_point(|delivery| delivery.number <= offered);
    (&deliveries[..known], complete || known < deliveries.len())
}
