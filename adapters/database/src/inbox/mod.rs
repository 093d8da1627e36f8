//! The sending side: the inbox table of an application.

use pabal_core::{ConfigError, Context, SecretReference, Sender};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::connect::Pool;

/// `[destination.x.database]`: the inbox table of an application.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InboxSettings {
    /// Where the database is: `postgres://…`, `mysql://…` or `sqlite:…`.
    pub url: SecretReference,
}

/// The sender of one destination.
pub(crate) fn sender(context: Context) -> Result<Box<dyn Sender>, Vec<ConfigError>> {
    let settings: InboxSettings = context.settings.parse()?;
    let _pool = Pool::lazy(&settings.url, &*context.secrets).map_err(|error| vec![error])?;
    Err(vec![ConfigError::new("", "under construction")])
}
