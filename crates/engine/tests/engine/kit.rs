//! A hub without transports: a throw-away SQLite store, a clock moved by hand, partners that answer
//! by script, and a record of everything the engine tells.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use pabal_core::{
    Clock, DeadLetter, DeadLetterQuery, EndpointName, Limits, ManualClock, Message, OperatorAct,
    Receipt, SendError, Sender, Store, Verdict,
};
use pabal_engine::{Destination, Engine, Event, Observer, Setup, Source};
use pabal_store_sqlite::{Options, SqliteStore};
use tokio::sync::{Semaphore, watch};

use crate::wrapped::Wrapped;

/// Nothing in these tests takes this long; it bounds a test that would hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn name(text: &str) -> EndpointName {
    text.parse().unwrap()
}

pub(crate) fn act() -> OperatorAct {
    OperatorAct { by: "kim".into(), verb: "test".into(), subject: "x".into(), why: None }
}

/// A message from `city/orders` of type `order`.
pub(crate) fn message(id: &str, key: Option<&str>, body: &str) -> Message {
    let mut message = Message::new(name("city/orders"), "order", body.to_owned());
    message.origin.id = Some(id.into());
    message.key = key.map(Into::into);
    message
}

pub(crate) fn text(message: &Message) -> String {
    String::from_utf8_lossy(message.body.inline().unwrap()).into_owned()
}

pub(crate) struct Kit {
    folder: tempfile::TempDir,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: ManualClock,
    pub(crate) seen: Arc<Seen>,
    pub(crate) setup: Setup,
}

impl Kit {
    pub(crate) async fn new() -> Self {
        Self::reopen(tempfile::tempdir().unwrap(), ManualClock::default()).await
    }

    async fn reopen(folder: tempfile::TempDir, clock: ManualClock) -> Self {
        let options = Options { path: folder.path().join("hub.db"), hub_name: "hub".into() };
        let store = SqliteStore::open(options, Arc::new(clock.clone())).await.unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        let seen = Arc::new(Seen::default());
        let setup = Setup {
            hub: "hub".into(),
            node: "one".into(),
            plan: "plan".into(),
            lease: Duration::from_secs(15),
            store: Arc::clone(&store),
            clock: Arc::new(clock.clone()),
            observer: Arc::clone(&seen) as Arc<dyn Observer>,
            sources: vec![Source::new(name("city/orders"), None)],
            destinations: Vec::new(),
            grace: Duration::from_secs(10),
            idle: false,
        };
        Self { folder, store, clock, seen, setup }
    }

    /// The same store and clock, as after a restart of the process.
    pub(crate) async fn again(self) -> Self {
        Self::reopen(self.folder, self.clock).await
    }

    /// Adds a destination that takes all orders; change it through the returned reference.
    pub(crate) fn to(&mut self, destination: &str, partner: &Arc<Partner>) -> &mut Destination {
        let sender = Arc::clone(partner) as Arc<dyn Sender>;
        self.setup.destinations.push(Destination::new(name(destination), &["order"], sender));
        self.setup.destinations.last_mut().unwrap()
    }

    /// Starts an engine on what was set up.
    pub(crate) async fn start(&mut self) -> Engine {
        let setup = Setup {
            hub: "hub".into(),
            node: "one".into(),
            plan: "plan".into(),
            lease: Duration::from_secs(15),
            store: Arc::clone(&self.store),
            clock: Arc::clone(&self.setup.clock),
            observer: Arc::clone(&self.setup.observer),
            sources: self.setup.sources.clone(),
            destinations: std::mem::take(&mut self.setup.destinations),
            grace: self.setup.grace,
            idle: self.setup.idle,
        };
        Engine::start(setup).await.unwrap()
    }

    pub(crate) async fn dead(&self) -> Vec<DeadLetter> {
        self.store.dead_letters(&DeadLetterQuery::default()).await.unwrap()
    }

