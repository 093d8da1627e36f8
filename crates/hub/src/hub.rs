//! [`Hub`]: what `main` builds and runs.

use std::{io::ErrorKind, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use clap::Parser;
use pabal_adapter_database::DatabaseAdapter;
use pabal_adapter_rest::{Ingress, PullAdapter, RestAdapter};
use pabal_config::{Faults, StoreConfig};
use pabal_core::{Adapter, Clock, SystemClock};
use pabal_store_sqlite::{LockError, RunLock};

use crate::{
    api::{self, types::Phase},
    check,
    cli::{self, Cli, Command},
    client::Client,
    commands, demo, logging, out,
    plan::{Depth, Plan},
    running::{Running, Stage},
    signals::StopSignals,
    stores, token,
};

/// What failed.
pub(crate) const FAILED: u8 = 1;
/// Wrong use, or a configuration that is refused.
pub(crate) const WRONG: u8 = 2;

/// How long a command waits for another one that holds the store.
const ANOTHER_COMMAND: Duration = Duration::from_secs(3);

/// The hub with its adapters: built in `main`, run once.
#[derive(Debug)]
pub struct Hub {
    adapters: Vec<Arc<dyn Adapter>>,
    ingress: Ingress,
}

impl Hub {
    /// With the adapters it is shipped with.
    #[must_use]
    pub fn standard() -> Self {
        let ingress = Ingress::new();
        let rest = RestAdapter::new(ingress.clone());
        let pull = PullAdapter::new(ingress.clone());
        let adapters: Vec<Arc<dyn Adapter>> =
            vec![Arc::new(rest), Arc::new(pull), Arc::new(DatabaseAdapter)];
        Self { adapters, ingress }
    }

    /// With one more adapter; one of the same name takes the place of the shipped one.
    #[must_use]
    pub fn with(mut self, adapter: impl Adapter + 'static) -> Self {
        self.adapters.retain(|known| known.name() != adapter.name());
        self.adapters.push(Arc::new(adapter));
        self
    }

    /// Parses the command line, does what it says, and returns the exit code: 0 fine, 1 failed,
    /// 2 wrong use or configuration.
    #[must_use]
    pub fn main(self) -> ExitCode {
        // One TLS library for everything; before anything is built that might look for it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let cli = match Cli::try_parse() {
            Ok(cli) => cli,
            // Help and version are no failure.
            Err(error) => {
                let _ = error.print();
                return if error.use_stderr() { ExitCode::from(WRONG) } else { ExitCode::SUCCESS };
            }
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = match runtime.context("cannot start the runtime") {
            Ok(runtime) => runtime,
            Err(error) => {
                out::failure(&error);
                return ExitCode::from(FAILED);
            }
        };
        let code = match runtime.block_on(self.run(cli)) {
            Ok(code) => code,
            Err(error) => failed(&error),
        };
        // A task that still blocks must not keep the process.
        runtime.shutdown_background();
        code
    }

    async fn run(self, cli: Cli) -> Result<ExitCode> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let Self { adapters, ingress } = self;
        let Cli { global, command } = cli;
        if let Command::Demo(what) = &command {
            return demo::demo(what, global.json, adapters, ingress, clock).await;
        }
        let load = |depth| {
            let (dir, profile) = (&global.config, global.profile.as_deref());
            Plan::load(dir, profile, adapters.clone(), ingress.clone(), depth)
        };
        match command {
            Command::Run => run(&load(Depth::Parts)?, clock).await,
            Command::Check { connect } => {
                Box::pin(check::check(load(Depth::Parts), connect, global.json, clock)).await
            }
            Command::Config(cli::Config::Show) => {
                load(Depth::Files)?.show(global.json).map(|()| ExitCode::SUCCESS)
            }
            Command::Migrate => migrate(&load(Depth::Hub)?, clock, global.json).await,
            command => {
                logging::start("error", false);
                let client = connect(&command, &load, clock.clone()).await?;
                let done = commands::operate(command, &global, &client, &*clock).await;
                client.close().await;
                done.map(|()| ExitCode::SUCCESS)
            }
        }
    }
}

