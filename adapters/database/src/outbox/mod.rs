//! The receiving side: the outbox table of an application.

#![expect(dead_code, reason = "no table is asked yet")]

mod columns;
mod row;
mod settings;

use pabal_core::{ConfigError, Context, Receiver};

pub(crate) use settings::OutboxSettings;

/// The receiver of one source.
pub(crate) fn receiver(context: Context) -> Result<Box<dyn Receiver>, Vec<ConfigError>> {
    let settings: OutboxSettings = context.settings.parse()?;
    settings.check(&context)?;
    Err(vec![ConfigError::new("", "under construction")])
}