    /// One of many nodes on this store; what it tells starts with its name.
    pub(crate) async fn node(
        &self,
        node: &'static str,
        change: impl FnOnce(&mut Setup),
    ) -> (Engine, Arc<Wrapped>) {
        let mut wrapped = Wrapped::of(Arc::clone(&self.store));
        wrapped.shared = true;
        let store = Arc::new(wrapped);
        let mut setup = Setup {
            hub: "hub".into(),
            node: node.into(),
            plan: "plan".into(),
            lease: Duration::from_secs(15),
            store: Arc::clone(&store) as Arc<dyn Store>,
            clock: Arc::new(self.clock.clone()),
            observer: Arc::new(SeenBy(node, Arc::clone(&self.seen))),
            sources: self.setup.sources.clone(),
            destinations: Vec::new(),
            grace: self.setup.grace,
            idle: false,
        };
        change(&mut setup);
        (Engine::start(setup).await.unwrap(), store)
    }

    /// Lets time pass, in steps small enough for one thing to follow from another, until `done`.
    pub(crate) async fn pass_until(&self, step: Duration, mut done: impl FnMut() -> bool) {
        let start = self.clock.elapsed();
        while !done() {
            assert!(self.clock.elapsed() - start < Duration::from_secs(30 * 86_400), "a month");
            let count = self.seen.count();
            self.clock.advance(step);
            // Until something is told, or evidently nothing follows.
            let _ =
                tokio::time::timeout(Duration::from_millis(10), self.seen.more_than(count)).await;
        }
    }
}

/// Hands messages over, each alone and at once; all must be taken.
pub(crate) async fn hand_over(engine: &Engine, messages: impl IntoIterator<Item = Message>) {
    let messages: Vec<_> = messages.into_iter().collect();
    let inbox = engine.inbox(&name("city/orders")).unwrap();
    for verdict in inbox.send(&messages).await {
        verdict.unwrap();
    }
}

/// What the engine told.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    told: Mutex<Vec<String>>,
    count: watch::Sender<usize>,
}

impl Observer for Seen {
    fn observe(&self, event: Event<'_>) {
        self.tell(line(&event));
    }
}

/// The same for one of many nodes, by its name.
#[derive(Debug)]
pub(crate) struct SeenBy(pub(crate) &'static str, pub(crate) Arc<Seen>);

impl Observer for SeenBy {
    fn observe(&self, event: Event<'_>) {
        self.1.tell(format!("{} {}", self.0, line(&event)));
    }
}

fn line(event: &Event<'_>) -> String {
    match event {
        Event::Accepted { source, .. } => format!("accepted {source}"),
        Event::Duplicate { source, .. } => format!("duplicate {source}"),
        Event::HotCache { hint, .. } => format!("hot cache {hint:?}"),
        Event::Conflict { source, .. } => format!("conflict {source}"),
        Event::Refused { source, reason } => format!("refused {source} {reason}"),
        Event::SetAside { source, reason } => format!("aside {source} {reason:?}"),
        Event::Attempt { destination, outcome, spent, .. } => {
            format!("attempt {destination} {outcome}{}", if *spent { " spent" } else { "" })
        }
        Event::Delivered { destination, attempts, .. } => {
            format!("delivered {destination} {attempts}")
        }
        Event::Dead { destination, reason, .. } => format!("dead {destination} {reason:?}"),
        Event::SettledBefore { destination, .. } => format!("before {destination}"),
        Event::Breaker { destination, cause } => {
            format!("breaker {destination} {}", cause.unwrap_or("-"))
        }
        Event::Lane { destination, held } => format!("lane {destination} {held}"),
        Event::PlansDiffer { nodes } => format!("plans differ {nodes}"),
    }
}

impl Seen {
    fn tell(&self, line: String) {
        self.told.lock().unwrap().push(line);
        self.count.send_modify(|count| *count += 1);
    }

    pub(crate) fn count(&self) -> usize {
        *self.count.borrow()
    }

    /// How many lines start like this.
    pub(crate) fn lines(&self, start: &str) -> usize {
        self.told.lock().unwrap().iter().filter(|line| line.starts_with(start)).count()
    }

    pub(crate) async fn more_than(&self, count: usize) {
        self.count.subscribe().wait_for(|now| *now > count).await.unwrap();
    }

    /// Waits until so many lines start like this.
    pub(crate) async fn wait(&self, start: &str, lines: usize) {
        let mut count = self.count.subscribe();
        let told = count.wait_for(|_| self.lines(start) >= lines);
        if tokio::time::timeout(PATIENCE, told).await.is_err() {
            panic!("waited for {lines} × {start:?}, told: {:#?}", self.told.lock().unwrap());
        }
    }
}

/// What a partner does with one message.
pub(crate) enum Step {
    Say(Verdict),
    /// Holds the answer until the gate is opened.
    Hold,
    Panic,
    /// One verdict too many.
    Babble,
}

pub(crate) fn ok() -> Step {
    Step::Say(Ok(Receipt::default()))
}

pub(crate) fn failed() -> Step {
    Step::Say(Err(SendError::transient("HTTP 503")))
}

pub(crate) fn away() -> Step {
    Step::Say(Err(SendError::unreachable("connection refused")))
}

type Script = dyn Fn(&Message, usize) -> Step + Send + Sync;

/// A partner that answers by script: the message, and how often it came before.
pub(crate) struct Partner {
    script: Box<Script>,
    limits: Limits,
    /// What was handed over, in order, taken or not.
    book: Mutex<Vec<Message>>,
    /// What was taken.
    taken: Mutex<Vec<Message>>,
    came: watch::Sender<usize>,
    pub(crate) gate: Semaphore,
}

impl fmt::Debug for Partner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Partner")
    }
}

