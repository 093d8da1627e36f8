//! One look at who holds what, and what follows from it.

use std::{collections::HashMap, sync::Arc};

use pabal_core::{EndpointName, Lane, LaneHolder, Layout, StandingStill, StoreError};

use super::{Hold, Keeper, KeeperSignal};
use crate::{Event, dispatcher::Signal};

/// So many lanes leave at a time: what is moved stands still while it moves.
const LEAVING_MAX: usize = 64;

/// A lane to be taken.
struct Wanted {
    lane: Lane,
    layout: Option<Layout>,
    from: Option<StandingStill>,
    careful: bool,
}

impl Keeper {
    /// Releases what others rank first for, takes what this node does. `first`: nothing was read
    /// from the store yet. Whether all lanes are where they belong.
    pub(crate) async fn round(&mut self, first: bool) -> Result<bool, StoreError> {
        if first {
            let asked = self.clock.elapsed();
            let beats = self.store.beat(self.epoch()).await?;
            self.members.observe(&beats, asked, self.clock.elapsed());
            self.tell_plans();
        }
        for plan in self.members.unknown_plans() {
            if let Some(endpoints) = self.store.plan(&plan).await? {
                self.members.learn(plan, endpoints);
            }
        }
        self.known.send_replace(self.members.known());
        let layouts: HashMap<EndpointName, Layout> = self
            .store
            .layouts()
            .await?
            .into_iter()
            .map(|layout| (layout.destination.clone(), layout))
            .collect();
        let lanes = self.store.lanes().await?;
        self.lose_what_others_hold(&lanes);
        let is_over = |lane: &Lane| {
            let layout = layouts.get(&lane.endpoint).map_or(0, |layout| layout.number);
            lane.layout != Lane::RECEIVER && lane.layout < layout
        };
        // In the name of the dead: nothing of a new layout can be held before.
        let mut unclean = Vec::new();
        for LaneHolder { lane, holder, clean } in lanes.iter().filter(|it| is_over(&it.lane)) {
            let over = holder.and_then(|holder| self.members.standing_still(holder));
            if !clean || over.is_some() {
                unclean.push(lane.endpoint.clone());
            }
            if let Some(holder) = over {
                self.store.give_up_lane(lane, holder).await?;
            }
        }
        let wanted = self.wanted(&layouts, &lanes, &unclean);
        self.leave_what_others_should_hold(&layouts);
        for wanted in wanted {
            self.take(wanted, first).await?;
        }
        for epoch in self.members.over().collect::<Vec<_>>() {
            if self.store.leave(epoch).await? {
                tracing::info!(epoch = epoch.0, "a node that stood still was forgotten");
            }
        }
        Ok(!self.unsettled())
    }

    /// Whether lanes are under way, from here or to here.
    pub(super) fn unsettled(&self) -> bool {
        self.awaited || self.held.values().any(|hold| *hold != Hold::Held)
    }

    pub(super) async fn look_what_was_lost(&mut self) -> Result<(), StoreError> {
        let lanes = self.store.lanes().await?;
        self.lose_what_others_hold(&lanes);
        Ok(())
    }

    fn lose_what_others_hold(&mut self, lanes: &[LaneHolder]) {
        let epoch = self.epoch();
        let ours: HashMap<_, _> = lanes.iter().map(|it| (&it.lane, it.holder)).collect();
        let lost = |(lane, hold): &(&Lane, &Hold)| {
            **hold != Hold::Lost && ours.get(lane).copied().flatten() != Some(epoch)
        };
        let lost: Vec<_> = self.held.iter().filter(lost).map(|(lane, _)| lane.clone()).collect();
        for lane in lost {
            tracing::error!(
                alert = true, endpoint = %lane.endpoint, lane = lane.index,
                "another node has taken a lane that this one held"
            );
            self.lose(&lane, Hold::Lost);
        }
    }

    /// Whether this node ranks first.
    fn is_ours(&self, lane: &Lane) -> bool {
        let whole = self.desks.get(&lane.endpoint).is_some_and(|desk| desk.whole);
        let index = if whole { 0 } else { lane.index };
        self.members.owner(&lane.endpoint, index) == Some(self.epoch())
    }

