//! The plan: everything the configuration says, as plain data with the defaults filled in.

use std::{fmt, num::NonZeroUsize, path::PathBuf, sync::Arc, time::Duration};

use pabal_core::{
    BreakerPolicy, ConfigError, EndpointName, OnDead, Order, RetryPolicy, SecretReference, Secrets,
    Settings, TypePattern,
};
use serde::{Deserialize, Serialize};

use crate::{ConfigSecrets, Fault, HubConfig, Position, Rate, redact};

/// A configuration: without a fault of its own, or what of it could be read.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory it was read from.
    pub dir: PathBuf,
    /// `hub.toml`.
    pub hub: HubConfig,
    /// Every agency, in the order of its id.
    pub partners: Vec<PartnerConfig>,
    /// Every way in, in the order of their names.
    pub sources: Vec<SourceConfig>,
    /// Every way out, in the order of their names.
    pub destinations: Vec<DestinationConfig>,
    /// Looks up what `{ env = … }` and `{ file = … }` refer to.
    pub secrets: Arc<ConfigSecrets>,
}

impl Config {
    /// The secrets as the core's trait.
    #[must_use]
    pub fn secrets(&self) -> Arc<dyn Secrets> {
        Arc::clone(&self.secrets) as Arc<dyn Secrets>
    }

    /// What somebody else found wrong with the value at `position`, or below it at the error's key,
    /// brought to its file and line. Never prints the value of a secret.
    #[must_use]
    pub fn fault_at(&self, position: &Position, error: &ConfigError) -> Fault {
        Fault::of(position, error)
    }
}

/// One agency.
#[derive(Debug, Clone)]
pub struct PartnerConfig {
    /// The stem of its file.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Whom to call.
    pub contacts: Vec<Contact>,
}

/// Somebody at an agency.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contact {
    /// Who.
    pub name: String,
    /// Where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// What for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// By telephone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phone: Option<String>,
}

/// A jq expression and where it stands.
#[derive(Debug, Clone)]
pub struct JqText {
    /// The expression.
    pub text: String,
    /// Where it stands.
    pub position: Position,
}

/// The one table named after an adapter.
#[derive(Clone)]
pub struct AdapterConfig {
    /// The adapter's name; empty if the table is at fault, which is reported already.
    pub name: String,
    /// The table, without `answer`.
    pub settings: Settings,
    /// Where the table stands; faults in it are relative to this.
    pub position: Position,
}

impl fmt::Debug for AdapterConfig {
    /// Without what may be a secret in the wrong place.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterConfig")
            .field("name", &self.name)
            .field("settings", &redact::printable(&self.settings.0, false))
            .field("position", &self.position)
            .finish()
    }
}

/// One way out: a subscription of an agency.
#[derive(Debug, Clone)]
pub struct DestinationConfig {
    /// `partner/name`.
    pub name: EndpointName,
    /// The operators' own link number.
    pub id: Option<String>,
    /// What people call it.
    pub title: Option<String>,
    /// The types it takes; at least one.
    pub takes: Vec<TypePattern>,
    /// The sources it takes from; empty for all but its own partner's.
    pub from: Vec<EndpointName>,
    /// A further condition on the message.
    pub when: Option<JqText>,
    /// What may not overtake what.
    pub order: Order,
    /// What a dead letter means for those behind it.
    pub on_dead: OnDead,
    /// When a failed message is tried again.
    pub retry: RetryPolicy,
    /// When it stops spending attempts.
    pub breaker: BreakerPolicy,
    /// Over how many lanes it is spread, each held by one node.
    pub lanes: u16,
    /// How many calls at once.
    pub concurrency: usize,
    /// How many messages per time at most.
    pub rate: Option<Rate>,
    /// How it is sent.
    pub adapter: AdapterConfig,
    /// What an answer means; `None` leaves it to the adapter.
    pub answer: Option<AnswerConfig>,
    /// Where its table stands.
    pub position: Position,
}

/// One way in.
#[derive(Debug, Clone)]
pub struct SourceConfig {
    /// `partner/name`.
    pub name: EndpointName,
    /// The operators' own link number.
    pub id: Option<String>,
    /// What people call it.
    pub title: Option<String>,
    /// Where the envelope's fields stand in the body; `None` leaves the envelope as it came.
    pub identify: Option<IdentifyConfig>,
    /// What becomes of what cannot be read.
    pub on_invalid: OnInvalid,
    /// Whether its messages may be addressed to one destination.
    pub may_address: bool,
    /// The largest body it may hand over, in bytes.
    pub body_bytes_max: usize,
    /// For how long after the first time it may hand the same message over again; never longer than
    /// `retention.inbox`. `None`: nobody said.
    pub redelivery_window: Option<Duration>,
    /// Where repeats are looked for first.
    pub hot_cache: Option<HotCacheConfig>,
    /// How it is received.
    pub adapter: AdapterConfig,
    /// Where its table stands.
    pub position: Position,
}

/// `hot_cache`: a memory in front of the table, for sources with many repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HotCacheConfig {
    /// In this process, so many messages.
    Messages(NonZeroUsize),
    /// In Redis, each message for so long.
    Redis {
        /// Where it is.
        url: SecretReference,
        /// How long a message is remembered.
        keep: Duration,
    },
}

/// What becomes of an arrival that cannot be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnInvalid {
    /// The origin is told, and keeps it.
    #[default]
    Refuse,
    /// It is kept as a dead letter of the source, and acknowledged.
    Keep,
}

/// `read.identify`: an expression for each field of the envelope.
#[derive(Debug, Clone)]
pub struct IdentifyConfig {
    /// The origin's id.
    pub id: Option<JqText>,
    /// The message type (`type`).
    pub message_type: Option<JqText>,
    /// The ordering key.
    pub key: Option<JqText>,
    /// The business version.
    pub version: Option<JqText>,
    /// What the message belongs to.
    pub correlation: Option<JqText>,
    /// What becomes of a message without an id.
    pub missing: MissingId,
    /// Where the table stands; its keys are `id`, `type`, `key`, `version`, `correlation`.
    pub position: Position,
}

/// What becomes of a message without an id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MissingId {
    /// It is refused.
    #[default]
    Refuse,
    /// Its content is its id.
    Content,
    /// It gets none.
    None,
}

/// `answer`: what a partner's answer means.
#[derive(Debug, Clone)]
pub struct AnswerConfig {
    /// How the body is read.
    pub format: AnswerFormat,
    /// The body's charset, if not UTF-8.
    pub charset: Option<String>,
    /// The other side holds the message.
    pub success: Option<JqText>,
    /// The other side had it already.
    pub duplicate: Option<JqText>,
    /// Try again later.
    pub retry: Option<JqText>,
    /// It will never be taken.
    pub dead: Option<JqText>,
    /// If none of these holds (`else`).
    pub otherwise: Else,
    /// Where the table stands.
    pub position: Position,
}

/// How the body of an answer is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnswerFormat {
    /// As JSON.
    #[default]
    Json,
    /// As one string.
    Text,
}

/// What an answer means that no case holds for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Else {
    /// Try again later.
    #[default]
    Retry,
    /// It will never be taken.
    Dead,
}
