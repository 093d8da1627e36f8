//! Reads beside the sending: what follows of a key, what did not fit, what was put back.

use std::{sync::Arc, time::Duration};

use pabal_core::{Delivery, Number, StoreError, Which};
use tokio::task::JoinError;

use super::{Chore, Dispatcher, PAGE, STORE_PAUSE};
use crate::lanes::{Fetch, KeyId};

impl Dispatcher {
    pub(super) fn want(&mut self, key: &KeyId) {
        if let Some(fetch) = self.lanes.wants(key) {
            self.fetch(fetch);
        }
    }

    /// Late commits, and deliveries that were put back.
    pub(super) fn take_back(&mut self, deliveries: &[Delivery], now: Duration) {
        for key in self.lanes.offer_back(deliveries, now) {
            self.want(&key);
        }
    }

    pub(super) fn read_what_is_wanted(&mut self) {
        if let Some(fetch) = self.lanes.wants_refill() {
            self.fetch(fetch);
        }
    }

    pub(super) fn fetch(&mut self, fetch: Fetch) {
        let (store, clock) = (Arc::clone(&self.caller.store), Arc::clone(&self.caller.clock));
        let destination = self.caller.destination.name.clone();
        self.chores.spawn(async move {
            let which = match &fetch {
                Fetch::Key { key: KeyId::Key(key), after, .. } => {
                    Which::Key { destination: &destination, key, after: *after }
                }
                Fetch::Key { after, .. } | Fetch::Forgotten { after, .. } => {
                    Which::Destination { destination: &destination, after: *after }
                }
            };
            let page = page_of(&fetch);
            let rows = until_done(&*clock, "reading", || store.deliveries(which, page)).await;
            Chore::Fetched(fetch, rows)
        });
    }

    pub(super) fn read_changes(&mut self, numbers: Vec<Number>) {
        let (store, clock) = (Arc::clone(&self.caller.store), Arc::clone(&self.caller.clock));
        let destination = self.caller.destination.name.clone();
        let asked = self.lanes.held();
        self.chores.spawn(async move {
            let held = until_done(&*clock, "reading", || store.held(&destination)).await;
            let which = Which::Numbers(&numbers);
            let back =
                until_done(&*clock, "reading", || store.deliveries(which, numbers.len())).await;
            Chore::Changed { asked, held, back }
        });
    }

    pub(super) fn did(&mut self, chore: Result<Chore, JoinError>) {
        let now = self.now();
        match chore {
            Ok(Chore::Fetched(fetch, rows)) => {
                let complete = rows.len() < page_of(&fetch);
                for key in self.lanes.fetched(&fetch, &rows, complete, now) {
                    self.want(&key);
                }
                if let Fetch::Key { key, .. } = &fetch {
                    self.want(key);
                }
            }
            Ok(Chore::Changed { asked, held, back }) => {
                for key in self.lanes.still_held(&asked, &held) {
                    self.want(&key);
                }
                self.take_back(&back, now);
            }
            Ok(Chore::Gained { index, ticket, careful, held }) => {
                self.gained(index, ticket, careful, &held);
            }
            Ok(Chore::LinkWritten) => self.link_writing = false,
            Ok(Chore::LinkRead(known, state)) => self.link_was_read(&known, state.as_ref()),
            Err(error) => tracing::error!(%error, "reading on the side failed"),
        }
    }
}

fn page_of(fetch: &Fetch) -> usize {
    match fetch {
        // As many as stand in memory.
        Fetch::Key { .. } => crate::lanes::ROWS_PER_KEY,
        Fetch::Forgotten { .. } => PAGE,
    }
}

/// Does it again until the store can.
pub(super) async fn until_done<T, F: Future<Output = Result<T, StoreError>>>(
    clock: &dyn pabal_core::Clock,
    what: &str,
    act: impl Fn() -> F,
) -> T {
    loop {
        match act().await {
            Ok(answer) => return answer,
            Err(error) => {
                tracing::warn!(%error, "{what} is tried again");
                clock.sleep(STORE_PAUSE).await;
            }
        }
    }
}
