//! The settings of `cdc`.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytesize::ByteSize;
use pabal_core::{ConfigError, State};
use schemars::JsonSchema;
use serde::Deserialize;
use sqlx::PgPool;

use super::{
    super::{relay::Relay as Poll, settings::OnFailed},
    Cdc,
    pgoutput::BYTEA,
    slot::{Slot, check_name, default_name},
    stream::Options,
};
use crate::name;

/// `cdc`: how rows come out of PostgreSQL's log.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CdcSettings {
    /// The replication slot; made if it is missing and may be made. Default:
    /// `pabal_{partner}_{source}`.
    pub slot: Option<String>,
    /// The publication of the table; made if it is missing and may be made. Default: as the slot.
    pub publication: Option<String>,
    /// An alert above it: what the server may keep of its log because of the slot.
    #[schemars(with = "String")]
    pub wal_max: ByteSize,
    /// How often the server hears from the hub and the slot is looked at; between 100ms and 10m.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub heartbeat: Duration,
    /// Whether the table is polled while logical replication is not to be had.
    pub fall_back: bool,
}

impl Default for CdcSettings {
    fn default() -> Self {
        Self {
            slot: None,
            publication: None,
            wal_max: ByteSize::gib(1),
            heartbeat: Duration::from_secs(10),
            fall_back: false,
        }
    }
}

/// The bounds of a heartbeat. The server gives up after six of them.
const HEARTBEAT: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(600);
/// Bytes of the rows of one batch, as the server writes them; one row may be more.
const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;

impl CdcSettings {
    /// The relay of a source. Opens nothing.
    ///
    /// # Errors
    /// All faults found.
    pub(crate) fn relay(
        self,
        poll: Poll,
        pool: PgPool,
        state: Arc<dyn State>,
    ) -> Result<Cdc, Vec<ConfigError>> {
        let mut faults = Vec::new();
        let named = self.slot.map_or_else(|| default_name(&poll.source), Ok);
        let named = named.and_then(|name| check_name("cdc.slot", &name).map(|()| name));
        let name = named.unwrap_or_else(|fault| {
            faults.push(fault);
            String::new()
        });
        if !HEARTBEAT.contains(&self.heartbeat) {
            faults.push(ConfigError::new("cdc.heartbeat", "not between 100ms and 10m"));
        }
        if let Some(publication) = &self.publication
            && let Err(fault) = name::check("cdc.publication", publication)
        {
            faults.push(fault);
        }
        let settings = &poll.checked.settings;
        if settings.on_failed == OnFailed::Hold {
            let fault = "what the log tells goes on: it cannot be held back";
            faults.push(ConfigError::new("on_failed", fault).help("relay = \"notify\""));
        }
        if settings.one_transaction {
            let fault = "rows are marked after the hub has them";
            faults.push(ConfigError::new("one_transaction", fault).help("relay = \"notify\""));
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let publication = self.publication.unwrap_or_else(|| name.clone());
        let options = Options {
            table: Default::default(),
            heartbeat: self.heartbeat,
            rows_max: settings.batch,
            bytes_max: BATCH_BYTES_MAX,
            // `bytea` is written in hexadecimal.
            column_max: poll.body_bytes_max * 2 + 2,
            byte_types: vec![BYTEA],
        };
        let slot = Slot { name, publication, table: poll.checked.table.clone() };
        Ok(Cdc {
            poll,
            pool,
            slot,
            options,
            kept_bytes_max: self.wal_max.as_u64(),
            fall_back: self.fall_back,
            state,
            told: Mutex::default(),
        })
    }
}
