//! The store that the configuration names, and who may have it.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, bail};
use pabal_config::StoreConfig;
use pabal_core::{Clock, Finding, Store};
use pabal_store_postgres::PostgresStore;
use pabal_store_sqlite::{LockError, RunLock, SqliteStore};

use crate::plan::Plan;

/// How many connections a command of the command line needs.
const COMMAND_CONNECTIONS: u32 = 4;
/// A command that looks for a running node holds its lock for a moment.
const A_LOOK: Duration = Duration::from_secs(1);
/// What is under way at the end gets so long.
const CLOSING: Duration = Duration::from_secs(2);

/// A store that is open.
#[derive(Debug, Clone)]
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    /// The same, where there are connections to be closed.
    postgres: Option<Arc<PostgresStore>>,
}

impl Opened {
    /// Lets go of it in good order.
    pub(crate) async fn close(&self, clock: &dyn Clock) {
        if let Some(postgres) = &self.postgres {
            let _ = clock.timeout(CLOSING, postgres.close()).await;
        }
    }
}

/// What a process must hold to be the only one: on SQLite on the store, on PostgreSQL, which nodes
/// share, on the files of its own by which the command line finds it.
///
/// # Errors
/// If another process holds it.
pub(crate) async fn lock(plan: &Plan, clock: &dyn Clock) -> Result<RunLock> {
    if let StoreConfig::Sqlite(database) = plan.store() {
        return Ok(RunLock::take(database)?);
    }
    let give_up = clock.elapsed() + A_LOOK;
    loop {
        match RunLock::take(plan.place()) {
            Err(LockError::Held { .. }) if clock.elapsed() < give_up => {
                clock.sleep(Duration::from_millis(20)).await;
            }
            Err(LockError::Held { holder, .. }) => bail!(
                "another hub ({holder}) runs with the files {}.*: stop it, or give this node a name \
                 of its own: node = \"…\"",
                plan.place().display()
            ),
            taken => return Ok(taken?),
        }
    }
}

/// What it is, for people.
pub(crate) fn kind(plan: &Plan) -> String {
    match plan.store() {
        StoreConfig::Sqlite(database) => database.display().to_string(),
        _ => "PostgreSQL".to_owned(),
    }
}

/// Opens the store to run a hub on it, and brings its tables up to date.
pub(crate) async fn open(plan: &Plan, clock: Arc<dyn Clock>) -> Result<Opened> {
    open_for(plan, clock, true).await
}

/// Opens the store for one command. What is not there is not made by looking at it.
pub(crate) async fn open_to_look(plan: &Plan, clock: Arc<dyn Clock>) -> Result<Opened> {
    open_for(plan, clock, false).await
}

async fn open_for(plan: &Plan, clock: Arc<dyn Clock>, to_run: bool) -> Result<Opened> {
    if let Some(mut options) = postgres(plan)? {
        options.may_migrate = to_run;
        if !to_run {
            options.connections = COMMAND_CONNECTIONS;
        }
        let store = Arc::new(PostgresStore::open(options, clock).await?);
        return Ok(Opened { store: store.clone(), postgres: Some(store) });
    }
    let (path, hub_name) = (plan.place().to_owned(), plan.hub().to_owned());
    let options = pabal_store_sqlite::Options { path, hub_name };
    Ok(Opened { store: Arc::new(SqliteStore::open(options, clock).await?), postgres: None })
}

/// Brings the store's tables up to date; the steps that were applied, where they are counted.
pub(crate) async fn migrate(plan: &Plan, clock: Arc<dyn Clock>) -> Result<Option<Vec<i64>>> {
    if let Some(options) = postgres(plan)? {
        return Ok(Some(PostgresStore::migrate(&options).await?));
    }
    let _lock = lock(plan, &*clock).await?;
    open(plan, clock).await?;
    Ok(None)
}

/// Looks at the store without changing anything in it.
pub(crate) async fn probe(plan: &Plan) -> Vec<Finding> {
    match postgres(plan) {
        Ok(Some(options)) => PostgresStore::probe(&options).await,
        Ok(None) => {
            let (path, hub_name) = (plan.place().to_owned(), plan.hub().to_owned());
            SqliteStore::probe(&pabal_store_sqlite::Options { path, hub_name }).await
        }
        Err(error) => vec![Finding::fault(error.to_string())],
    }
}

fn postgres(plan: &Plan) -> Result<Option<pabal_store_postgres::Options>> {
    let StoreConfig::Postgres { url, listen, connections } = plan.store() else {
        return Ok(None);
    };
    let listen = listen.as_ref();
    let listen_url = listen.map(|it| plan.secret("store.postgres.listen", it)).transpose()?;
    Ok(Some(pabal_store_postgres::Options {
        url: plan.secret("store.postgres", url)?,
        listen_url,
        hub_name: plan.hub().to_owned(),
        connections: *connections,
        may_migrate: true,
    }))
}
