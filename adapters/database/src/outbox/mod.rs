//! The receiving side: the outbox table of an application.

use pabal_core::{ConfigError, Context, Receiver, SecretReference};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::connect::Pool;

/// `[source.x.database]`: the outbox table of an application.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutboxSettings {
    /// Where the database is: `postgres://…`, `mysql://…` or `sqlite:…`.
    pub url: SecretReference,
}

/// The receiver of one source.
pub(crate) fn receiver(context: Context) -> Result<Box<dyn Receiver>, Vec<ConfigError>> {
    let settings: OutboxSettings = context.settings.parse()?;
    let _pool = Pool::lazy(&settings.url, &*context.secrets).map_err(|error| vec![error])?;
    Err(vec![ConfigError::new("", "under construction")])
}
