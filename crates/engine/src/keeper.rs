//! Keeps this node alive among the others: the heartbeat, and which lanes and exclusive receivers
//! it holds.

mod receiving;
mod round;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use pabal_core::{Clock, EndpointName, Epoch, Lane, NodePlan, Order, Stop, Store, StoreError};
use tokio::sync::{mpsc, watch};

pub(crate) use self::receiving::Exclusive;
use self::receiving::Receivers;
use crate::{Event, Observer, dispatcher::Signal, lease::Term, members::Members};

/// A lease has so many heartbeats.
const BEATS: u32 = 5;
/// What lanes are held by whom is looked at with every so-manieth heartbeat even if nothing else
/// calls for it.
const LOOK: u32 = 5;

/// What the keeper is told.
#[derive(Debug)]
pub(crate) enum KeeperSignal {
    /// Nothing of this lane is in flight here any more.
    Drained(Lane),
    /// Nothing more is taken; what is held stays held.
    Close,
    /// Lets go of everything if nothing of it can be in flight, and ends.
    End { clean: bool },
}

/// A destination as the keeper knows it.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) signals: mpsc::UnboundedSender<Signal>,
    pub(crate) lanes: u16,
    pub(crate) order: Order,
    /// All its lanes are held by one node: its rate is that node's to keep.
    pub(crate) whole: bool,
}

/// What becomes of a lane that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    Held,
    /// To be released once nothing of it is in flight.
    Leaving,
    /// Another node holds it; what was in flight here is not yet written.
    Lost,
}

pub(crate) struct Keeper {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
    node: String,
    plan: NodePlan,
    /// How long a lease is.
    period: Duration,
    term: watch::Sender<Term>,
    desks: HashMap<EndpointName, Desk>,
    receivers: Receivers,
    members: Members,
    held: BTreeMap<Lane, Hold>,
    /// Something this node should hold is still another's.
    awaited: bool,
    signals: mpsc::UnboundedReceiver<KeeperSignal>,
    own: mpsc::UnboundedSender<KeeperSignal>,
    closed: bool,
    rounds: u32,
    /// Live nodes that run another plan, as it was told last.
    differing: Vec<String>,
    known: watch::Sender<HashSet<EndpointName>>,
}

/// What a keeper starts with.
pub(crate) struct Start {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) node: String,
    pub(crate) plan: NodePlan,
    pub(crate) period: Duration,
}

impl Keeper {
    /// Begins this node's life; the lease and the way to tell the keeper something.
    pub(crate) async fn join(
        start: Start,
    ) -> Result<(Self, watch::Receiver<Term>, mpsc::UnboundedSender<KeeperSignal>), StoreError>
    {
        let Start { store, clock, observer, node, plan, period } = start;
        let asked = clock.elapsed();
        let epoch = store.join(&node, &plan).await?;
        let shared = store.shared();
        let until = if shared { asked.saturating_add(period) } else { Duration::MAX };
        let (term, lease) = watch::channel(Term { epoch, until, tenure: 0 });
        // A little longer than the holder counts, for clocks that do not run alike.
        let patience = shared.then(|| period + period / 10);
        let mut members = Members::new(epoch, patience);
        members.learn(plan.hash.clone(), plan.endpoints.clone());
        let (own, signals) = mpsc::unbounded_channel();
        let keeper = Self {
            receivers: Receivers::new(Arc::clone(&clock), lease.clone(), own.clone(), period),
            store,
            clock,
            observer,
            node,
            plan,
            period,
            term,
            desks: HashMap::new(),
            members,
            held: BTreeMap::new(),
            awaited: false,
            signals,
            own: own.clone(),
            closed: false,
            rounds: 0,
            differing: Vec::new(),
            known: watch::Sender::default(),
        };
        Ok((keeper, lease, own))
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.term.borrow().epoch
    }

    /// What there is to hold. A destination that is laid out otherwise gets its new layout here:
    /// whoever starts last decides.
    pub(crate) async fn lay_out(
        &mut self,
        desks: HashMap<EndpointName, Desk>,
    ) -> Result<(), StoreError> {
        let known = self.store.layouts().await?;
        for (name, desk) in &desks {
            let lanes = if desk.order == Order::All { 1 } else { desk.lanes.max(1) };
            let fits = known.iter().any(|layout| {
                layout.destination == *name && (layout.lanes, layout.order) == (lanes, desk.order)
            });
            if !fits {
                let layout = self.store.lay_out(name, lanes, desk.order).await?;
                tracing::info!(
                    destination = %name, layout = layout.number, lanes, "laid out"
                );
            }
        }
        self.desks = desks;
        Ok(())
    }

    /// All endpoints that any live node knows.
    pub(crate) fn known(&self) -> watch::Receiver<HashSet<EndpointName>> {
        self.known.subscribe()
    }

    /// A receiver that one node at a time runs.
    pub(crate) fn add_receiver(&mut self, source: EndpointName, exclusive: Exclusive) {
        self.receivers.add(source, exclusive);
    }

