//! From a URL to a pool of one of the three kinds of database.

use std::{str::FromStr, time::Duration};

use pabal_core::{ConfigError, SecretReference, Secrets};
use sqlx::{
    ConnectOptions, MySqlPool, PgPool, SqlitePool,
    mysql::{MySqlConnectOptions, MySqlPoolOptions},
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};

use crate::name::Dialect;

/// How long one waits for a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Connections of one source or destination.
const CONNECTIONS: u32 = 4;

/// Connections to an application's database. `Debug` says which kind it is, and nothing else.
#[derive(Clone)]
pub(crate) enum Pool {
    /// PostgreSQL.
    Postgres(PgPool),
    /// MariaDB or MySQL.
    MySql(MySqlPool),
    /// SQLite.
    Sqlite(SqlitePool),
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Postgres(_) => "Postgres",
            Self::MySql(_) => "MySql",
            Self::Sqlite(_) => "Sqlite",
        })
    }
}

impl Pool {
    /// How it writes things.
    pub(crate) fn dialect(&self) -> Dialect {
        match self {
            Self::Postgres(_) => Dialect::Postgres,
            Self::MySql(_) => Dialect::MySql,
            Self::Sqlite(_) => Dialect::Sqlite,
        }
    }

    /// Opens nothing yet. The URL stands under the key `url`.
    ///
    /// # Errors
    /// If the secret is not there or is no URL; quotes nothing of it.
    pub(crate) fn lazy(
        reference: &SecretReference,
        secrets: &dyn Secrets,
    ) -> Result<Self, ConfigError> {
        let url = secrets.get("url", reference)?;
        let url = url.expose();
        let unreadable = || {
            ConfigError::new("url", format!("what {reference} holds is not the URL of a database"))
                .help("postgres://user:password@host/database, mysql://… or sqlite:path")
        };
        let scheme = url.split(':').next().unwrap_or_default();
        Ok(match scheme {
            "postgres" | "postgresql" => {
                // What the parser says could quote the password.
                let options = PgConnectOptions::from_str(url).map_err(|_| unreadable())?;
                let options = options.application_name("pabal").disable_statement_logging();
                let pool =
                    PgPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(CONNECT);
                Self::Postgres(pool.connect_lazy_with(options))
            }
            "mysql" | "mariadb" => {
                // The mode is the server's own, so that `||` means in a statement what it means there.
                let options = MySqlConnectOptions::from_str(url)
                    .map_err(|_| unreadable())?
                    .pipes_as_concat(false)
                    .no_engine_substitution(false);
                let pool =
                    MySqlPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(CONNECT);
                Self::MySql(pool.connect_lazy_with(options.disable_statement_logging()))
            }
            "sqlite" => {
                let options = SqliteConnectOptions::from_str(url).map_err(|_| unreadable())?;
                let options = options.busy_timeout(CONNECT).disable_statement_logging();
                let pool = SqlitePoolOptions::new().max_connections(1).acquire_timeout(CONNECT);
                Self::Sqlite(pool.connect_lazy_with(options))
            }
            _ => return Err(unreadable()),
        })
    }
}
