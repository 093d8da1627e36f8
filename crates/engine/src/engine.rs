//! Starting, stopping, and what can be asked of a running engine.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use pabal_core::{Clock, EndpointName, Epoch, Lane, NodePlan, Sender, Stop, Store, StoreError};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinHandle,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Destination, Event, Observer, Setup,
    careful::Gate,
    dispatcher::{Dispatcher, Signal, Start},
    inbox::{Inbox, Shared},
    memory::Memory,
    receivers,
    router::Router,
    sending::Caller,
    settler,
    tail::{PAGES_UNDER_WAY, Tail, Wake},
};

/// After the grace, writing what is known gets this much longer.
const WRITING: Duration = Duration::from_secs(5);

/// A running engine.
#[derive(Debug)]
pub struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) router: Arc<Router>,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
    grace: Duration,
    wake: Wake,
    broken: Stop,
    statuses: Vec<Arc<Mutex<DestinationStatus>>>,
    running: Mutex<Option<Running>>,
}

/// What ends with the engine.
#[derive(Debug)]
struct Running {
    closing: Stop,
    epoch: Option<Epoch>,
    lanes: Vec<Lane>,
    inboxes: HashMap<EndpointName, Inbox>,
    stop: Stop,
    receivers: Vec<JoinHandle<()>>,
    committers: Vec<JoinHandle<()>>,
    signals: Vec<mpsc::UnboundedSender<Signal>>,
    dispatchers: Vec<JoinHandle<()>>,
    tail: Option<JoinHandle<()>>,
    settler: Option<JoinHandle<()>>,
}

/// Where a destination stands on this node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DestinationStatus {
    /// Which.
    pub destination: EndpointName,
    /// Whether it may send.
    pub health: HealthStatus,
    /// Messages being sent now.
    pub in_flight: usize,
    /// The pace it is held to at the moment, in messages a second, if any.
    pub pace: Option<f64>,
}

/// Whether a destination may send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum HealthStatus {
    /// It sends.
    Open,
    /// An operator paused it.
    Paused,
    /// It is held and probed.
    Held {
        /// Why.
        cause: String,
        /// Failed probes so far.
        probes: u32,
        /// Until the next probe, in milliseconds.
        probe_in_ms: u64,
    },
}

impl Engine {
    /// Starts everything. The caller holds whatever makes this node the only one on the store.
    ///
    /// # Errors
    /// If the store cannot.
    pub async fn start(setup: Setup) -> Result<Self, StoreError> {
        let Setup { hub, node, store, clock, observer, sources, destinations, grace, idle } = setup;
        let wake = Wake::default();
        let broken = Stop::new();
        let router = Arc::new(Router::new(&destinations));
        // Read before the states it speaks of, so that no change falls in between.
        let request = store.requests(0).await?.last().map_or(0, |(id, _)| *id);
        let links = store.link_states().await?;
        let paused = |endpoint: &EndpointName| {
            links.iter().any(|link| link.endpoint == *endpoint && link.paused.is_some())
        };

        let shared = Arc::new(Shared {
            hub,
            store: Arc::clone(&store),
            clock: Arc::clone(&clock),
            observer: Arc::clone(&observer),
            router: Arc::clone(&router),
            committed: Arc::clone(&wake.committed),
            closing: Stop::new(),
        });
        let mut running = Running {
            closing: shared.closing.clone(),
            epoch: None,
            lanes: Vec::new(),
            inboxes: HashMap::new(),
            stop: Stop::new(),
            receivers: Vec::new(),
            committers: Vec::new(),
            signals: Vec::new(),
            dispatchers: Vec::new(),
            tail: None,
            settler: None,
        };
        let sources: Vec<_> = sources.into_iter().map(Arc::new).collect();
        for source in &sources {
            let (inbox, committer) = Inbox::new(Arc::clone(source), Arc::clone(&shared));
            inbox.pause(paused(&source.name));
            running.inboxes.insert(source.name.clone(), inbox);
            running.committers.push(supervise(&broken, "a committer", committer));
        }

        let mut statuses = Vec::new();
        let mut feeds = HashMap::new();
        if !idle {
            let plan = NodePlan { hash: String::new(), endpoints: Vec::new() };
            let epoch = store.join(&node, &plan).await?;
            running.epoch = Some(epoch);
            let (jobs, queue) = mpsc::unbounded_channel();
            let settling = settler::run(Arc::clone(&store), Arc::clone(&clock), epoch, queue);
            running.settler = Some(supervise(&broken, "the settler", settling));
            let (gate, memory) = (Gate::default(), Memory::default());
            let holders = store.lanes().await?;
            for destination in destinations {
                let destination = Arc::new(destination);
                let name = destination.name.clone();
                let layout = store.lay_out(&name, 1, destination.order).await?;
                let lane = Lane { endpoint: name.clone(), layout: layout.number, index: 0 };
                let before = holders.iter().filter(|h| h.lane.endpoint == name);
                let mut careful = false;
                for old in before {
                    careful |= old.holder.is_some() || !old.clean;
                    if let Some(holder) = old.holder {
                        store.release_lane(&old.lane, holder, false).await?;
                    }
                }
                if !store.take_lane(&lane, None, epoch).await? {
                    return Err(StoreError::Fenced);
                }
                observer.observe(Event::Lane { destination: &name, held: true });
                running.lanes.push(lane);
                let status = Arc::new(Mutex::new(DestinationStatus {
                    destination: name.clone(),
                    health: HealthStatus::Open,
                    in_flight: 0,
                    pace: None,
                }));
                statuses.push(Arc::clone(&status));
                let link = links.iter().find(|link| link.endpoint == name);
                let (dispatcher, signals) = Dispatcher::new(Start {
                    caller: Caller {
                        destination,
                        store: Arc::clone(&store),
                        clock: Arc::clone(&clock),
                        epoch,
                        gate: gate.clone(),
                        memory: memory.clone(),
                    },
                    observer: Arc::clone(&observer),
                    settler: jobs.clone(),
                    status,
                    held: store.held(&name).await?,
                    paused: paused(&name),
                    tripped: link.and_then(|link| link.tripped.clone()),
                    careful,
                });
                running.signals.push(signals.clone());
                running.dispatchers.push(supervise(&broken, "a dispatcher", dispatcher.run()));
                feeds.insert(name, signals);
            }
            let tail = Tail {
                store: Arc::clone(&store),
                clock: Arc::clone(&clock),
                wake: wake.clone(),
                stop: running.stop.clone(),
                dispatchers: feeds,
                inboxes: running.inboxes.clone(),
                request,
                pages: Arc::new(Semaphore::new(PAGES_UNDER_WAY)),
            };
            running.tail = Some(supervise(&broken, "the tail read", tail.run()));
            for source in &sources {
                if let (Some(receiver), Some(inbox)) =
                    (&source.receiver, running.inboxes.get(&source.name))
                {
                    running.receivers.push(tokio::spawn(receivers::run(
                        source.name.clone(),
                        Arc::clone(receiver),
                        Arc::new(inbox.clone()),
                        Arc::clone(&clock),
                        running.stop.clone(),
                    )));
                }
            }
        } else {
            drop::<Vec<Destination>>(destinations);
        }
        let running = Mutex::new(Some(running));
        Ok(Self { store, router, clock, observer, grace, wake, broken, statuses, running })
    }