impl Partner {
    pub(crate) fn new(
        script: impl Fn(&Message, usize) -> Step + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::with(Limits::one_by_one(1 << 20), script)
    }

    pub(crate) fn with(
        limits: Limits,
        script: impl Fn(&Message, usize) -> Step + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            script: Box::new(script),
            limits,
            book: Mutex::default(),
            taken: Mutex::default(),
            came: watch::Sender::default(),
            gate: Semaphore::new(0),
        })
    }

    /// Bodies of what was handed over, in order.
    pub(crate) fn came(&self) -> Vec<String> {
        self.book.lock().unwrap().iter().map(text).collect()
    }

    /// Everything that was handed over.
    pub(crate) fn messages(&self) -> Vec<Message> {
        self.book.lock().unwrap().clone()
    }

    /// Bodies of what was taken, in order.
    pub(crate) fn taken(&self) -> Vec<String> {
        self.taken.lock().unwrap().iter().map(text).collect()
    }

    /// Waits until so many were handed over.
    pub(crate) async fn wait(&self, count: usize) {
        let mut came = self.came.subscribe();
        let enough = came.wait_for(|came| *came >= count);
        if tokio::time::timeout(PATIENCE, enough).await.is_err() {
            panic!("waited for {count}, came: {:?}", self.came());
        }
    }

    /// How often each body was handed over.
    pub(crate) fn counts(&self) -> HashMap<String, usize> {
        let mut counts = HashMap::new();
        for body in self.came() {
            *counts.entry(body).or_default() += 1;
        }
        counts
    }

    async fn one(&self, message: &Message) -> (Verdict, bool) {
        let before = {
            let mut book = self.book.lock().unwrap();
            let before = book.iter().filter(|known| known.id == message.id).count();
            book.push(message.clone());
            before
        };
        self.came.send_modify(|came| *came += 1);
        let (verdict, babble) = match (self.script)(message, before) {
            Step::Say(verdict) => (verdict, false),
            Step::Hold => {
                self.gate.acquire().await.unwrap().forget();
                (Ok(Receipt::default()), false)
            }
            Step::Panic => panic!("this message is poison"),
            Step::Babble => (Ok(Receipt::default()), true),
        };
        if verdict.is_ok() {
            self.taken.lock().unwrap().push(message.clone());
        }
        (verdict, babble)
    }
}

#[async_trait]
impl Sender for Partner {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn wire_size(&self, message: &Message) -> usize {
        usize::try_from(message.body.size()).unwrap()
    }

    async fn send(&self, batch: &[Message]) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for message in batch {
            let (verdict, babble) = self.one(message).await;
            verdicts.push(verdict.clone());
            if babble {
                verdicts.push(verdict);
            }
        }
        verdicts
    }
}
