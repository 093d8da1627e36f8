//! The server: how it is reached, and whether it can be trusted.

use std::str::FromStr;

use pabal_core::Secret;
use sqlx::{ConnectOptions, Connection, Executor, PgConnection, Row, postgres::PgConnectOptions};

use crate::{error, open::OpenError};

/// The oldest server whose SQL this is.
const OLDEST: i32 = 13;
/// A pooler that others are busy with may happen to hand out the same ones twice.
const POOLED_ROUNDS: u32 = 3;

/// A server, and how it is called in messages.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) options: PgConnectOptions,
    pub(crate) place: String,
}

impl Server {
    pub(crate) fn of(url: &Secret) -> Result<Self, OpenError> {
        let is_postgres = ["postgres://", "postgresql://"].map(|it| url.expose().starts_with(it));
        if !is_postgres.contains(&true) {
            return Err(OpenError::Url);
        }
        // What the parser says could quote the password.
        let options = PgConnectOptions::from_str(url.expose()).map_err(|_| OpenError::Url)?;
        // Poolers refuse the setting that is left out; it changes how numbers read as text, and here
        // they travel in binary.
        let options =
            options.application_name("pabal").extra_float_digits(None).disable_statement_logging();
        let database = options.get_database().unwrap_or_else(|| options.get_username());
        let place = format!(
            "database `{database}` at {}:{} as `{}`",
            options.get_host(),
            options.get_port(),
            options.get_username()
        );
        Ok(Self { options, place })
    }

    pub(crate) async fn connect(&self) -> Result<PgConnection, OpenError> {
        let connected = PgConnection::connect_with(&self.options).await;
        connected.map_err(|error| OpenError::Connect { place: self.place.clone(), error })
    }

    pub(crate) fn database(&self, error: sqlx::Error) -> OpenError {
        if error::is_forbidden(&error) {
            let role = self.options.get_username();
            return self.unfit(format!(
                "{error}; the owner of the schema gives the role what it needs by \
                 SELECT pabal.grant_to('{role}')"
            ));
        }
        OpenError::Database { place: self.place.clone(), error }
    }

    fn unfit(&self, why: String) -> OpenError {
        OpenError::Unfit { place: self.place.clone(), why }
    }

    /// Whether two connections turn out to share backends, as behind a transaction pooler. Found before
    /// anything is left behind on them: what one listens to there, another one is told.
    pub(crate) async fn is_pooled(&self) -> Result<bool, OpenError> {
        let fail = |error| self.database(error);
        let mut connections = [self.connect().await?, self.connect().await?];
        let mut backends = [None; 2];
        for _ in 0..POOLED_ROUNDS {
            for (connection, backend) in connections.iter_mut().zip(&mut backends) {
                let row = connection.fetch_one("SELECT pg_backend_pid()").await.map_err(fail)?;
                let now: i32 = row.get(0);
                if *backend.get_or_insert(now) != now {
                    return Ok(true);
                }
            }
        }
        Ok(backends[0] == backends[1])
    }

    /// What a receipt rests on.
    pub(crate) async fn check(&self, connection: &mut PgConnection) -> Result<(), OpenError> {
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
}
