//! An application's own database: its outbox table is a source, its inbox table a destination.
//!
//! Business data and the message to send are one transaction of the application's; the relay takes
//! the row from there. The way in is the same thing mirrored: the row that says that a message was
//! taken and what the application does with it are one transaction.

mod connect;
mod inbox;
#[expect(dead_code, reason = "no table is asked yet")]
mod name;
mod outbox;

use pabal_core::{Adapter, ConfigError, Context, Receiver, Schema, Sender};

/// The adapter `database`.
#[derive(Debug, Clone, Copy, Default)]
pub struct DatabaseAdapter;

impl Adapter for DatabaseAdapter {
    fn name(&self) -> &'static str {
        "database"
    }

    fn sender_schema(&self) -> Schema {
        schemars::schema_for!(inbox::InboxSettings)
    }

    fn receiver_schema(&self) -> Schema {
        schemars::schema_for!(outbox::OutboxSettings)
    }

    fn sender(&self, context: Context) -> Result<Box<dyn Sender>, Vec<ConfigError>> {
        inbox::sender(context)
    }

    fn receiver(&self, context: Context) -> Result<Box<dyn Receiver>, Vec<ConfigError>> {
        outbox::receiver(context)
    }
}
