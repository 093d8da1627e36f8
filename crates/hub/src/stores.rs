//! The store that the configuration names, and who may have it.

use std::sync::Arc;

use anyhow::{Context, Result};
use pabal_config::StoreConfig;
use pabal_core::{Clock, Store};
use pabal_store_postgres::PostgresStore;
use pabal_store_sqlite::{RunLock, SqliteStore};

use crate::plan::Plan;

/// How many connections a command of the command line needs.
const COMMAND_CONNECTIONS: u32 = 4;

/// What a process must hold to be the only one on the store; none where many may share it.
///
/// # Errors
/// If another process holds it.
pub(crate) fn lock(plan: &Plan) -> Result<Option<RunLock>> {
    match plan.store() {
        StoreConfig::Sqlite(database) => Ok(Some(RunLock::take(database)?)),
        _ => {
            // For the files by which the command line finds the hub.
            let folder = plan.place().parent().unwrap_or(plan.place());
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
            Ok(None)
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
pub(crate) async fn open(plan: &Plan, clock: Arc<dyn Clock>) -> Result<Arc<dyn Store>> {
    open_for(plan, clock, true).await
}

/// Opens the store for one command. What is not there is not made by looking at it.
pub(crate) async fn open_to_look(plan: &Plan, clock: Arc<dyn Clock>) -> Result<Arc<dyn Store>> {
    open_for(plan, clock, false).await
}

async fn open_for(plan: &Plan, clock: Arc<dyn Clock>, to_run: bool) -> Result<Arc<dyn Store>> {
    if let Some(mut options) = postgres(plan)? {
        options.may_migrate = to_run;
        if !to_run {
            options.connections = COMMAND_CONNECTIONS;
        }
        return Ok(Arc::new(PostgresStore::open(options, clock).await?));
    }
    let (path, hub_name) = (plan.place().to_owned(), plan.hub().to_owned());
    let options = pabal_store_sqlite::Options { path, hub_name };
    Ok(Arc::new(SqliteStore::open(options, clock).await?))
}

/// Brings the store's tables up to date; what was done, for people.
pub(crate) async fn migrate(plan: &Plan, clock: Arc<dyn Clock>) -> Result<String> {
    if let Some(options) = postgres(plan)? {
        let applied = PostgresStore::migrate(&options).await?;
        return Ok(match applied.len() {
            0 => "the schema is up to date".to_owned(),
            steps => format!("{steps} steps were applied; the schema is up to date"),
        });
    }
    let _lock = lock(plan)?;
    open(plan, clock).await?;
    Ok(format!("{} is up to date", plan.place().display()))
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
