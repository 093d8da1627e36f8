//! Opening the database: whether it can be trusted, what schema it has, whose it is.

use std::{str::FromStr, sync::Arc, time::Duration};

use pabal_core::{Clock, Secret};
use sqlx::{
    ConnectOptions, Connection, Executor, PgConnection, Row, SqlSafeStr,
    migrate::{MigrateError, Migration, MigrationType, Migrator},
    postgres::{PgConnectOptions, PgPoolOptions},
};

use crate::{PostgresStore, error, housekeeping, listen::Ear};

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

const MIGRATIONS: &[(i64, &str, &str)] =
    &[(1, "init", include_str!("../../../migrations/postgres/0001_init.sql"))];
/// The oldest server whose SQL this is.
const OLDEST: i32 = 13;
const OPERATORS: u32 = 2;
const ACQUIRE_LIMIT: Duration = Duration::from_secs(10);
/// `insufficient_privilege`
const MAY_NOT: &str = "42501";

/// A server, and how it is called in messages.
struct Server {
    options: PgConnectOptions,
    place: String,
}

impl Server {
    fn of(url: &Secret) -> Result<Self, OpenError> {
        let is_postgres = ["postgres://", "postgresql://"].map(|it| url.expose().starts_with(it));
        if !is_postgres.contains(&true) {
            return Err(OpenError::Url);
        }
        // What the parser says could quote the password.
        let options = PgConnectOptions::from_str(url.expose()).map_err(|_| OpenError::Url)?;
        let options = options.application_name("pabal").disable_statement_logging();
        let database = options.get_database().unwrap_or_else(|| options.get_username());
        let place = format!(
            "database `{database}` at {}:{} as `{}`",
            options.get_host(),
            options.get_port(),
            options.get_username()
        );
        Ok(Self { options, place })
    }

    async fn connect(&self) -> Result<PgConnection, OpenError> {
        let connected = PgConnection::connect_with(&self.options).await;
        connected.map_err(|error| OpenError::Connect { place: self.place.clone(), error })
    }

    fn database(&self, error: sqlx::Error) -> OpenError {
        OpenError::Database { place: self.place.clone(), error }
    }

    fn unfit(&self, why: String) -> OpenError {
        OpenError::Unfit { place: self.place.clone(), why }
    }

    /// What a receipt rests on.
    async fn check(&self, connection: &mut PgConnection) -> Result<(), OpenError> {
        let row = connection
            .fetch_one(
                "SELECT current_setting('server_version_num')::integer / 10000, \
                 current_setting('server_encoding'), current_setting('synchronous_commit'), \
                 pg_is_in_recovery()",
            )
            .await
            .map_err(|error| self.database(error))?;
        let (version, encoding): (i32, String) = (row.get(0), row.get(1));
        let (synchronous, standby): (String, bool) = (row.get(2), row.get(3));
        if version < OLDEST {
            return Err(
                self.unfit(format!("it is PostgreSQL {version}, and {OLDEST} or later is needed"))
            );
        }
        if encoding != "UTF8" {
            return Err(self.unfit(format!(
                "its encoding is {encoding}: make the database with ENCODING 'UTF8'"
            )));
        }
        if synchronous == "off" {
            return Err(self.unfit(
                "synchronous_commit is off, so a commit it confirms can be lost with the power, \
                 which a receipt must not: set it to on for this role or database"
                    .to_owned(),
            ));
        }
        if standby {
            return Err(self.unfit("it is a standby, which takes no writes".to_owned()));
        }
        Ok(())
    }

    /// Brings the schema up to date, if it is not and this role may.
    async fn migrate(
        &self,
        connection: &mut PgConnection,
        hub_name: &str,
        may: bool,
    ) -> Result<Vec<i64>, OpenError> {
        let known = MIGRATIONS.last().map_or(0, |(step, ..)| *step);
        let mut applied = Vec::new();
        let has = self.step(connection).await?;
        if has > known {
            return Err(OpenError::Newer { place: self.place.clone(), step: has, known });
        }
        if has < known {
            let pending = OpenError::Pending { place: self.place.clone(), has, needs: known };
            if !may {
                return Err(pending);
            }
            // One at a time, however many nodes start together; held by this session alone.
            connection
                .execute("SELECT pg_advisory_lock(8032, 0)")
                .await
                .map_err(|error| self.database(error))?;
            let done = self.apply(connection).await;
            let unlocked = connection.execute("SELECT pg_advisory_unlock(8032, 0)").await;
            match done {
                Err(OpenError::Migrate { error, .. }) if may_not(&error) => return Err(pending),
                done => done?,
            }
            unlocked.map_err(|error| self.database(error))?;
            applied = (has + 1..=known).collect();
        }
        self.belongs(connection, hub_name).await?;
        Ok(applied)
    }

