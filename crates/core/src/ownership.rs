//! Who works on what: nodes, their lives, and the lanes they hold.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{EndpointName, Order};

/// A node's life: grows with every join, so that what an earlier life holds can be told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub i64);

/// What a node runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePlan {
    /// Of everything in it: nodes that run the same have the same.
    pub hash: String,
    /// Its sources and destinations.
    pub endpoints: Vec<EndpointName>,
}

/// One node's heartbeat. Expiry is judged by its standing still, by no wall clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// The node's name, for people.
    pub node: String,
    /// Its life.
    pub epoch: Epoch,
    /// Grows with every renewal.
    pub beat: i64,
    /// Since the last renewal by the store's clock, for people.
    pub age: Duration,
    /// The hash of the plan it runs.
    pub plan: String,
}

/// A life whose heartbeat was seen unchanged for a whole lease: at this beat. Should it beat again,
/// what was decided on this ground no longer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandingStill {
    /// The life.
    pub epoch: Epoch,
    /// The beat it stands at.
    pub beat: i64,
}

/// How a destination is spread over lanes. Nothing of a layout is held while anything of an earlier
/// one is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Whose.
    pub destination: EndpointName,
    /// Grows with every change.
    pub number: i64,
    /// Over how many lanes.
    pub lanes: u16,
    /// What may not overtake what.
    pub order: Order,
}

impl Layout {
    /// The lane of a slot.
    #[must_use]
    pub fn lane_of(&self, slot: u8) -> u16 {
        u16::from(slot) % self.lanes.max(1)
    }
}

/// A set of slots of one destination, those with `slot % lanes == index`; or the right to run an
/// exclusive receiver.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane {
    /// The destination; or the source of the receiver.
    pub endpoint: EndpointName,
    /// The numbered layout it belongs to; [`Lane::RECEIVER`] for a receiver.
    pub layout: i64,
    /// Which of the layout's lanes.
    pub index: u16,
}

impl Lane {
    /// The layout of what is no delivery lane. Layouts of destinations count from 1.
    pub const RECEIVER: i64 = 0;

    /// The right to run the exclusive receiver of a source.
    #[must_use]
    pub fn receiver(source: EndpointName) -> Self {
        Self { endpoint: source, layout: Self::RECEIVER, index: 0 }
    }
}

/// Who holds a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneHolder {
    /// Which.
    pub lane: Lane,
    /// `None`: nobody.
    pub holder: Option<Epoch>,
    /// Whether its last holder let go with nothing in flight.
    pub clean: bool,
}

/// How far up a life stands among those that could hold a lane; the highest holds it. Every node
/// comes to the same order, and a node that comes or goes moves only what it gets or had.
#[must_use]
pub fn rank(epoch: Epoch, endpoint: &EndpointName, index: u16) -> u64 {
    let name = format!("{} {index} {}", endpoint.as_str(), epoch.0);
    xxhash_rust::xxh3::xxh3_64(name.as_bytes())
}
