//! A hub that runs: store, engine, and the two listeners.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::{Context, Result};
use axum::Router;
use pabal_core::{Clock, Secret, Stop, Store};
use pabal_engine::{Engine, Setup};
use pabal_store_sqlite::RunLock;
use tokio::{net::TcpListener, task::JoinHandle};

use crate::{
    api::{self, Desk, Health, Ready, types::Phase},
    housekeeping, listen,
    metrics::Metrics,
    plan::{self, Plan},
    stores::{self, Opened},
    token,
};

/// Once the engine has stopped, answers on their way out get this much longer.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Everything that runs. [`Running::stop`] ends it in order; dropping it is no orderly end.
pub(crate) struct Running {
    /// Where partners reach it.
    pub(crate) http: SocketAddr,
    /// Where operators reach it.
    pub(crate) admin: SocketAddr,
    /// Where the command line finds the token, unless the configuration names one.
    pub(crate) token_file: PathBuf,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) engine: Arc<Engine>,
    opened: Opened,
    health: Health,
    clock: Arc<dyn Clock>,
    /// Partners' new requests end first, operators' last.
    http_stop: Stop,
    admin_stop: Stop,
    listeners: [JoinHandle<()>; 2],
    address_file: PathBuf,
    housekeeping: JoinHandle<()>,
    _lock: RunLock,
}

impl Running {
    /// Takes the lock, opens the store, listens, and starts the engine.
    pub(crate) async fn start(plan: &Plan, clock: Arc<dyn Clock>) -> Result<Self> {
        let place = plan.place();
        let lock = stores::lock(plan, &*clock).await?;
        // Before anything is changed: a port that is taken must not cost a migration.
        let http = listen::bind(plan.http(), "http").await?;
        let admin = listen::bind(plan.admin(), "admin").await?;
        let acceptor = match plan.tls() {
            Some(files) => Some(plan::acceptor(files)?),
            None => None,
        };
        let token = match plan.token()? {
            Some(token) => token,
            None => token::read_or_make(place)?,
        };
        let opened = stores::open(plan, clock.clone()).await?;
        let store = opened.store.clone();
        let stage = Stage::new(plan, store.clone(), clock.clone(), token, Phase::Starting);
        let (http_stop, admin_stop) = (Stop::new(), Stop::new());
        let (http_address, admin_address) = (http.local_addr()?, admin.local_addr()?);
        if !admin_address.ip().is_loopback() {
            tracing::warn!(address = %admin_address, "operators' listener is open to the network without TLS: put a proxy with TLS before it");
        }
        let partners = api::only_while_running(plan.ingress().router(), stage.health.clone())
            .merge(api::health_routes(stage.desk.ready.clone()));
        let serve = |listener: TcpListener, acceptor, router: Router, stop: &Stop| {
            tokio::spawn(listen::serve(listener, acceptor, router, clock.clone(), stop.clone()))
        };
        let listeners = [
            serve(http, acceptor, partners, &http_stop),
            serve(admin, None, api::router(stage.desk.clone()), &admin_stop),
        ];
        let engine = stage.start(plan, false).await?;
        let address_file = token::address_file(place);
        token::write_private(&address_file, admin_address.to_string().as_bytes())?;
        stage.health.set(Phase::Running);
        tracing::info!(
            hub = plan.hub(),
            http = %http_address,
            admin = %admin_address,
            node = plan.node(),
            store = stores::kind(plan),
            sources = plan.sources().len(),
            destinations = plan.destinations().len(),
            "the hub runs"
        );
        let housekeeping = tokio::spawn(housekeeping::run(
            store.clone(),
            plan.retention().clone(),
            clock.clone(),
            http_stop.clone(),
        ));
        Ok(Self {
            http: http_address,
            admin: admin_address,
            token_file: token::file(place),
            store,
            engine,
            opened,
            health: stage.health,
            clock,
            http_stop,
            admin_stop,
            listeners,
            address_file,
            housekeeping,
            _lock: lock,
        })
    }

    /// From here on nothing new is taken; [`Running::stop`] follows.
    pub(crate) fn close(&self) {
        self.health.set(Phase::Stopping);
        self.http_stop.fire();
    }

    /// Lets what is in hand end within the grace, and lets go of everything.
    pub(crate) async fn stop(self) {
        self.close();
        self.engine.stop().await;
        self.admin_stop.fire();
        let [http, admin] = self.listeners;
        for mut listener in [http, admin] {
            if self.clock.timeout(LAST_ANSWERS, &mut listener).await.is_none() {
                listener.abort();
            }
        }
        self.housekeeping.abort();
        self.opened.close(&*self.clock).await;
        let _ = std::fs::remove_file(&self.address_file);
    }
}

/// What the engine and the operators' interface share, before the engine runs.
pub(crate) struct Stage {
    pub(crate) desk: Arc<Desk>,
    health: Health,
    metrics: Arc<Metrics>,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
}

impl Stage {
    pub(crate) fn new(
        plan: &Plan,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        token: Secret,
        phase: Phase,
    ) -> Self {
        let (sources, destinations) = (plan.sources(), plan.destinations());
        let mut counted = sources.clone();
        counted.extend(crate::COMMAND_LINE.parse());
        let metrics = Metrics::new(counted, destinations.clone(), store.shared());
        let health = Health::new(phase);
        let ready = Ready::new(health.clone(), store.clone(), clock.clone());
        let desk = Arc::new(Desk {
            hub: plan.hub().to_owned(),
            token,
            store: store.clone(),
            clock: clock.clone(),
            metrics: metrics.clone(),
            health: health.clone(),
            ready,
            plan: plan.hash(),
            lease: plan.lease(),
            retention: plan.retention().clone(),
            sources,
            destinations,
            engine: OnceLock::new(),
        });
        Self { desk, health, metrics, store, clock }
    }

    /// Builds all parts and runs them; `idle`: for operators' verbs alone.
    pub(crate) async fn start(&self, plan: &Plan, idle: bool) -> Result<Arc<Engine>> {
        let (sources, destinations) = plan.build(&self.store, &self.clock, idle)?;
        let setup = Setup {
            hub: plan.hub().to_owned(),
            node: plan.node(),
            plan: plan.hash(),
            lease: plan.lease(),
            store: self.store.clone(),
            clock: self.clock.clone(),
            observer: self.metrics.clone(),
            sources,
            destinations,
            grace: plan.grace(),
            idle,
        };
        let engine = Arc::new(Engine::start(setup).await.context("the engine cannot start")?);
        let _ = self.desk.engine.set(engine.clone());
        Ok(engine)
    }
}
