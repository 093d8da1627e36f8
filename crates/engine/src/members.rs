//! Which nodes live, as this one has seen it, and which of them should hold what.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use pabal_core::{Beat, EndpointName, Epoch, StandingStill, rank};

/// A life as it was seen.
#[derive(Debug)]
struct Seen {
    beat: i64,
    plan: String,
    node: String,
    /// When its beat was first seen at this number.
    since: Duration,
}

/// The nodes of a store.
#[derive(Debug)]
pub(crate) struct Members {
    own: Epoch,
    /// A life that stood still for so long is over; `None`: nobody else can live.
    patience: Option<Duration>,
    seen: BTreeMap<Epoch, Seen>,
    /// When the last answer was asked for.
    asked: Duration,
    /// The endpoints of each plan that was seen.
    plans: HashMap<String, HashSet<EndpointName>>,
}

impl Members {
    pub(crate) fn new(own: Epoch, patience: Option<Duration>) -> Self {
        let (seen, asked, plans) = (BTreeMap::new(), Duration::ZERO, HashMap::new());
        Self { own, patience, seen, asked, plans }
    }

    /// This node begins a new life.
    pub(crate) fn reborn(&mut self, own: Epoch) {
        self.own = own;
    }

    /// Takes in heartbeats that were asked for and answered at these times. Whether who lives has
    /// changed.
    pub(crate) fn observe(&mut self, beats: &[Beat], asked: Duration, answered: Duration) -> bool {
        let before: Vec<_> = self.live().collect();
        self.seen.retain(|epoch, _| beats.iter().any(|beat| beat.epoch == *epoch));
        for beat in beats {
            match self.seen.get_mut(&beat.epoch) {
                Some(seen) if seen.beat == beat.beat => {}
                Some(seen) => (seen.beat, seen.since) = (beat.beat, answered),
                None => {
                    let (plan, node) = (beat.plan.clone(), beat.node.clone());
                    let seen = Seen { beat: beat.beat, plan, node, since: answered };
                    self.seen.insert(beat.epoch, seen);
                }
            }
        }
        self.asked = asked;
        before != self.live().collect::<Vec<_>>()
    }

