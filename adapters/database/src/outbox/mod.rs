//! The receiving side: the outbox table of an application.

mod access;
mod columns;
mod hand_over;
mod look;
mod memory;
mod notify;
mod relay;
mod row;
mod settings;
mod statements;
mod table;
mod trouble;
mod write_back;

use std::sync::Arc;

use async_trait::async_trait;
use pabal_core::{ConfigError, Context, ReceiveError, Receiver, Sender, Stop};

use self::relay::Relay;
pub(crate) use self::settings::OutboxSettings;

/// Receives what one application writes into its outbox table.
#[derive(Debug)]
struct OutboxReceiver(Relay);

#[async_trait]
impl Receiver for OutboxReceiver {
    fn exclusive(&self) -> bool {
        true
    }

    async fn run(&self, inbox: Arc<dyn Sender>, stop: Stop) -> Result<(), ReceiveError> {
        let ear = self.0.ear();
        self.0.run(&inbox, &stop, ear.as_ref()).await
    }
}

/// The receiver of one source.
pub(crate) fn receiver(context: Context) -> Result<Box<dyn Receiver>, Vec<ConfigError>> {
    let settings: OutboxSettings = context.settings.parse()?;
    let checked = settings.check(&context)?;
    Ok(Box::new(OutboxReceiver(Relay {
        source: context.name,
        clock: context.clock,
        body_bytes_max: context.body_bytes_max,
        checked,
    })))
}
