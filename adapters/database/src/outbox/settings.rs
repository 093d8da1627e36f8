//! The table `[source.x.database]`.

use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

use pabal_core::{ConfigError, Context, SecretReference};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    cdc::CdcSettings,
    columns::{Columns, Field, Preset},
};
use crate::{
    connect::Pool,
    name::{self, TableName},
};

/// `[source.x.database]`: the outbox table of an application.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutboxSettings {
    /// Where the database is: `postgres://…`, `mysql://…` or `sqlite:…`. How TLS is used stands in
    /// the URL's own parameters (`sslmode=verify-full`, `ssl-mode=VERIFY_IDENTITY`).
    pub url: SecretReference,
    /// The table, as the database writes its name: `outbox` or `schema.outbox`.
    #[serde(default = "default_table")]
    pub table: String,
    /// The layout to start from.
    #[serde(default)]
    pub preset: Preset,
    /// Columns that are called otherwise than in the preset; an empty name: the table has none.
    #[serde(default)]
    pub columns: BTreeMap<Field, String>,
    /// The words that the column of the status holds.
    #[serde(default)]
    pub status: StatusWords,
    /// The media type of a body whose row does not say.
    #[serde(default = "default_content_type")]
    pub content_type: String,
    /// How one learns of new rows.
    #[serde(default)]
    pub relay: RelayKind,
    /// Rows taken at once, 1 to 5000.
    #[serde(default = "default_batch")]
    pub batch: usize,
    /// Between two looks at a table that has something now and then; 10ms to 1h.
    #[serde(default = "default_interval", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub interval: Duration,
    /// Grows from `interval` up to this while the table stays empty; at most 1h.
    #[serde(default = "default_idle_interval", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub idle_interval: Duration,
    /// What becomes of a row that was sent. Default: `mark`; `delete` where the layout has no
    /// status.
    pub sent: Option<SentRow>,
    /// How long rows marked as sent are kept, by the database's clock. Default: for ever.
    #[serde(default, with = "humantime_serde")]
    #[schemars(with = "Option<String>")]
    pub keep_sent: Option<Duration>,
    /// What becomes of the rows of a key behind one that was refused for good.
    #[serde(default)]
    pub on_failed: OnFailed,
    /// The hub's store lies in the same PostgreSQL database: a message is taken and its row marked
    /// in one transaction, by the store's role.
    #[serde(default)]
    pub one_transaction: bool,
    /// How one is woken, with `relay = "notify"`.
    #[serde(default)]
    pub notify: NotifySettings,
    /// How rows come out of the log, with `relay = "cdc"`.
    #[serde(default)]
    pub cdc: CdcSettings,
}

/// The words for what became of a row.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StatusWords {
    /// Not sent yet.
    pub new: String,
    /// The hub has it.
    pub sent: String,
    /// The hub will never take it as it stands.
    pub failed: String,
}

impl Default for StatusWords {
    fn default() -> Self {
        Self { new: "NEW".to_owned(), sent: "SENT".to_owned(), failed: "FAILED".to_owned() }
    }
}

/// How one learns of new rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RelayKind {
    /// By looking.
    #[default]
    Poll,
    /// By a trigger's notification; looking is the net. PostgreSQL only.
    Notify,
    /// From the database's log, by logical replication. PostgreSQL only.
    Cdc,
}

/// What becomes of a row that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SentRow {
    /// Its status says so.
    Mark,
    /// It is deleted.
    Delete,
}

/// What becomes of the rows of a key behind one that was refused for good.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnFailed {
    /// They go on.
    #[default]
    Pass,
    /// They wait until somebody makes the refused row new again or removes it. Rows of one key then
    /// go one by one.
    Hold,
}

/// `notify`: how one is woken.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NotifySettings {
    /// The channel that the trigger notifies.
    pub channel: String,
}

impl Default for NotifySettings {
    fn default() -> Self {
        Self { channel: "pabal_outbox".to_owned() }
    }
}

fn default_table() -> String {
    "outbox".to_owned()
}

fn default_content_type() -> String {
    "application/json".to_owned()
}

fn default_batch() -> usize {
    500
}

fn default_interval() -> Duration {
    Duration::from_secs(1)
}

fn default_idle_interval() -> Duration {
    Duration::from_secs(5)
}

/// More parameters than this some databases do not take in one statement.
const BATCH: RangeInclusive<usize> = 1..=5_000;
const INTERVAL: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(3600);

