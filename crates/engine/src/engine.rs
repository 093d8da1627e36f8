//! Starting, stopping, and what can be asked of a running engine.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use pabal_core::{Clock, EndpointName, Epoch, NodePlan, Sender, Stop, Store, StoreError};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinHandle,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Destination, Setup, WayOut,
    careful::Gate,
    dispatcher::{Dispatcher, Signal, Start},
    inbox::{Inbox, Shared},
    keeper::{self, Desk, Exclusive, Keeper, KeeperSignal},
    lease::Lease,
    mailbox::{self, Mailbox},
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
    grace: Duration,
    wake: Wake,
    broken: Stop,
    statuses: Vec<Status>,
    lease: Option<Lease>,
    running: Mutex<Option<Running>>,
}

/// Where the status of a destination is kept.
#[derive(Debug)]
enum Status {
    Sent(Arc<Mutex<DestinationStatus>>),
    Fetched(Mailbox),
}

impl Status {
    fn get(&self) -> Option<DestinationStatus> {
        match self {
            Self::Sent(status) => status.lock().ok().map(|status| status.clone()),
            Self::Fetched(mailbox) => {
                let open = DestinationStatus::new(mailbox.name().clone());
                let paused = mailbox.is_paused();
                let health = if paused { HealthStatus::Paused } else { HealthStatus::Open };
                Some(DestinationStatus { health, fetched: true, ..open })
            }
        }
    }
}

/// What ends with the engine.
#[derive(Debug)]
struct Running {
    closing: Stop,
    inboxes: HashMap<EndpointName, Inbox>,
    stop: Stop,
    /// And pickups.
    receivers: Vec<JoinHandle<()>>,
    committers: Vec<JoinHandle<()>>,
    signals: HashMap<EndpointName, mpsc::UnboundedSender<Signal>>,
    dispatchers: Vec<JoinHandle<()>>,
    tail: Option<JoinHandle<()>>,
    settler: Option<JoinHandle<()>>,
    keeper: Option<(mpsc::UnboundedSender<KeeperSignal>, JoinHandle<()>)>,
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
    /// Lanes that this node holds, ...
    #[serde(default)]
    pub lanes: u16,
    /// ... and of how many; 0 while none is held.
    #[serde(default)]
    pub lanes_of: u16,
    /// Whether its partner fetches the messages, so that nothing is sent.
    #[serde(default)]
    pub fetched: bool,
}

