//! A look at the database file that changes nothing in it.

use std::path::Path;

use pabal_core::Finding;
use sqlx::{ConnectOptions, Connection, Row, sqlite::SqliteConnectOptions};

use crate::{
    SqliteStore, filesystem,
    open::{OpenError, Options, known},
};

impl SqliteStore {
    /// What is found there; nothing if all is well.
    pub async fn probe(options: &Options) -> Vec<Finding> {
        match look(options).await {
            Ok(found) => found.into_iter().collect(),
            Err(error) => vec![Finding::fault(error.to_string())],
        }
    }
}

async fn look(options: &Options) -> Result<Option<Finding>, OpenError> {
    let path = options.path.as_path();
    let fail = |error| OpenError::Io { path: path.to_owned(), error };
    let exists = path.try_exists().map_err(fail)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let there = folder.unwrap_or(Path::new(".")).ancestors().find(|folder| folder.exists());
    if let Some(folder) = there
        && let Some(kind) = filesystem::network(folder).map_err(fail)?
    {
        return Err(OpenError::Network { path: path.to_owned(), kind });
    }
    if !exists {
        let what = format!("there is no {} yet", path.display());
        return Ok(Some(Finding::note(what).help("`pabal run` makes it")));
    }
    let database = |error| OpenError::Database { path: path.to_owned(), error };
    let connect = SqliteConnectOptions::new().filename(path).read_only(true);
    let mut connection = connect.disable_statement_logging().connect().await.map_err(database)?;
    let step = "SELECT coalesce(max(version), 0), (SELECT value FROM meta WHERE name = 'hub') \
                FROM _pabal_migrations WHERE success";
    let row = sqlx::query(step).fetch_one(&mut connection).await.map_err(database)?;
    let (step, stored): (i64, Option<String>) = (row.get(0), row.get(1));
    let _ = connection.close().await;
    if step > known() {
        return Err(OpenError::Newer { path: path.to_owned(), step, known: known() });
    }
    match stored {
        Some(stored) if stored != options.hub_name => {
            let (path, given) = (path.to_owned(), options.hub_name.clone());
            Err(OpenError::OtherHub { path, stored, given })
        }
        _ if step < known() => Ok(Some(
            Finding::note(format!("the schema has step {step}, this version needs {}", known()))
                .help("`pabal run` brings it up to date, or `pabal migrate` before"),
        )),
        _ => Ok(None),
    }
}
