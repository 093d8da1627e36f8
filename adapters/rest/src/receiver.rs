//! The receiving side: a route of the hub's listener for as long as it runs.

use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use axum::http::HeaderName;
use pabal_core::{ConfigError, Context, ReceiveError, Receiver, Sender, Stop};
use tokio::sync::Semaphore;
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use crate::{Ingress, auth::Check, request::is_reserved, settings::ReceiverSettings};

/// One source's way in.
#[derive(Debug)]
pub(crate) struct Route {
    pub context: Context,
    pub settings: ReceiverSettings,
    pub check: Check,
    pub keep_headers: Vec<HeaderName>,
    pub body_max: usize,
    pub room: Arc<Semaphore>,
    /// The inbox, while messages are taken.
    inbox: RwLock<Option<Arc<dyn Sender>>>,
    in_hand: TaskTracker,
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
        Ok(Self {
            room: Arc::new(Semaphore::new(settings.concurrent)),
            context,
            settings,
            check,
            keep_headers,
            body_max,
            inbox: RwLock::new(None),
            in_hand: TaskTracker::new(),
        })
    }

    /// The inbox, and a token that keeps the receiver from returning while it lives; `None` while
    /// nothing is taken.
    pub(crate) fn take(&self) -> Option<(Arc<dyn Sender>, TaskTrackerToken)> {
        // The token is made under the lock: closing cannot slip in between.
        let inbox = self.inbox.read().unwrap_or_else(PoisonError::into_inner);
        inbox.as_ref().map(|inbox| (Arc::clone(inbox), self.in_hand.token()))
    }

    /// Whether messages are taken.
    pub(crate) fn is_open(&self) -> bool {
        self.inbox.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn set(&self, inbox: Option<Arc<dyn Sender>>) {
        *self.inbox.write().unwrap_or_else(PoisonError::into_inner) = inbox;
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
        ingress.add(Arc::clone(&route));
        Ok(Self { ingress, route })
    }
}

impl Drop for RestReceiver {
    fn drop(&mut self) {
        self.ingress.remove(&self.route);
    }
}

/// Closes the route also when the future that ran it is dropped.
struct Open<'a>(&'a Route);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

#[async_trait]
impl Receiver for RestReceiver {
    fn exclusive(&self) -> bool {
        false
    }

    async fn run(&self, inbox: Arc<dyn Sender>, stop: Stop) -> Result<(), ReceiveError> {
        self.route.in_hand.reopen();
        self.route.set(Some(inbox));
        let open = Open(&self.route);
        stop.wait().await;
        drop(open);
        self.route.in_hand.close();
        self.route.in_hand.wait().await;
        Ok(())
    }
}
