//! Destinations whose partner fetches its messages, `[destination.x.pull]`: for applications that
//! have no address of their own and no way into a database.
//!
//! | key | default | meaning |
//! |---|---|---|
//! | `auth` | needed | as for sources, but for signatures, which a call without a body cannot have |
//! | `allow`, `trusted_proxies` | all, none | as for sources |
//! | `lease` | `"60s"` | for how long a message that was fetched is not handed out again |
//! | `batch_max` | 100 | messages of one answer |
//! | `mode` | `"batched"` | CloudEvents in one JSON array; `"binary"`: one message, its envelope in headers |
//! | `concurrent` | 64 | calls at the same time, those that wait included; more get 503 |
//!
//! | call | answer |
//! |---|---|
//! | `GET /in/{partner}/{destination}/pull?max=10&wait=20` | 200 with messages, or 204 after `wait` seconds |
//! | `POST …/ack` `{"tokens": […]}` | 200 with one result a token |
//! | `POST …/nack` `{"tokens": […], "delay": "30s", "reason": "…", "permanent": false}` | the same |
//!
//! A message carries its token in the attribute `pulltoken`, and in `pullattempt` for the
//! so-manieth time it is handed out. Results: `done`; `gone`, for what was settled before, or of a
//! nack, handed out anew since; `unreadable`, for what is no token.

mod forms;
pub(crate) mod serving;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use ipnet::IpNet;
use pabal_core::{
    Adapter, ConfigError, Context, EndpointName, Mailbox, Pickup, ReceiveError, Receiver, Schema,
    Sender, Stop,
};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::Semaphore;

use crate::{
    Ingress,
    auth::Check,
    door::Door,
    routes::{Gate, Named},
    settings::ReceiverAuth,
};

/// Leases outside of these make no sense: nothing is done in less, and nobody waits longer.
const LEASE_MIN: Duration = Duration::from_secs(1);
const LEASE_MAX: Duration = Duration::from_secs(24 * 3600);
/// As many messages as one answer may have, whatever the settings.
const BATCH_MAX: usize = 1000;

/// `[destination.x.pull]`: the partner fetches its messages, by `GET /in/{partner}/{destination}/pull`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PullSettings {
    /// How callers show who they are; `"none"` must be written out. Signatures are not possible.
    pub auth: ReceiverAuth,
    /// Networks that may call, e.g. `["10.1.0.0/16"]`. Empty: all.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub allow: Vec<IpNet>,
    /// Networks of the proxies in front, whose `X-Forwarded-For` is believed.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub trusted_proxies: Vec<IpNet>,
    /// For how long a message that was fetched is not handed out again; longer than the slowest
    /// reader takes for one batch. From 1s to 24h.
    #[serde(default = "default_lease", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub lease: Duration,
    /// Messages of one answer; at most 1000.
    #[serde(default = "default_batch_max")]
    pub batch_max: usize,
    /// How messages stand in an answer.
    #[serde(default)]
    pub mode: PullMode,
    /// Calls at the same time, those that wait included; more are asked to come back.
    #[serde(default = "default_concurrent")]
    pub concurrent: usize,
}

/// How messages stand in an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PullMode {
    /// CloudEvents batched mode: a JSON array.
    #[default]
    Batched,
    /// CloudEvents binary mode: one message, the envelope in `ce-…` headers, the body as it is.
    Binary,
}

fn default_lease() -> Duration {
    Duration::from_secs(60)
}

fn default_batch_max() -> usize {
    100
}

fn default_concurrent() -> usize {
    64
}

/// The adapter `pull`.
#[derive(Debug, Clone)]
pub struct PullAdapter {
    ingress: Ingress,
}

impl PullAdapter {
    /// One whose destinations are reached through `ingress`.
    #[must_use]
    pub fn new(ingress: Ingress) -> Self {
        Self { ingress }
    }
}

/// What a source may hold: nothing, because there is none.
#[derive(JsonSchema)]
#[serde(deny_unknown_fields)]
struct NoSource {}

