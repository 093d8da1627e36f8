//! `store` in `hub.toml`: where everything is kept.

use std::path::{Path, PathBuf};

use pabal_core::SecretReference;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Fault, Position, known::Table, parse::Parser};

/// Where everything is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreConfig {
    /// In this file, relative to the directory that holds the configuration directory.
    Sqlite(PathBuf),
    /// In a PostgreSQL database, which any number of nodes may share.
    Postgres {
        /// Where its URL is; it holds a password.
        url: SecretReference,
        /// A URL that goes to the server directly, for notifications, if the other one goes through
        /// a transaction pooler.
        listen: Option<SecretReference>,
        /// Connections for the engine.
        connections: u32,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StoreToml {
    Sqlite(PathBuf),
    Postgres(PostgresToml),
}

/// The reference to the URL, and beside it what else there is to say.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PostgresToml {
    #[serde(skip_serializing_if = "Option::is_none")]
    env: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    listen: Option<SecretReference>,
    #[serde(default = "connections")]
    connections: u32,
}

fn connections() -> u32 {
    16
}

impl Default for StoreToml {
    fn default() -> Self {
        Self::Sqlite("var/pabal.db".into())
    }
}

/// Where a URL may stand by mistake, from the inside out.
const PLACES: [&str; 7] = [
    "store.postgres.listen.env",
    "store.postgres.listen.file",
    "store.postgres.listen",
    "store.postgres.env",
    "store.postgres.file",
    "store.postgres",
    "store",
];

/// Takes every URL out that stands where only the name of its place may, before anything reads it, so
/// that no message can quote its password; and keys that there are not.
pub(crate) fn take_faults(
    fields: &mut Map<String, Value>,
    position: &Position,
    parser: &mut Parser<'_>,
) {
    for place in PLACES {
        let (path, key) = place.rsplit_once('.').unwrap_or(("", place));
        let path = path.split('.').filter(|part| !part.is_empty());
        let table = path
            .into_iter()
            .try_fold(&mut *fields, |table, key| table.get_mut(key).and_then(Value::as_object_mut));
        let Some(table) = table else {
            continue;
        };
        let must_be_reference = matches!(place, "store.postgres" | "store.postgres.listen");
        let literal = table
            .get(key)
            .and_then(Value::as_str)
            .is_some_and(|text| must_be_reference || text.contains("://"));
        if literal {
            table.remove(key);
            parser.faults.push(Fault::literal_secret(&position.below(place)));
            // What is left of it would only be told to be incomplete.
            fields.remove("store");
            return;
        }
    }
    // Inside of a choice the path to a key is lost: this table is looked at here.
    let table = fields.get_mut("store").and_then(|store| store.get_mut("postgres"));
    if let Some(table) = table.and_then(Value::as_object_mut) {
        parser.only_known(table, Table::Postgres, &position.below("store.postgres"));
    }
}

impl StoreToml {
    /// What types cannot say.
    pub(crate) fn check(&self, wrong: &mut impl FnMut(&str, &str, &str)) {
        let Self::Postgres(postgres) = self else {
            return;
        };
        if postgres.env.is_some() == postgres.file.is_some() {
            wrong(
                "store.postgres",
                "not one place where the database's URL is",
                "write postgres = { env = \"PABAL_DATABASE_URL\" } or { file = \"…\" }",
            );
        }
        if !(2..=500).contains(&postgres.connections) {
            wrong("store.postgres.connections", "not between 2 and 500", "the default is 16");
        }
    }

    /// As plain data; a file lies in `parent` if its path does not say otherwise.
    pub(crate) fn planned(self, parent: &Path) -> StoreConfig {
        match self {
            Self::Sqlite(path) => StoreConfig::Sqlite(parent.join(path)),
            Self::Postgres(PostgresToml { env, file, listen, connections }) => {
                let url = match (env, file) {
                    (_, Some(file)) => SecretReference::File(file),
                    (env, None) => SecretReference::Env(env.unwrap_or_default()),
                };
                StoreConfig::Postgres { url, listen, connections }
            }
        }
    }
}
