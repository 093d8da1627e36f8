//! Opening the database: where it may lie, what schema it has, whose it is.

use std::{
    fs::OpenOptions,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use pabal_core::Clock;
use sqlx::{
    ConnectOptions, SqlSafeStr,
    migrate::{MigrateError, Migration, MigrationType, Migrator},
    sqlite::{
        SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
    },
};

use crate::{SqliteStore, filesystem};

/// Which database, and whose.
#[derive(Debug, Clone)]
pub struct Options {
    /// The database file; it and its folder are made if they are missing.
    pub path: PathBuf,
    /// The hub's name, part of every message id: fixed with the first opening.
    pub hub_name: String,
}

/// Why a database was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file or its folder cannot be made or read.
    #[error("cannot use {}: {error}; the hub must be able to write there", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What happened.
        #[source]
        error: io::Error,
    },
    /// Its locks cannot be trusted there.
    #[error(
        "{} is on a network file system ({kind}), where SQLite loses data: put it on a local disk, \
         or use the PostgreSQL store",
        path.display()
    )]
    Network {
        /// Which file.
        path: PathBuf,
        /// The file system.
        kind: &'static str,
    },
    /// A newer Pabal has changed the schema.
    #[error(
        "{} was written by a newer version of Pabal (its schema has step {step}, this version knows \
         {known}): run that version, or restore a backup",
        path.display()
    )]
    Newer {
        /// Which file.
        path: PathBuf,
        /// The step this version does not know.
        step: i64,
        /// The last step this version knows.
        known: i64,
    },
    /// Another hub's messages are in it.
    #[error(
        "{} belongs to hub `{stored}`, but this hub is named `{given}`: the name is part of every \
         message id and cannot change; correct the name, or use another database",
        path.display()
    )]
    OtherHub {
        /// Which file.
        path: PathBuf,
        /// The name in the database.
        stored: String,
        /// The name in the configuration.
        given: String,
    },
    /// The schema could not be brought up to date.
    #[error("cannot bring {} up to date: {error}; the database is as it was", path.display())]
    Migrate {
        /// Which file.
        path: PathBuf,
        /// What happened.
        #[source]
        error: MigrateError,
    },
    /// SQLite cannot open it.
    #[error("cannot open {}: {error}; is it a database of Pabal?", path.display())]
    Database {
        /// Which file.
        path: PathBuf,
        /// What happened.
        #[source]
        error: sqlx::Error,
    },
}

/// How long SQLite itself waits for another process's write lock before it says so.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
const READERS: u32 = 4;
/// Connections for operators' questions.
const OPERATORS: u32 = 2;

const MIGRATIONS: &[(i64, &str, &str)] =
    &[(1, "init", include_str!("../../../migrations/sqlite/0001_init.sql"))];

/// The last step this version knows.
pub(crate) fn known() -> i64 {
    MIGRATIONS.last().map_or(0, |(version, ..)| *version)
}

fn migrator() -> Migrator {
    let steps = MIGRATIONS.iter().map(|(version, name, sql)| {
        let kind = MigrationType::Simple;
        Migration::new(*version, (*name).into(), kind, sql.into_sql_str(), false)
    });
    let mut migrator = Migrator::with_migrations(steps.collect());
    migrator.dangerous_set_table_name("_pabal_migrations");
    migrator
}

impl SqliteStore {
    /// Opens the database, makes it if it is missing, and brings its schema up to date.
    ///
    /// # Errors
    /// If it lies on a network file system, is newer than this version, belongs to another hub, or
    /// cannot be used at all.
    pub async fn open(options: Options, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let path = options.path.as_path();
        prepare(path)?;
        let database = |error| OpenError::Database { path: path.to_owned(), error };
        let connect = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(false)
            .journal_mode(SqliteJournalMode::Wal)
            // NORMAL may lose the last commits with the power, which a receipt must not.
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT)
            .pragma("cache_size", "-32768")
            // 16 MiB: a page that many commits touch is copied into the file once.
            .pragma("wal_autocheckpoint", "4096")
            .pragma("journal_size_limit", "67108864")
            .pragma("temp_store", "memory")
            .row_buffer_size(512)
            .disable_statement_logging();
        // One writer: the pool is the queue, and no two transactions of this process collide.
        let write = SqlitePoolOptions::new()
            .max_connections(1)
            .min_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .acquire_timeout(Duration::from_secs(60))
            .connect_with(connect.clone())
            .await
            .map_err(database)?;
        migrate(&write, path).await?;
        belongs(&write, path, &options.hub_name).await?;
        let connect = connect.read_only(true);
        let readers = |count| {
            SqlitePoolOptions::new()
                .max_connections(count)
                .min_connections(1)
                .idle_timeout(None)
                .max_lifetime(None)
                .connect_with(connect.clone())
        };
        let read = readers(READERS).await.map_err(database)?;
        let operators = readers(OPERATORS).await.map_err(database)?;
        Ok(Self { write, read, operators, clock })
    }
}

/// Makes the folder and the file, readable for nobody else: bodies are people's data.
fn prepare(path: &Path) -> Result<(), OpenError> {
    let fail = |error| OpenError::Io { path: path.to_owned(), error };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(folder).map_err(fail)?;
    if let Some(kind) = filesystem::network(folder).map_err(fail)? {
        return Err(OpenError::Network { path: path.to_owned(), kind });
    }
    // Never opens what is there: to close such a handle would drop the locks that SQLite holds on
    // the file in this process.
    let mut file = OpenOptions::new();
    file.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut file, 0o600);
    match file.open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(fail(error)),
        _ => Ok(()),
    }
}

async fn migrate(write: &SqlitePool, path: &Path) -> Result<(), OpenError> {
    migrator().run(write).await.map_err(|error| match error {
        MigrateError::VersionMissing(step) => {
            OpenError::Newer { path: path.to_owned(), step, known: known() }
        }
        error => OpenError::Migrate { path: path.to_owned(), error },
    })
}

/// Writes the hub's name into a new database, and compares it with an old one's.
async fn belongs(write: &SqlitePool, path: &Path, hub_name: &str) -> Result<(), OpenError> {
    let database = |error| OpenError::Database { path: path.to_owned(), error };
    sqlx::query("INSERT INTO meta (name, value) VALUES ('hub', ?) ON CONFLICT DO NOTHING")
        .bind(hub_name)
        .execute(write)
        .await
        .map_err(database)?;
    let stored: String = sqlx::query_scalar("SELECT value FROM meta WHERE name = 'hub'")
        .fetch_one(write)
        .await
        .map_err(database)?;
    if stored == hub_name {
        return Ok(());
    }
    Err(OpenError::OtherHub { path: path.to_owned(), stored, given: hub_name.to_owned() })
}
