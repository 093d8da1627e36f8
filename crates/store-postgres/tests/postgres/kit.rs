//! Databases with the schema in them, and stores on them.

use std::sync::Arc;

use pabal_conformance::postgres::{Database, OWNER, RUNTIME, Server};
use pabal_core::{Secret, SystemClock};
use pabal_store_postgres::{OpenError, Options, PostgresStore};
use tokio::sync::OnceCell;

pub(crate) fn options(database: &Database<'_>, role: &str) -> Options {
    Options {
        url: Secret::new(database.url(role)),
        listen_url: None,
        hub_name: "conformance".to_owned(),
        connections: 8,
        may_migrate: true,
    }
}

/// A database that its owner has prepared for the role that runs.
pub(crate) async fn prepared(server: &'static Server) -> Database<'static> {
    static FIRST: OnceCell<Database<'static>> = OnceCell::const_new();
    let first = FIRST.get_or_init(async || {
        let database = server.database();
        PostgresStore::migrate(&options(&database, OWNER)).await.unwrap();
        database.ask(&format!("SELECT pabal.grant_to('{RUNTIME}')"));
        database
    });
    server.copy(first.await)
}

pub(crate) async fn open_as(
    database: &Database<'_>,
    role: &str,
) -> Result<Arc<PostgresStore>, OpenError> {
    let store = PostgresStore::open(options(database, role), Arc::new(SystemClock)).await?;
    Ok(Arc::new(store))
}

pub(crate) async fn open(database: &Database<'_>) -> Arc<PostgresStore> {
    open_as(database, RUNTIME).await.unwrap()
}

/// What every session in this database begins with.
pub(crate) fn by_default(database: &Database<'_>, setting: &str) {
    database.ask(&format!(
        "DO $do$ BEGIN EXECUTE format('ALTER DATABASE %I SET {setting}', current_database()); END $do$"
    ));
}