impl DestinationStatus {
    fn new(destination: EndpointName) -> Self {
        let health = HealthStatus::Open;
        Self {
            destination,
            health,
            in_flight: 0,
            pace: None,
            lanes: 0,
            lanes_of: 0,
            fetched: false,
        }
    }
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
        let Setup { hub, node, plan, lease, store, clock, observer, .. } = setup;
        let (sources, destinations, grace, idle) =
            (setup.sources, setup.destinations, setup.grace, setup.idle);
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
            inboxes: HashMap::new(),
            stop: Stop::new(),
            receivers: Vec::new(),
            committers: Vec::new(),
            signals: HashMap::new(),
            dispatchers: Vec::new(),
            tail: None,
            settler: None,
            keeper: None,
        };
        let sources: Vec<_> = sources.into_iter().map(Arc::new).collect();
        for source in &sources {
            let (inbox, committer) = Inbox::new(Arc::clone(source), Arc::clone(&shared));
            inbox.pause(paused(&source.name));
            running.inboxes.insert(source.name.clone(), inbox);
            running.committers.push(supervise(&broken, "a committer", committer));
        }

        let mut statuses = Vec::new();
        let mut own_lease = None;
        if idle {
            drop::<Vec<Destination>>(destinations);
        } else {
            let mut endpoints: Vec<_> = sources.iter().map(|source| source.name.clone()).collect();
            endpoints.extend(destinations.iter().map(|destination| destination.name.clone()));
            let (mut keeper, term, to_keeper) = Keeper::join(keeper::Start {
                store: Arc::clone(&store),
                clock: Arc::clone(&clock),
                observer: Arc::clone(&observer),
                node,
                plan: NodePlan { hash: plan, endpoints },
                period: lease,
            })
            .await?;
            let lease = Lease::new(term, Arc::clone(&clock), lease);
            own_lease = Some(lease.clone());
            let (jobs, queue) = mpsc::unbounded_channel();
            let settling = settler::run(Arc::clone(&store), Arc::clone(&clock), queue);
            running.settler = Some(supervise(&broken, "the settler", settling));
            let (gate, memory) = (Gate::default(), Memory::default());
            let mut desks = HashMap::new();
            let mut dispatchers = Vec::new();
            let mut mailboxes = HashMap::new();
            for destination in destinations {
                let name = destination.name.clone();
                let sender = match &destination.way {
                    WayOut::Sent(sender) => Arc::clone(sender),
                    WayOut::Fetched(pickup) => {
                        let mailbox = Mailbox::new(mailbox::Start {
                            name: name.clone(),
                            order: destination.order,
                            on_dead: destination.on_dead,
                            retry: destination.retry.clone(),
                            lease: pickup.lease(),
                            store: Arc::clone(&store),
                            clock: Arc::clone(&clock),
                            observer: Arc::clone(&observer),
                            node: lease.clone(),
                            memory: memory.clone(),
                            stop: running.stop.clone(),
                        });
                        mailbox.pause(paused(&name));
                        statuses.push(Status::Fetched(mailbox.clone()));
                        mailboxes.insert(name, (mailbox, Arc::clone(pickup)));
                        continue;
                    }
                };
                let destination = Arc::new(destination);
                let status = Arc::new(Mutex::new(DestinationStatus::new(name.clone())));
                statuses.push(Status::Sent(Arc::clone(&status)));
                let (lanes, order) = (destination.lanes, destination.order);
                let whole = destination.rate.is_some();
                let (dispatcher, signals) = Dispatcher::new(Start {
                    caller: Caller {
                        destination,
                        sender,
                        store: Arc::clone(&store),
                        clock: Arc::clone(&clock),
                        lease: lease.clone(),
                        gate: gate.clone(),
                        memory: memory.clone(),
                    },
                    observer: Arc::clone(&observer),
                    settler: jobs.clone(),
                    status,
                    link: links.iter().find(|link| link.endpoint == name).cloned(),
                });
                running.signals.insert(name.clone(), signals.clone());
                dispatchers.push(dispatcher);
                desks.insert(name, Desk { signals, lanes, order, whole });
            }
            for source in &sources {
                let (Some(receiver), Some(inbox)) =
                    (&source.receiver, running.inboxes.get(&source.name))
                else {
                    continue;
                };
                let (receiver, inbox) = (Arc::clone(receiver), Arc::new(inbox.clone()));
                if receiver.exclusive() {
                    keeper.add_receiver(source.name.clone(), Exclusive { receiver, inbox });
                } else {
                    running.receivers.push(tokio::spawn(receivers::run(
                        source.name.clone(),
                        receiver,
                        inbox,
                        Arc::clone(&clock),
                        running.stop.clone(),
                    )));
                }
            }
            // Before anything is read: what is held at the start needs no second reading.
            keeper.lay_out(desks).await?;
            keeper.round(true).await?;
            for dispatcher in dispatchers {
                running.dispatchers.push(supervise(&broken, "a dispatcher", dispatcher.run()));
            }
            let mut rung = HashMap::new();
            for (name, (mailbox, pickup)) in mailboxes {
                rung.insert(name, mailbox.clone());
                let (clock, stop) = (Arc::clone(&clock), running.stop.clone());
                let pickup = receivers::run_pickup(pickup, mailbox, clock, stop);
                running.receivers.push(tokio::spawn(pickup));
            }
            let tail = Tail {
                store: Arc::clone(&store),
                clock: Arc::clone(&clock),
                wake: wake.clone(),
                stop: running.stop.clone(),
                dispatchers: running.signals.clone(),
                mailboxes: rung,
                inboxes: running.inboxes.clone(),
                request,
                pages: Arc::new(Semaphore::new(PAGES_UNDER_WAY)),
                known: keeper.known(),
            };
            running.tail = Some(supervise(&broken, "the tail read", tail.run()));
            let keeping = supervise(&broken, "the keeper", keeper.run(running.stop.clone()));
            running.keeper = Some((to_keeper, keeping));
        }
        let running = Mutex::new(Some(running));
        let lease = own_lease;
        Ok(Self { store, router, clock, grace, wake, broken, statuses, lease, running })
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

    /// This node's life; none in an idle engine.
    #[must_use]
    pub fn epoch(&self) -> Option<Epoch> {
        self.lease.as_ref().map(|lease| lease.term().epoch)
    }

    /// Where each destination stands, in the order of the setup; empty in an idle engine.
    #[must_use]
    pub fn status(&self) -> Vec<DestinationStatus> {
        self.statuses.iter().filter_map(Status::get).collect()
    }

    /// Takes nothing new, lets what is in hand end within the grace, cuts the rest off, writes what
    /// is known of it, and releases the lanes. A second call does nothing.
    pub async fn stop(&self) {
        let Some(running) = self.running.lock().ok().and_then(|mut running| running.take()) else {
            return;
        };
        let deadline = self.clock.elapsed().saturating_add(self.grace);
        running.stop.fire();
        for signals in running.signals.values() {
            let _ = signals.send(Signal::Stop(deadline));
        }
        if let Some((keeper, _)) = &running.keeper {
            let _ = keeper.send(KeeperSignal::Close);
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
        }
        if let Some((keeper, keeping)) = running.keeper {
            let _ = keeper.send(KeeperSignal::End { clean });
            self.end(keeping, deadline, "the keeper").await;
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
