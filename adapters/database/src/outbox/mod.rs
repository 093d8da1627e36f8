//! The receiving side: the outbox table of an application.

mod access;
mod cdc;
mod columns;
mod hand_over;
mod look;
mod memory;
mod notify;
mod probe;
mod relay;
mod row;
mod settings;
mod statements;
mod table;
mod trouble;
mod write_back;

use std::sync::Arc;

use async_trait::async_trait;
use pabal_core::{ConfigError, Context, Finding, ReceiveError, Receiver, Sender, Stop};

pub(crate) use self::settings::OutboxSettings;
use self::{cdc::Cdc, relay::Relay, settings::RelayKind};
use crate::connect::Pool;

/// Receives what one application writes into its outbox table.
#[derive(Debug)]
enum OutboxReceiver {
    /// By looking, or woken to look.
    Looks(Box<Relay>),
    /// Out of the database's log.
    Reads(Box<Cdc>),
}

#[async_trait]
impl Receiver for OutboxReceiver {
    fn exclusive(&self) -> bool {
        true
    }

    async fn run(&self, inbox: Arc<dyn Sender>, stop: Stop) -> Result<(), ReceiveError> {
        match self {
            Self::Looks(relay) => {
                let ear = relay.ear();
                Box::pin(relay.run(&inbox, &stop, ear.as_ref())).await
            }
            Self::Reads(cdc) => {
                Box::pin(cdc.run(&inbox, &stop)).await;
                Ok(())
            }
        }
    }

    async fn probe(&self) -> Vec<Finding> {
        match self {
            Self::Looks(relay) => relay.probe().await,
            Self::Reads(cdc) => cdc.probe().await,
        }
    }
}

/// The receiver of one source.
pub(crate) fn receiver(context: Context) -> Result<Box<dyn Receiver>, Vec<ConfigError>> {
    let settings: OutboxSettings = context.settings.parse()?;
    let checked = settings.check(&context)?;
    let relay = Relay {
        source: context.name,
        clock: context.clock,
        body_bytes_max: context.body_bytes_max,
        checked,
    };
    let pool = match (&relay.checked.pool, relay.checked.settings.relay) {
        (Pool::Postgres(pool), RelayKind::Cdc) => pool.clone(),
        _ => return Ok(Box::new(OutboxReceiver::Looks(Box::new(relay)))),
    };
    let cdc = relay.checked.settings.cdc.clone().relay(relay, pool, context.state)?;
    Ok(Box::new(OutboxReceiver::Reads(Box::new(cdc))))
}