    /// Lanes this node ranks first for and does not hold, as far as they can be had.
    fn wanted(
        &mut self,
        layouts: &HashMap<EndpointName, Layout>,
        lanes: &[LaneHolder],
        unclean: &[EndpointName],
    ) -> Vec<Wanted> {
        let held: HashMap<&Lane, &LaneHolder> = lanes.iter().map(|it| (&it.lane, it)).collect();
        let of_destinations = self.desks.keys().filter_map(|name| layouts.get(name));
        let of_destinations = of_destinations.flat_map(|layout| {
            (0..layout.lanes).map(move |index| {
                let endpoint = layout.destination.clone();
                (Lane { endpoint, layout: layout.number, index }, Some(layout))
            })
        });
        let receivers = self.receivers.names().cloned().map(|name| (Lane::receiver(name), None));
        let mut wanted = Vec::new();
        let mut awaited = false;
        for (lane, layout) in of_destinations.chain(receivers) {
            if self.held.contains_key(&lane) || !self.is_ours(&lane) {
                continue;
            }
            let holder = held.get(&lane);
            let from = match holder.and_then(|it| it.holder) {
                None => None,
                Some(holder) => match self.members.standing_still(holder) {
                    Some(over) => Some(over),
                    None => {
                        awaited = true;
                        continue;
                    }
                },
            };
            let careful = from.is_some()
                || holder.map_or_else(|| unclean.contains(&lane.endpoint), |it| !it.clean);
            wanted.push(Wanted { lane, layout: layout.cloned(), from, careful });
        }
        self.awaited = awaited;
        wanted
    }

    async fn take(&mut self, wanted: Wanted, first: bool) -> Result<(), StoreError> {
        let Wanted { lane, layout, from, careful } = wanted;
        if !self.store.take_lane(&lane, from, self.epoch()).await? {
            self.awaited = true;
            return Ok(());
        }
        if careful {
            let (endpoint, index) = (&lane.endpoint, lane.index);
            tracing::warn!(%endpoint, lane = index, "taken over from a node that did not let go");
        }
        let name = &lane.endpoint;
        match (layout, self.desks.get(name)) {
            (Some(layout), Some(desk)) => {
                // At the start nothing else happens meanwhile; later the dispatcher asks itself.
                let held = if first { Some(self.store.held(name).await?) } else { None };
                let index = lane.index;
                let _ = desk.signals.send(Signal::Gain { layout, index, careful, held });
            }
            _ => self.receivers.start(name),
        }
        self.observer.observe(Event::Lane { destination: name, held: true });
        self.held.insert(lane, Hold::Held);
        Ok(())
    }

    fn leave_what_others_should_hold(&mut self, layouts: &HashMap<EndpointName, Layout>) {
        let leaving = self.held.values().filter(|hold| **hold == Hold::Leaving).count();
        let over = |lane: &Lane| {
            let layout = layouts.get(&lane.endpoint).map_or(0, |layout| layout.number);
            lane.layout != Lane::RECEIVER && lane.layout != layout
        };
        let lanes: Vec<_> = self
            .held
            .iter()
            .filter(|(lane, hold)| **hold == Hold::Held && (over(lane) || !self.is_ours(lane)))
            .map(|(lane, _)| lane.clone())
            .take(LEAVING_MAX.saturating_sub(leaving))
            .collect();
        for lane in lanes {
            self.lose(&lane, Hold::Leaving);
        }
    }

    /// Tells whoever works on a lane to end; [`KeeperSignal::Drained`] is the answer.
    pub(super) fn lose(&mut self, lane: &Lane, becomes: Hold) {
        let known = self.held.insert(lane.clone(), becomes);
        if known.is_some_and(|hold| hold != Hold::Held) {
            return;
        }
        if lane.layout == Lane::RECEIVER {
            return self.receivers.stop(lane);
        }
        let told = self.desks.get(&lane.endpoint).is_some_and(|desk| {
            let keeper = self.own.clone();
            desk.signals.send(Signal::Lose { lane: lane.clone(), keeper }).is_ok()
        });
        if !told {
            let _ = self.own.send(KeeperSignal::Drained(lane.clone()));
        }
    }

    pub(super) async fn drained(&mut self, lane: Lane) {
        let Some(hold) = self.held.remove(&lane) else { return };
        self.observer.observe(Event::Lane { destination: &lane.endpoint, held: false });
        if hold == Hold::Lost {
            return;
        }
        let (store, epoch) = (Arc::clone(&self.store), self.epoch());
        if let Err(error) = store.release_lane(&lane, epoch).await {
            tracing::warn!(%error, endpoint = %lane.endpoint, "releasing a lane is tried again");
            self.held.insert(lane.clone(), hold);
            let (own, clock) = (self.own.clone(), Arc::clone(&self.clock));
            let pause = self.period / 10;
            tokio::spawn(async move {
                clock.sleep(pause).await;
                let _ = own.send(KeeperSignal::Drained(lane));
            });
        }
    }
}
