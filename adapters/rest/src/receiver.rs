//! The receiving side: a route of the hub's listener for as long as it runs.

use std::sync::Arc;

use async_trait::async_trait;
use axum::http::HeaderName;
use pabal_core::{ConfigError, Context, EndpointName, ReceiveError, Receiver, Sender, Stop};
use tokio::sync::Semaphore;

use crate::{
    Ingress,
    auth::Check,
    door::Door,
    request::is_reserved,
    routes::{Gate, Named},
    settings::ReceiverSettings,
};

/// One source's way in.
#[derive(Debug)]
pub(crate) struct Route {
    pub context: Context,
    pub settings: ReceiverSettings,
    pub door: Door,
    pub keep_headers: Vec<HeaderName>,
    pub body_max: usize,
    pub room: Arc<Semaphore>,
    /// The inbox, while messages are taken.
    pub gate: Gate<dyn Sender>,
}

impl Named for Route {
    fn name(&self) -> &EndpointName {
        &self.context.name
    }

    fn is_open(&self) -> bool {
        self.gate.is_open()
    }
}

impl Route {
    fn new(context: Context) -> Result<Self, Vec<ConfigError>> {
        let settings: ReceiverSettings = context.settings.parse()?;
        let mut faults = Vec::new();
        let check =
            Check::new(&settings.auth, &*context.secrets).map_err(|fault| faults.push(fault)).ok();
        let mut keep_headers = Vec::new();
        for (index, name) in settings.keep_headers.iter().enumerate() {
            match HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes()) {
                Ok(name)
                    if !is_reserved(name.as_str())
                        && check.as_ref().and_then(Check::header) != Some(&name) =>
                {
                    keep_headers.push(name);
                }
                _ => faults.push(ConfigError::new(
                    format!("keep_headers.{index}"),
                    "not the name of a header that can be kept",
                )),
            }
        }
        let body_max = settings.body_max.map_or(context.body_bytes_max, |size| {
            usize::try_from(size.as_u64()).unwrap_or(usize::MAX)
        });
        if body_max > context.body_bytes_max {
            faults.push(
                ConfigError::new("body_max", "more than this source may take")
                    .help("raise the source's own limit"),
            );
        }
        if !(1..=Semaphore::MAX_PERMITS).contains(&settings.concurrent) {
            faults.push(ConfigError::new("concurrent", "must be at least 1"));
        }
        if settings.timeout.is_zero() {
            faults.push(ConfigError::new("timeout", "must be more than nothing"));
        }
        let Some(check) = check.filter(|_| faults.is_empty()) else {
            return Err(faults);
        };
        let door = Door {
            name: context.name.clone(),
            check,
            allow: settings.allow.clone(),
            trusted_proxies: settings.trusted_proxies.clone(),
        };
        Ok(Self {
            room: Arc::new(Semaphore::new(settings.concurrent)),
            context,
            settings,
            door,
            keep_headers,
            body_max,
            gate: Gate::default(),
        })
    }
}

/// Receives for one source.
#[derive(Debug)]
pub(crate) struct RestReceiver {
    ingress: Ingress,
    route: Arc<Route>,
}

impl RestReceiver {
    /// Checks the settings and makes the route known: until it runs, it asks callers to come back.
    pub(crate) fn new(ingress: Ingress, context: Context) -> Result<Self, Vec<ConfigError>> {
        let route = Arc::new(Route::new(context)?);
        ingress.sources.add(Arc::clone(&route));
        Ok(Self { ingress, route })
    }
}

impl Drop for RestReceiver {
    fn drop(&mut self) {
        self.ingress.sources.remove(&self.route);
    }
}

#[async_trait]
impl Receiver for RestReceiver {
    fn exclusive(&self) -> bool {
        false
    }

    async fn run(&self, inbox: Arc<dyn Sender>, stop: Stop) -> Result<(), ReceiveError> {
        self.route.gate.open(inbox, &stop).await;
        Ok(())
    }
}