/// The settings, checked.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) table: TableName,
    pub(crate) columns: Columns,
    pub(crate) sent: SentRow,
    pub(crate) pool: Pool,
    pub(crate) settings: OutboxSettings,
}

impl OutboxSettings {
    /// Opens nothing.
    ///
    /// # Errors
    /// All faults found.
    pub(crate) fn check(self, context: &Context) -> Result<Checked, Vec<ConfigError>> {
        let mut faults = Vec::new();
        let table = TableName::parse("table", &self.table).map_err(|fault| faults.push(fault)).ok();
        let columns =
            Columns::new(self.preset, &self.columns).map_err(|found| faults.extend(found)).ok();
        let pool =
            Pool::lazy(&self.url, &*context.secrets).map_err(|fault| faults.push(fault)).ok();
        if !BATCH.contains(&self.batch) {
            faults.push(ConfigError::new("batch", "not between 1 and 5000"));
        }
        if !INTERVAL.contains(&self.interval) {
            faults.push(ConfigError::new("interval", "not between 10ms and 1h"));
        }
        if !(self.interval..=*INTERVAL.end()).contains(&self.idle_interval) {
            faults.push(ConfigError::new("idle_interval", "not between `interval` and 1h"));
        }
        self.check_words(&mut faults);
        if let Err(fault) = name::check("notify.channel", &self.notify.channel) {
            faults.push(fault);
        }
        let postgres = pool.as_ref().is_none_or(|pool| matches!(pool, Pool::Postgres(_)));
        if self.relay == RelayKind::Notify && !postgres {
            faults.push(
                ConfigError::new("relay", "only PostgreSQL notifies").help("relay = \"poll\""),
            );
        }
        if self.relay == RelayKind::Cdc && !postgres {
            let fault = ConfigError::new("relay", "only PostgreSQL has logical replication");
            faults.push(fault.help("relay = \"poll\""));
        }
        if self.one_transaction && !(postgres && context.alongside) {
            let what = "the hub's store is not in a PostgreSQL database, so it is not in this one";
            faults.push(ConfigError::new("one_transaction", what).help("leave it out"));
        }
        let sent = columns.as_ref().and_then(|columns| {
            self.check_status(columns).map_err(|found| faults.extend(found)).ok()
        });
        match (table, columns, pool, sent) {
            (Some(table), Some(columns), Some(pool), Some(sent)) if faults.is_empty() => {
                Ok(Checked { table, columns, sent, pool, settings: self })
            }
            _ => Err(faults),
        }
    }

    fn check_words(&self, faults: &mut Vec<ConfigError>) {
        let StatusWords { new, sent, failed } = &self.status;
        for (key, word) in [("new", new), ("sent", sent), ("failed", failed)] {
            if word.len() > 64 || word.chars().any(|c| c.is_control() || c == '\\') {
                let fault = "more than 64 bytes, or a control character or backslash in it";
                faults.push(ConfigError::new(format!("status.{key}"), fault));
            }
        }
        if new == sent || new == failed || sent == failed {
            faults.push(ConfigError::new("status", "the same word means two things"));
        }
    }

    /// What to do with what was sent, if the table can show it.
    fn check_status(&self, columns: &Columns) -> Result<SentRow, Vec<ConfigError>> {
        let mut faults = Vec::new();
        let has = |field| columns.get(field).is_some();
        let sent = match self.sent {
            Some(sent) => sent,
            None if has(Field::Status) => SentRow::Mark,
            None => SentRow::Delete,
        };
        let mut needs = |key: &str, field: Field| {
            if !has(field) {
                let what = format!("needs a column, and `columns.{}` names none", field.key());
                faults.push(ConfigError::new(key, what));
            }
        };
        if sent == SentRow::Mark {
            needs("sent", Field::Status);
        }
        if self.on_failed == OnFailed::Hold {
            needs("on_failed", Field::Status);
            needs("on_failed", Field::Key);
            needs("on_failed", Field::Order);
        }
        if self.keep_sent.is_some() {
            needs("keep_sent", Field::Sent);
            if sent == SentRow::Delete {
                let what = "what is deleted at once cannot be kept";
                faults.push(ConfigError::new("keep_sent", what).help("sent = \"mark\""));
            }
        }
        if faults.is_empty() { Ok(sent) } else { Err(faults) }
    }
}
