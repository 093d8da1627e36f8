//! Exclusive receivers: each runs on the one node that holds the right to.

use std::{collections::HashMap, sync::Arc, time::Duration};

use pabal_core::{Clock, EndpointName, Lane, Receiver, Sender, Stop};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use super::KeeperSignal;
use crate::{
    lease::{Lease, Term},
    receivers,
};

/// A receiver and where it brings messages.
pub(crate) struct Exclusive {
    pub(crate) receiver: Arc<dyn Receiver>,
    pub(crate) inbox: Arc<dyn Sender>,
}

pub(super) struct Receivers {
    clock: Arc<dyn Clock>,
    lease: Lease,
    keeper: mpsc::UnboundedSender<KeeperSignal>,
    known: HashMap<EndpointName, Exclusive>,
    running: HashMap<EndpointName, (Stop, JoinHandle<()>)>,
}

impl Receivers {
    pub(super) fn new(
        clock: Arc<dyn Clock>,
        term: watch::Receiver<Term>,
        keeper: mpsc::UnboundedSender<KeeperSignal>,
        period: Duration,
    ) -> Self {
        let lease = Lease::new(term, Arc::clone(&clock), period);
        Self { clock, lease, keeper, known: HashMap::new(), running: HashMap::new() }
    }

    pub(super) fn add(&mut self, source: EndpointName, exclusive: Exclusive) {
        self.known.insert(source, exclusive);
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &EndpointName> {
        self.known.keys()
    }

    /// Runs a receiver until it is stopped or the lease is over.
    pub(super) fn start(&mut self, source: &EndpointName) {
        let Some(Exclusive { receiver, inbox }) = self.known.get(source) else { return };
        let (stop, lease, name) = (Stop::new(), self.lease.clone(), source.clone());
        let run = receivers::run(
            name.clone(),
            Arc::clone(receiver),
            Arc::clone(inbox),
            Arc::clone(&self.clock),
            stop.clone(),
        );
        let (keeper, lane) = (self.keeper.clone(), Lane::receiver(name.clone()));
        let task = tokio::spawn(async move {
            let tenure = lease.term().tenure;
            tokio::select! {
                biased;
                // What it had in hand has no receipt, so its origin offers it again.
                () = lease.lapsed(tenure) => {
                    tracing::error!(alert = true, source = %name, "a receiver was cut off with the lease");
                }
                () = run => {}
            }
            let _ = keeper.send(KeeperSignal::Drained(lane));
        });
        self.running.insert(source.clone(), (stop, task));
    }

    pub(super) fn stop(&mut self, lane: &Lane) {
        match self.running.remove(&lane.endpoint) {
            Some((stop, _)) => stop.fire(),
            None => {
                let _ = self.keeper.send(KeeperSignal::Drained(lane.clone()));
            }
        }
    }

    pub(super) fn stop_all(&self) {
        self.running.values().for_each(|(stop, _)| stop.fire());
    }

    /// Returns once all have ended; they were told to.
    pub(super) async fn wait(&mut self) {
        self.stop_all();
        for (_, (_, task)) in self.running.drain() {
            let _ = task.await;
        }
    }
}
