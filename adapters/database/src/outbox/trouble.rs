//! What keeps a relay from going on.

use sqlx::{Error, mysql::MySqlDatabaseError};

use crate::classify::{Fate, said};

/// Why a relay cannot go on.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It passes by itself.
    Passing(String),
    /// Somebody has to do something.
    Lasting(String),
}

impl Trouble {
    /// What the database's error means, while this was done.
    pub(super) fn of(what: &str, error: &Error) -> Self {
        let text = format!("{what}: {}", said(error));
        match Fate::of(error) {
            Fate::Again => Self::Passing(text),
            Fate::Place if is_passing(error) => Self::Passing(text),
            Fate::Place | Fate::Never(_) => Self::Lasting(text),
        }
    }
}

/// The database is not to be had at the moment.
fn is_passing(error: &Error) -> bool {
    let Error::Database(database) = error else {
        return matches!(error, Error::PoolTimedOut);
    };
    match database.try_downcast_ref::<MySqlDatabaseError>() {
        // Too many connections; the server is being shut down.
        Some(mysql) => matches!(mysql.number(), 1040 | 1203 | 1053 | 1079),
        // It starts or stops; too many connections; a standby that may become the primary.
        None => {
            matches!(database.code().as_deref(), Some("57P03" | "53300" | "25006"))
        }
    }
}