    /// The inbox of a source: what is handed to it is taken as if its receiver had brought it.
    /// `None`: there is no such source, or the engine has stopped.
    #[must_use]
    pub fn inbox(&self, source: &EndpointName) -> Option<Arc<dyn Sender>> {
        self.own_inbox(source).map(|inbox| Arc::new(inbox) as Arc<dyn Sender>)
    }

    pub(crate) fn own_inbox(&self, source: &EndpointName) -> Option<Inbox> {
        self.running.lock().ok()?.as_ref()?.inboxes.get(source).cloned()
    }

    /// Looks at once for what an operator's verb changed in the store.
    pub fn wake(&self) {
        self.wake.ask();
    }

    /// Where each destination stands, in the order of the setup; empty in an idle engine.
    #[must_use]
    pub fn status(&self) -> Vec<DestinationStatus> {
        let status = |s: &Arc<Mutex<DestinationStatus>>| s.lock().ok().map(|status| status.clone());
        self.statuses.iter().filter_map(status).collect()
    }

    /// Takes nothing new, lets what is in hand end within the grace, cuts the rest off, writes what
    /// is known of it, and releases the lanes. A second call does nothing.
    pub async fn stop(&self) {
        let Some(running) = self.running.lock().ok().and_then(|mut running| running.take()) else {
            return;
        };
        let deadline = self.clock.elapsed().saturating_add(self.grace);
        running.stop.fire();
        for signals in &running.signals {
            let _ = signals.send(Signal::Stop(deadline));
        }
        for receiver in running.receivers {
            self.end(receiver, deadline, "a receiver").await;
        }
        if let Some(tail) = running.tail {
            self.end(tail, deadline, "the tail read").await;
        }
        running.closing.fire();
        // What is left to do is to write, which a store that cannot must not hold up for ever.
        let deadline = deadline.saturating_add(WRITING);
        for committer in running.committers {
            self.end(committer, deadline, "a committer").await;
        }
        let mut clean = !self.broken.fired();
        for dispatcher in running.dispatchers {
            clean &= self.end(dispatcher, deadline, "a dispatcher").await;
        }
        drop(running.signals);
        if let Some(settler) = running.settler {
            clean &= self.end(settler, deadline, "the settler").await;
        }
        if !clean {
            tracing::error!(alert = true, "not everything was written: the next start is careful");
            return;
        }
        if let Some(epoch) = running.epoch {
            for lane in running.lanes {
                if let Err(error) = self.store.release_lane(&lane, epoch, true).await {
                    tracing::warn!(%error, "a lane was not released: the next start is careful");
                }
                let destination = &lane.endpoint;
                self.observer.observe(Event::Lane { destination, held: false });
            }
        }
    }

    /// Waits for a task, and cuts it off at the deadline; whether it ended by itself.
    async fn end(&self, mut task: JoinHandle<()>, deadline: Duration, what: &str) -> bool {
        let left = deadline.saturating_sub(self.clock.elapsed());
        let ended = self.clock.timeout(left, &mut task).await.is_some();
        if !ended {
            tracing::warn!("{what} did not end within the grace and is cut off");
            task.abort();
        }
        ended
    }

    /// Returns once a part of the engine has failed that it cannot run without, and says which: the
    /// process should end, and start again.
    pub async fn broken(&self) -> String {
        self.broken.wait().await;
        self.broken.failure().unwrap_or_default()
    }
}

/// Runs a task that the engine cannot be without; should it panic, that is told and never silent.
fn supervise(
    broken: &Stop,
    what: &'static str,
    task: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<()> {
    let broken = broken.clone();
    tokio::spawn(async move {
        if let Err(panic) = AbortOnDropHandle::new(tokio::spawn(task)).await {
            tracing::error!(alert = true, %panic, "{what} of the engine failed");
            broken.fail(format!("{what} failed: {panic}"));
        }
    })
}
