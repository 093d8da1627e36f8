//! `[destination.x.database]`, and what it comes to.

use std::{collections::BTreeMap, time::Duration};

use pabal_core::{ConfigError, SecretReference};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    parameter::{self, Parameter, Path},
    sql::Sql,
};
use crate::name::{self, Dialect, TableName};

/// `[destination.x.database]`: the inbox table of an application.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InboxSettings {
    /// Where the database is: `postgres://…`, `mysql://…` or `sqlite:…`.
    pub url: SecretReference,
    /// The inbox table, with its schema where that is not the account's own.
    #[serde(default = "default_inbox")]
    pub inbox: String,
    /// What else is done in the same transaction: one SQL statement or a list, with `:name` for what
    /// comes from the message. Not done for a repeat, nor for a version that is too old.
    #[serde(default)]
    pub apply: Statements,
    /// Parameters of one's own: a name, and the way into the body as jq writes it, `.a.b[0]`.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// The table of the highest version of each source, type and key. A lower one is dropped.
    pub version_table: Option<String>,
    /// Instead of that table, a query for the version that the application holds; no row: none.
    pub version_query: Option<String>,
    /// A PostgreSQL channel that is told the message id with the commit.
    pub notify: Option<String>,
    /// Messages of one transaction at the most, from 1 to 1,000.
    #[serde(default = "default_batch")]
    pub batch: usize,
    /// The limit of one transaction, waiting for locks included.
    #[serde(default = "default_timeout", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
}

/// One SQL statement or several.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Statements {
    /// One.
    One(String),
    /// Several, in this order.
    Several(Vec<String>),
}

impl Default for Statements {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

fn default_inbox() -> String {
    "inbox".to_owned()
}

fn default_batch() -> usize {
    100
}

fn default_timeout() -> Duration {
    Duration::from_secs(30)
}

/// Longer than this nobody holds locks for one message.
const TIMEOUT_MAX: Duration = Duration::from_secs(300);
const BATCH_MAX: usize = 1000;

/// A statement and what its parameters are, in the order in which they stand.
#[derive(Debug, Clone)]
pub(crate) struct Statement {
    /// The key it stands under.
    pub key: String,
    /// In pieces.
    pub sql: Sql,
    /// One for each that stands in it.
    pub parameters: Vec<Parameter>,
}

/// How the version held is known.
#[derive(Debug, Clone)]
pub(crate) enum Held {
    /// By a table of its own.
    Table(TableName),
    /// By asking the application's tables.
    Query(Statement),
}

/// What one destination does with each message.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The inbox table.
    pub inbox: TableName,
    /// What else is done.
    pub apply: Vec<Statement>,
    /// Whether old versions are dropped.
    pub held: Option<Held>,
    /// Who is told.
    pub notify: Option<String>,
    /// Messages of one transaction.
    pub batch: usize,
    /// The limit of one transaction.
    pub timeout: Duration,
}

impl InboxSettings {
    /// Checks everything that needs no database.
    ///
    /// # Errors
    /// All faults found.
    pub(crate) fn plan(&self, dialect: Dialect) -> Result<Plan, Vec<ConfigError>> {
        let mut faults = Vec::new();
        let own = self.own_parameters(&mut faults);
        let mut keep = |fault| faults.push(fault);
        let inbox = TableName::parse("inbox", &self.inbox).map_err(&mut keep).ok();
        let mut statement = |key: String, text: &str| {
            let read = Statement::read(key, text, dialect, &own);
            read.map_err(|found| faults.extend(found)).ok()
        };
        let apply: Vec<_> = match &self.apply {
            Statements::One(text) => vec![("apply".to_owned(), text)],
            Statements::Several(list) => {
                let named = list.iter().enumerate();
                named.map(|(index, text)| (format!("apply.{index}"), text)).collect()
            }
        };
        let apply: Vec<_> =
            apply.into_iter().filter_map(|(key, text)| statement(key, text)).collect();
        let query =
            self.version_query.as_ref().and_then(|it| statement("version_query".to_owned(), it));
        let mut fault = |key: &str, text: &str, help: &str| {
            faults.push(ConfigError::new(key, text).help(help));
        };
        if self.version_table.is_some() && self.version_query.is_some() {
            fault("version_query", "is beside `version_table`", "keep one of them");
        }
        if self.notify.is_some() && dialect != Dialect::Postgres {
            fault("notify", "only PostgreSQL has channels", "leave it out");
        }
        if !(1..=BATCH_MAX).contains(&self.batch) {
            fault("batch", "not between 1 and 1,000", "leave it out for 100");
        }
        if self.timeout < Duration::from_secs(1) || self.timeout > TIMEOUT_MAX {
            fault("timeout", "not between 1 second and 5 minutes", "leave it out for 30s");
        }
        let mut keep = |fault| faults.push(fault);
        let table = self.version_table.as_ref().and_then(|text| {
            TableName::parse("version_table", text).map_err(&mut keep).ok().map(Held::Table)
        });
        if let Some(channel) = &self.notify
            && let Err(fault) = name::check("notify", channel)
        {
            faults.push(fault);
        }
        match inbox {
            Some(inbox) if faults.is_empty() => Ok(Plan {
                inbox,
                apply,
                held: table.or(query.map(Held::Query)),
                notify: self.notify.clone(),
                batch: self.batch,
                timeout: self.timeout,
            }),
            _ => Err(faults),
        }
    }

    fn own_parameters(&self, faults: &mut Vec<ConfigError>) -> BTreeMap<String, Path> {
        let mut own = BTreeMap::new();
        for (name, text) in &self.parameters {
            let key = format!("parameters.{name}");
            let word = name.chars().all(|c| c.is_alphanumeric() || c == '_')
                && name.starts_with(|c: char| !c.is_numeric());
            if !word || parameter::is_taken(name) {
                let why =
                    if word { "every message has a parameter of this name" } else { "not a name" };
                faults.push(ConfigError::new(key, why).help("letters, digits and `_`"));
                continue;
            }
            match Path::parse(&key, text) {
                Ok(path) => {
                    own.insert(name.clone(), path);
                }
                Err(fault) => faults.push(fault),
            }
        }
        own
    }
}

impl Statement {
    fn read(
        key: String,
        text: &str,
        dialect: Dialect,
        own: &BTreeMap<String, Path>,
    ) -> Result<Self, Vec<ConfigError>> {
        let sql = Sql::parse(text, dialect)
            .map_err(|why| vec![ConfigError::new(&*key, format!("this SQL {why}"))])?;
        let mut faults: Vec<ConfigError> = Vec::new();
        let mut parameters = Vec::new();
        for name in sql.parameters() {
            match Parameter::named(&key, name, own) {
                Ok(parameter) => parameters.push(parameter),
                Err(fault) if faults.contains(&fault) => {}
                Err(fault) => faults.push(fault),
            }
        }
        if faults.is_empty() { Ok(Self { key, sql, parameters }) } else { Err(faults) }
    }
}