    /// The last step applied; 0: none.
    async fn step(&self, connection: &mut PgConnection) -> Result<i64, OpenError> {
        let there = "SELECT to_regclass('pabal._migrations') IS NOT NULL";
        let fail = |error| self.database(error);
        if !connection.fetch_one(there).await.map_err(fail)?.get::<bool, _>(0) {
            return Ok(0);
        }
        let last = "SELECT coalesce(max(version), 0) FROM pabal._migrations WHERE success";
        Ok(connection.fetch_one(last).await.map_err(fail)?.get(0))
    }

    async fn apply(&self, connection: &mut PgConnection) -> Result<(), OpenError> {
        let fail = |error| OpenError::Migrate { place: self.place.clone(), error };
        let there = connection.fetch_one("SELECT to_regnamespace('pabal') IS NOT NULL").await;
        if !there.map_err(|error| fail(error.into()))?.get::<bool, _>(0) {
            let made = connection.execute("CREATE SCHEMA pabal").await;
            made.map_err(|error| fail(error.into()))?;
        }
        let steps = MIGRATIONS.iter().map(|(version, name, sql)| {
            let kind = MigrationType::Simple;
            Migration::new(*version, (*name).into(), kind, sql.into_sql_str(), false)
        });
        let mut migrator = Migrator::with_migrations(steps.collect());
        migrator.dangerous_set_table_name("pabal._migrations");
        migrator.set_locking(false);
        migrator.run_direct(None, connection, false).await.map_err(fail)
    }

    /// Writes the hub's name into a new database, and compares it with an old one's.
    async fn belongs(
        &self,
        connection: &mut PgConnection,
        hub_name: &str,
    ) -> Result<(), OpenError> {
        let stored = "SELECT value FROM pabal.meta WHERE name = 'hub'";
        let mut name: Option<String> = sqlx::query_scalar(stored)
            .fetch_optional(&mut *connection)
            .await
            .map_err(|error| self.database(error))?;
        if name.is_none() {
            let insert = "INSERT INTO pabal.meta (name, value) VALUES ('hub', $1) \
                          ON CONFLICT (name) DO UPDATE SET name = 'hub' RETURNING value";
            let inserted = sqlx::query_scalar(insert).bind(hub_name).fetch_one(&mut *connection);
            name = Some(inserted.await.map_err(|error| self.database(error))?);
        }
        match name {
            Some(stored) if stored != hub_name => {
                let (place, given) = (self.place.clone(), hub_name.to_owned());
                Err(OpenError::OtherHub { place, stored, given })
            }
            _ => Ok(()),
        }
    }
}

fn may_not(error: &MigrateError) -> bool {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
            error::code(error).as_deref() == Some(MAY_NOT)
        }
        _ => false,
    }
}

impl PostgresStore {
    /// Brings the schema of a database up to date, with a role that owns it or may make it; the steps
    /// that were applied. A role that only runs the hub is given what it needs by
    /// `SELECT pabal.grant_to('role')`.
    ///
    /// # Errors
    /// If the server cannot be reached or used, is newer than this version, belongs to another hub,
    /// or the role may not.
    pub async fn migrate(options: &Options) -> Result<Vec<i64>, OpenError> {
        let server = Server::of(&options.url)?;
        let mut connection = server.connect().await?;
        server.check(&mut connection).await?;
        let applied =
            server.migrate(&mut connection, &options.hub_name, options.may_migrate).await?;
        // What was read is known; how the session ends changes nothing.
        let _ = connection.close().await;
        Ok(applied)
    }

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
        let pool = |connections: u32| {
            PgPoolOptions::new()
                .max_connections(connections.max(1))
                .min_connections(1)
                .acquire_timeout(ACQUIRE_LIMIT)
                .connect_with(server.options.clone())
        };
        let connected = |error| OpenError::Connect { place: server.place.clone(), error };
        // Reading and writing do not wait for each other's connections.
        let half = options.connections.div_ceil(2);
        let write = pool(half).await.map_err(connected)?;
        let read = pool(options.connections - half).await.map_err(connected)?;
        let operators = pool(OPERATORS).await.map_err(connected)?;
        let listening = match &options.listen_url {
            Some(url) => Server::of(url)?,
            None => Server { options: server.options.clone(), place: server.place.clone() },
        };
        let ear = Ear::open(listening.options.clone(), &write, clock)
            .await
            .map_err(|error| OpenError::Connect { place: listening.place, error })?;
        let store = Self { write, read, operators, ear };
        if let Err(error) = housekeeping::make_partitions(&store).await {
            tracing::error!(alert = true, %error, "partitions for the next days could not be made");
        }
        Ok(store)
    }
}
