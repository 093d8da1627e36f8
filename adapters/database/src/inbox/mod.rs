//! The sending side: the inbox table of an application. The row that says that a message is here and
//! what the application does with it are one transaction of its own database.

mod mysql;
mod parameter;
mod postgres;
mod probe;
mod sender;
mod settings;
mod sql;
mod sqlite;
mod transaction;

use pabal_core::{ConfigError, Context, Sender};

pub(crate) use self::settings::InboxSettings;
use crate::connect::Pool;

/// The sender of one destination.
pub(crate) fn sender(context: Context) -> Result<Box<dyn Sender>, Vec<ConfigError>> {
    let settings: InboxSettings = context.settings.parse()?;
    let pool = Pool::lazy(&settings.url, &*context.secrets).map_err(|error| vec![error])?;
    let plan = settings.plan(pool.dialect())?;
    Ok(Box::new(sender::InboxSender::new(plan, pool, context.clock, context.body_bytes_max)))
}
