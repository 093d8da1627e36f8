//! Opening the database.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use pabal_core::{Clock, Secret};
use sqlx::{migrate::MigrateError, postgres::PgPoolOptions};

use crate::{PostgresStore, housekeeping, listen::Ear, server::Server};

/// Which database, and whose.
#[derive(Debug, Clone)]
pub struct Options {
    /// `postgres://user:password@host:port/database`.
    pub url: Secret,
    /// Where notifications are listened for, if `url` goes through a transaction pooler.
    pub listen_url: Option<Secret>,
    /// The hub's name, part of every message id: fixed with the first migration.
    pub hub_name: String,
    /// Connections for the engine; operators' questions and listening have a few more.
    pub connections: u32,
    /// Whether opening brings the schema up to date; a command that only looks must not.
    pub may_migrate: bool,
}

/// Why a database was not opened. None of them holds the URL.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is none.
    #[error("the database URL cannot be read: write postgres://user:password@host:port/database")]
    Url,
    /// The server cannot be reached, or does not let us in.
    #[error("cannot connect to {place}: {error}")]
    Connect {
        /// Host, port, database and user.
        place: String,
        /// What happened.
        #[source]
        error: sqlx::Error,
    },
    /// The server is not fit for it.
    #[error("{place} cannot be used: {why}")]
    Unfit {
        /// Host, port, database and user.
        place: String,
        /// Why, and what to do.
        why: String,
    },
    /// The schema is not up to date, and this role may not change it or was not asked to.
    #[error(
        "the schema in {place} is not up to date (it has step {has}, this version needs {needs}): run \
         `pabal migrate` with the role that owns it"
    )]
    Pending {
        /// Host, port, database and user.
        place: String,
        /// The last step applied; 0: none.
        has: i64,
        /// The last step this version knows.
        needs: i64,
    },
    /// A newer Pabal has changed the schema.
    #[error(
        "{place} was written by a newer version of Pabal (its schema has step {step}, this version \
         knows {known}): run that version, or restore a backup"
    )]
    Newer {
        /// Host, port, database and user.
        place: String,
        /// The step this version does not know.
        step: i64,
        /// The last step this version knows.
        known: i64,
    },
    /// Another hub's messages are in it.
    #[error(
        "{place} belongs to hub `{stored}`, but this hub is named `{given}`: the name is part of \
         every message id and cannot change; correct the name, or use another database"
    )]
    OtherHub {
        /// Host, port, database and user.
        place: String,
        /// The name in the database.
        stored: String,
        /// The name in the configuration.
        given: String,
    },
    /// The schema could not be brought up to date.
    #[error(
        "cannot bring the schema in {place} up to date: {error}; the step that failed is undone"
    )]
    Migrate {
        /// Host, port, database and user.
        place: String,
        /// What happened.
        #[source]
        error: MigrateError,
    },
    /// The server refused something.
    #[error("{place}: {error}")]
    Database {
        /// Host, port, database and user.
        place: String,
        /// What happened.
        #[source]
        error: sqlx::Error,
    },
}

const OPERATORS: u32 = 2;
const ACQUIRE_LIMIT: Duration = Duration::from_secs(10);

impl PostgresStore {
    /// Opens the database and brings its schema up to date if this role may. `clock` measures pauses
    /// only: due times and days are the database's.
    ///
    /// # Errors
    /// As [`PostgresStore::migrate`].
    pub async fn open(options: Options, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let applied = Self::migrate(&options).await?;
        if !applied.is_empty() {
            tracing::info!(steps = ?applied, "the schema was brought up to date");
        }
        let server = Server::of(&options.url)?;
        let listening = match &options.listen_url {
            Some(url) => Server::of(url)?,
            None => server.clone(),
        };
        let ear = Ear::open(&listening, &server, Arc::clone(&clock)).await?;
        // Who listens elsewhere, or in vain, writes through a pooler.
        let named = options.listen_url.is_none() && ear.is_listening();
        let pool = |connections: u32| {
            let checked = server.clone();
            PgPoolOptions::new()
                .max_connections(connections.max(1))
                .min_connections(1)
                .acquire_timeout(ACQUIRE_LIMIT)
                // Every one of them: a setting may change while the hub runs, and after a failover
                // the server is another one.
                .after_connect(move |connection, _| {
                    let server = checked.clone();
                    Box::pin(async move {
                        server.check(connection).await.map_err(|error| {
                            tracing::error!(alert = true, %error, "a connection is not used");
                            sqlx::Error::Configuration(Box::new(error))
                        })
                    })
                })
                .connect_with(server.options.clone())
        };
        let connected = |error| OpenError::Connect { place: server.place.clone(), error };
        // Reading and writing do not wait for each other's connections.
        let half = options.connections.div_ceil(2);
        let write = pool(half).await.map_err(connected)?;
        let read = pool(options.connections - half).await.map_err(connected)?;
        let operators = pool(OPERATORS).await.map_err(connected)?;
        let store = Self { write, read, operators, ear, named, clock, looked_at: Mutex::default() };
        if let Err(error) = housekeeping::make_partitions(&store).await {
            tracing::error!(alert = true, %error, "partitions for the next days could not be made");
        }
        Ok(store)
    }
}