impl Adapter for PullAdapter {
    fn name(&self) -> &'static str {
        "pull"
    }

    fn sender_schema(&self) -> Schema {
        schemars::schema_for!(PullSettings)
    }

    fn receiver_schema(&self) -> Schema {
        schemars::schema_for!(NoSource)
    }

    fn sender(&self, _context: Context) -> Result<Box<dyn Sender>, Vec<ConfigError>> {
        Err(vec![ConfigError::new("", "nothing is sent by `pull`: the partner fetches")])
    }

    fn receiver(&self, _context: Context) -> Result<Box<dyn Receiver>, Vec<ConfigError>> {
        let fault = ConfigError::new("", "`pull` is for destinations: a partner fetches by it");
        Err(vec![fault.help("what a partner hands over comes in by [source.NAME.rest]")])
    }

    fn pickup(&self, context: &Context) -> Result<Option<Box<dyn Pickup>>, Vec<ConfigError>> {
        Ok(Some(Box::new(PullPickup::new(self.ingress.clone(), context)?)))
    }
}

/// Where one destination's partner fetches.
#[derive(Debug)]
pub(crate) struct Desk {
    door: Door,
    batch_max: usize,
    mode: PullMode,
    room: Semaphore,
    gate: Gate<dyn Mailbox>,
}

impl Named for Desk {
    fn name(&self) -> &EndpointName {
        &self.door.name
    }

    fn is_open(&self) -> bool {
        self.gate.is_open()
    }
}

/// Lets one destination's partner fetch.
#[derive(Debug)]
struct PullPickup {
    ingress: Ingress,
    desk: Arc<Desk>,
    lease: Duration,
}

impl PullPickup {
    /// Checks the settings and makes the routes known: until it runs, it asks callers to come back.
    fn new(ingress: Ingress, context: &Context) -> Result<Self, Vec<ConfigError>> {
        let settings: PullSettings = context.settings.parse()?;
        let mut faults = Vec::new();
        let check = match &settings.auth {
            ReceiverAuth::StandardWebhooks(_) => {
                let fault = ConfigError::new("auth", "a call that fetches has no body to sign");
                Err(fault.help("use bearer, basic, header or client_certificate"))
            }
            auth => Check::new(auth, &*context.secrets),
        };
        let check = check.map_err(|fault| faults.push(fault)).ok();
        let mut fault = |key: &str, text: &str| faults.push(ConfigError::new(key, text));
        if !(LEASE_MIN..=LEASE_MAX).contains(&settings.lease) {
            fault("lease", "not from 1s to 24h");
        }
        if !(1..=BATCH_MAX).contains(&settings.batch_max) {
            fault("batch_max", "not from 1 to 1000");
        }
        if !(1..=Semaphore::MAX_PERMITS).contains(&settings.concurrent) {
            fault("concurrent", "must be at least 1");
        }
        let Some(check) = check.filter(|_| faults.is_empty()) else {
            return Err(faults);
        };
        let desk = Arc::new(Desk {
            door: Door {
                name: context.name.clone(),
                check,
                allow: settings.allow,
                trusted_proxies: settings.trusted_proxies,
            },
            batch_max: settings.batch_max,
            mode: settings.mode,
            room: Semaphore::new(settings.concurrent),
            gate: Gate::default(),
        });
        ingress.desks.add(Arc::clone(&desk));
        Ok(Self { ingress, desk, lease: settings.lease })
    }
}

impl Drop for PullPickup {
    fn drop(&mut self) {
        self.ingress.desks.remove(&self.desk);
    }
}

#[async_trait]
impl Pickup for PullPickup {
    fn lease(&self) -> Duration {
        self.lease
    }

    async fn run(&self, mailbox: Arc<dyn Mailbox>, stop: Stop) -> Result<(), ReceiveError> {
        self.desk.gate.open(mailbox, &stop).await;
        Ok(())
    }
}
