//! Lanes that come and go.

use std::sync::Arc;

use pabal_core::{Lane, Layout};
use tokio::sync::mpsc;

use super::{Chore, Dispatcher, HeldKeys, reading::until_done};
use crate::keeper::KeeperSignal;

impl Dispatcher {
    pub(super) fn gain(
        &mut self,
        layout: Layout,
        index: u16,
        careful: bool,
        held: Option<HeldKeys>,
    ) {
        if layout.number != self.layout {
            // Nothing of an earlier layout is held by anybody, so nothing of it is in flight here.
            self.lanes = self.lanes.laid_out(layout.order, layout.lanes);
            self.coming.clear();
            (self.layout, self.order) = (layout.number, layout.order);
        }
        match held {
            Some(held) => {
                self.lanes.gain(index, careful, true);
                held.iter().for_each(|(key, _)| self.lanes.hold(key.as_deref()));
            }
            None => {
                let (store, clock) =
                    (Arc::clone(&self.caller.store), Arc::clone(&self.caller.clock));
                let destination = self.caller.destination.name.clone();
                self.tickets += 1;
                let ticket = self.tickets;
                self.coming.insert(index, ticket);
                self.chores.spawn(async move {
                    let held = until_done(&*clock, "reading", || store.held(&destination)).await;
                    Chore::Gained { index, ticket, careful, held }
                });
            }
        }
        self.share_pace();
    }

    /// The keys that are held are known: the lane may go.
    pub(super) fn gained(&mut self, index: u16, ticket: u64, careful: bool, held: &HeldKeys) {
        if self.coming.get(&index) != Some(&ticket) {
            return;
        }
        self.coming.remove(&index);
        self.lanes.gain(index, careful, false);
        held.iter().for_each(|(key, _)| self.lanes.hold(key.as_deref()));
        self.share_pace();
        // Once more: what was freed since it was asked was told to nobody.
        self.read_changes(Vec::new());
        // And the whole again once no late commit of before can appear any more.
        let late = self.now().saturating_add(self.caller.store.late_commits_for());
        self.sweep_at = self.sweep_at.min(late);
    }

    pub(super) fn lose(&mut self, lane: Lane, keeper: mpsc::UnboundedSender<KeeperSignal>) {
        if lane.layout == self.layout {
            self.coming.remove(&lane.index);
            self.lanes.lose(lane.index);
            self.share_pace();
        }
        self.leaving.push((lane, keeper));
    }

    pub(super) fn tell_what_is_drained(&mut self) {
        let Self { leaving, lanes, layout, .. } = self;
        leaving.retain(|(lane, keeper)| {
            let drained = lane.layout != *layout || lanes.is_drained(lane.index);
            if drained {
                let _ = keeper.send(KeeperSignal::Drained(lane.clone()));
            }
            !drained
        });
    }

    /// A partner's pace is shared out by lanes held.
    fn share_pace(&mut self) {
        let (held, lanes) = self.lanes.share();
        self.health.share(f64::from(held.max(1)) / f64::from(lanes.max(1)));
    }

    /// Calls that may be in flight at a time: the destination's, shared out by lanes held.
    pub(super) fn concurrency(&self) -> usize {
        let (held, lanes) = self.lanes.share();
        let all = self.caller.destination.concurrency;
        (all * usize::from(held)).div_ceil(usize::from(lanes.max(1))).min(all)
    }
}