    /// How a life that is over stands; `None`: it lives.
    pub(crate) fn standing_still(&self, epoch: Epoch) -> Option<StandingStill> {
        if epoch == self.own {
            return None;
        }
        let Some(seen) = self.seen.get(&epoch) else {
            return Some(StandingStill { epoch, beat: 0 });
        };
        let over =
            self.patience.is_none_or(|patience| self.asked.saturating_sub(seen.since) >= patience);
        over.then_some(StandingStill { epoch, beat: seen.beat })
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = Epoch> {
        self.seen.keys().copied().filter(|epoch| self.standing_still(*epoch).is_none())
    }

    /// Lives that are over but not forgotten.
    pub(crate) fn over(&self) -> impl Iterator<Item = Epoch> {
        self.seen.keys().copied().filter(|epoch| self.standing_still(*epoch).is_some())
    }

    /// The plans of live nodes whose endpoints are not known yet.
    pub(crate) fn unknown_plans(&self) -> Vec<String> {
        let plans: HashSet<_> = self.live_seen().map(|seen| seen.plan.clone()).collect();
        plans.into_iter().filter(|plan| !self.plans.contains_key(plan)).collect()
    }

    pub(crate) fn learn(&mut self, plan: String, endpoints: Vec<EndpointName>) {
        let live: HashSet<_> = self.live_seen().map(|seen| seen.plan.clone()).collect();
        self.plans.retain(|plan, _| live.contains(plan));
        self.plans.insert(plan, endpoints.into_iter().collect());
    }

    /// All endpoints that any live node knows.
    pub(crate) fn known(&self) -> HashSet<EndpointName> {
        let plans = self.live_seen().filter_map(|seen| self.plans.get(&seen.plan));
        plans.flatten().cloned().collect()
    }

    /// The names of live nodes that run another plan than this one.
    pub(crate) fn others_that_differ(&self, plan: &str) -> Vec<String> {
        let differing = self.live_seen().filter(|seen| seen.plan != plan);
        differing.map(|seen| seen.node.clone()).collect()
    }

    /// Which node should hold a lane: of the live ones that know the endpoint, the one that ranks
    /// highest.
    pub(crate) fn owner(&self, endpoint: &EndpointName, index: u16) -> Option<Epoch> {
        let knows = |epoch: &Epoch| {
            let plan = self.seen.get(epoch).and_then(|seen| self.plans.get(&seen.plan));
            plan.is_some_and(|endpoints| endpoints.contains(endpoint))
        };
        self.live().filter(knows).max_by_key(|epoch| rank(*epoch, endpoint, index))
    }

    fn live_seen(&self) -> impl Iterator<Item = &Seen> {
        self.live().filter_map(|epoch| self.seen.get(&epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(15);

    fn name(text: &str) -> EndpointName {
        text.parse().unwrap()
    }

    fn beats(beats: &[(i64, i64)]) -> Vec<Beat> {
        let beat = |(epoch, beat): &(i64, i64)| Beat {
            node: format!("node {epoch}"),
            epoch: Epoch(*epoch),
            beat: *beat,
            age: Duration::ZERO,
            plan: "p".to_owned(),
        };
        beats.iter().map(beat).collect()
    }

    fn members(own: i64) -> Members {
        let mut members = Members::new(Epoch(own), Some(LEASE));
        members.learn("p".to_owned(), vec![name("q/out"), name("q/other")]);
        members
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_life_is_over_only_when_it_was_seen_standing_still_for_a_whole_lease() {
        let mut members = members(1);
        // The answer came late: what counts is when it was there, not when it was asked for.
        assert!(members.observe(&beats(&[(1, 1), (2, 7)]), at(0), at(9)));
        members.observe(&beats(&[(1, 2), (2, 7)]), at(23), at(23));
        assert_eq!(members.standing_still(Epoch(2)), None, "seen for 14 s");
        members.observe(&beats(&[(1, 3), (2, 8)]), at(24), at(24));
        members.observe(&beats(&[(1, 3), (2, 8)]), at(38), at(60));
        assert_eq!(members.standing_still(Epoch(2)), None, "asked 14 s after the beat was seen");
        assert!(members.observe(&beats(&[(1, 4), (2, 8)]), at(39), at(39)));
        let still = StandingStill { epoch: Epoch(2), beat: 8 };
        assert_eq!(members.standing_still(Epoch(2)), Some(still));
        assert_eq!(members.standing_still(Epoch(1)), None, "never itself");
        assert!(members.observe(&beats(&[(1, 5), (2, 9)]), at(40), at(40)), "it beats again");
        assert_eq!(members.standing_still(Epoch(2)), None);
        assert!(members.standing_still(Epoch(9)).is_some(), "one that left");
    }

    #[test]
    fn lanes_are_spread_evenly_and_a_node_that_comes_moves_only_what_it_gets() {
        let mut one = members(1);
        one.observe(&beats(&[(1, 1), (2, 1), (3, 1)]), at(0), at(0));
        let owners = |members: &Members| -> Vec<_> {
            (0..300).map(|index| members.owner(&name("q/out"), index).unwrap()).collect()
        };
        let three = owners(&one);
        for epoch in [1, 2, 3] {
            let count = three.iter().filter(|owner| **owner == Epoch(epoch)).count();
            assert!((60..=140).contains(&count), "node {epoch} has {count} of 300");
        }
        // Every node comes to the same.
        let mut two = members(2);
        two.observe(&beats(&[(1, 5), (2, 6), (3, 7)]), at(100), at(101));
        assert_eq!(owners(&two), three);
        one.observe(&beats(&[(1, 2), (2, 2), (3, 2), (4, 1)]), at(3), at(3));
        let moved = owners(&one);
        assert!(moved.iter().zip(&three).all(|(new, old)| new == old || *new == Epoch(4)));
        assert!(moved.contains(&Epoch(4)));
        assert_eq!(one.owner(&name("q/unknown"), 0), None, "nobody knows it");
    }
}