/// `pabal run`
async fn run(plan: &Plan, clock: Arc<dyn Clock>) -> Result<ExitCode> {
    plan.start_logging();
    let mut signals = StopSignals::listen()?;
    let hub = Running::start(plan, clock).await?;
    let code = tokio::select! {
        () = signals.next() => ExitCode::SUCCESS,
        what = hub.engine.broken() => {
            tracing::error!(alert = true, what, "a part of the hub failed that it cannot run without");
            ExitCode::from(FAILED)
        }
    };
    hub.close();
    tracing::info!(grace = ?plan.grace(), "stopping: nothing new is taken; a second signal ends it at once");
    tokio::select! {
        () = hub.stop() => {
            tracing::info!("stopped");
            Ok(code)
        }
        // Lanes are not released: the next start looks carefully at what was in flight.
        () = signals.next() => {
            tracing::warn!("ended at once, with work in hand");
            Ok(ExitCode::from(FAILED))
        }
    }
}

/// Tells what went wrong, and its exit code.
fn failed(error: &anyhow::Error) -> ExitCode {
    if let Some(faults) = error.downcast_ref::<Faults>() {
        out::note(faults);
        return ExitCode::from(WRONG);
    }
    out::failure(error);
    ExitCode::from(if error.is::<out::WrongUse>() { WRONG } else { FAILED })
}

/// `pabal migrate`
async fn migrate(plan: &Plan, clock: Arc<dyn Clock>, json: bool) -> Result<ExitCode> {
    let applied = stores::migrate(plan, clock).await?;
    let steps = applied.clone().unwrap_or_default();
    if json {
        let kind = stores::kind(plan);
        let told = serde_json::json!({ "database": kind, "up_to_date": true, "applied": applied });
        out::json(&told)?;
    } else {
        for step in &steps {
            out::line(format_args!("step {step} was applied"));
        }
        out::line(format_args!("{} is up to date", stores::kind(plan)));
    }
    if !steps.is_empty() {
        out::note(
            "a role that only runs the hub is given what it needs by: SELECT pabal.grant_to('role')",
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// To the running hub, for which hub.toml is enough, or to the store itself if none runs.
async fn connect(
    command: &Command,
    load: &dyn Fn(Depth) -> Result<Plan>,
    clock: Arc<dyn Clock>,
) -> Result<Client> {
    let plan = load(Depth::Hub)?;
    let place = plan.place();
    // To look at what is not there must not make it.
    let makes = matches!(command, Command::Send(_) | Command::Pause(_) | Command::Resume(_));
    if !matches!(plan.store(), StoreConfig::Sqlite(_)) {
        return match Client::to_any_node(&plan, &*clock).await? {
            Some(client) => Ok(client),
            None => here(load, clock, None).await,
        };
    }
    anyhow::ensure!(
        makes || place.try_exists().unwrap_or(true),
        "there is no database yet at {}: `pabal run` makes it",
        place.display()
    );
    let give_up = clock.elapsed() + ANOTHER_COMMAND;
    let lock = loop {
        match RunLock::take(place) {
            Err(LockError::Held { holder, .. }) => {
                let remote = Client::remote(place, plan.admin(), plan.token()?, holder);
                // Another command is soon done, and a hub that starts soon listens.
                let answers = match &remote {
                    Ok(remote) => remote.answers(&*clock).await,
                    Err(_) => false,
                };
                if answers || clock.elapsed() > give_up {
                    return remote;
                }
                clock.sleep(Duration::from_millis(100)).await;
            }
            other => break other,
        }
    };
    let lock = match lock {
        Ok(lock) => lock,
        // Somebody else's hub: its operators' interface can be had with the token alone.
        Err(LockError::Io { error, .. }) if error.kind() == ErrorKind::PermissionDenied => {
            let holder = "another user".to_owned();
            return Client::remote(place, plan.admin(), plan.token()?, holder);
        }
        Err(error) => return Err(error.into()),
    };
    here(load, clock, Some(lock)).await
}

/// The operators' interface in this process, on the store itself.
async fn here(
    load: &dyn Fn(Depth) -> Result<Plan>,
    clock: Arc<dyn Clock>,
    lock: Option<RunLock>,
) -> Result<Client> {
    let plan = load(Depth::Files)?;
    let opened = match &lock {
        Some(_) => stores::open(&plan, clock.clone()).await?,
        None => stores::open_to_look(&plan, clock.clone()).await?,
    };
    let token = token::random();
    let store = opened.store.clone();
    let stage = Stage::new(&plan, store, clock.clone(), token.clone(), Phase::NotRunning);
    let engine = stage.start(&plan, true).await?;
    let router = api::router(stage.desk.clone());
    Ok(Client::Here { router, token, engine, opened, clock, lock })
}