    /// Runs until it is told to end.
    pub(crate) async fn run(mut self, stop: Stop) {
        let interval = self.period / BEATS;
        let mut next = self.clock.elapsed().saturating_add(interval);
        let alone = !self.store.shared();
        let clock = Arc::clone(&self.clock);
        loop {
            tokio::select! {
                signal = self.signals.recv() => match signal {
                    Some(KeeperSignal::Drained(lane)) => self.drained(lane).await,
                    Some(KeeperSignal::Close) => {
                        self.closed = true;
                        self.receivers.stop_all();
                    }
                    Some(KeeperSignal::End { clean }) => return self.end(clean).await,
                    None => return,
                },
                () = clock.sleep_until(next), if !alone => {
                    let begun = self.clock.elapsed();
                    next = match self.beat().await {
                        Ok(settled) => begun + if settled { interval } else { interval / 3 },
                        Err(error) => {
                            if !stop.fired() {
                                tracing::warn!(%error, "the heartbeat is tried again");
                            }
                            self.clock.elapsed() + interval / 3
                        }
                    };
                }
            }
        }
    }

    /// One heartbeat, and a look at the lanes if something calls for it. Whether all lanes are where
    /// they belong.
    async fn beat(&mut self) -> Result<bool, StoreError> {
        let asked = self.clock.elapsed();
        // An answer that comes later is none: the next attempt must still be in time.
        let (store, limit, epoch) = (Arc::clone(&self.store), self.period / 3, self.epoch());
        let beats = match self.clock.timeout(limit, store.beat(epoch)).await {
            Some(Ok(beats)) => beats,
            Some(Err(StoreError::Fenced)) => return self.begin_anew().await.map(|()| false),
            Some(Err(error)) => return Err(error),
            None => return Err(StoreError::Unavailable("no answer to the heartbeat".to_owned())),
        };
        let changed = self.members.observe(&beats, asked, self.clock.elapsed());
        self.rounds += 1;
        let lapsed = self.term.borrow().until <= self.clock.elapsed();
        if lapsed {
            tracing::error!(
                alert = true, lease = ?self.period,
                "the heartbeat came too late: what was under way is cut off"
            );
            // Before anything is begun: what others took meanwhile is not ours.
            self.look_what_was_lost().await?;
        }
        self.renew(epoch, asked, lapsed);
        self.tell_plans();
        if self.closed
            || !(changed || lapsed || self.rounds.is_multiple_of(LOOK) || self.unsettled())
        {
            return Ok(true);
        }
        self.round(false).await
    }

    fn renew(&self, epoch: Epoch, asked: Duration, lapsed: bool) {
        let until = asked.saturating_add(self.period);
        self.term.send_modify(|term| {
            *term = Term { epoch, until, tenure: term.tenure + u64::from(lapsed) };
        });
    }

    /// Others took this life for over and took all it had: it is another one from now on.
    async fn begin_anew(&mut self) -> Result<(), StoreError> {
        tracing::error!(
            alert = true,
            node = self.node,
            "other nodes took this one for dead and took over its lanes: it joins anew"
        );
        let lanes: Vec<_> = self.held.keys().cloned().collect();
        lanes.iter().for_each(|lane| self.lose(lane, Hold::Lost));
        let asked = self.clock.elapsed();
        let epoch = self.store.join(&self.node, &self.plan).await?;
        self.members.reborn(epoch);
        self.renew(epoch, asked, true);
        Ok(())
    }

    /// Nodes that run different plans are shown once for each difference.
    fn tell_plans(&mut self) {
        let differing = self.members.others_that_differ(&self.plan.hash);
        if differing == self.differing {
            return;
        }
        if differing.is_empty() {
            tracing::info!("all nodes run the same configuration");
        } else {
            tracing::warn!(
                alert = true, nodes = ?differing,
                "nodes run another configuration than this one: fine while they are restarted one \
                 after the other, a mistake if it stays"
            );
        }
        self.observer.observe(Event::PlansDiffer { nodes: differing.len() });
        self.differing = differing;
    }

    /// Lets go at the end. What is not clean is left as it is: whoever takes it looks carefully.
    async fn end(mut self, clean: bool) {
        self.receivers.wait().await;
        let epoch = self.epoch();
        let lanes: Vec<_> = self.held.keys().cloned().collect();
        for lane in lanes {
            if clean {
                match self.store.release_lane(&lane, epoch).await {
                    Ok(true) => {}
                    Ok(false) => {
                        tracing::warn!(endpoint = %lane.endpoint, "a lane was lost before")
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a lane was not released: the next holder is careful");
                    }
                }
            }
            self.observer.observe(Event::Lane { destination: &lane.endpoint, held: false });
        }
        if clean && let Err(error) = self.store.leave(epoch).await {
            tracing::warn!(%error, "this node could not say that it leaves");
        }
    }
}
