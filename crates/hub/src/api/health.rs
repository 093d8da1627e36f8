//! `/healthz`: the process answers. `/readyz`: it takes and sends.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use pabal_core::{Clock, Store, Vitals};

use super::{Problem, types::Phase};

/// Whether the hub runs, for all who ask.
#[derive(Debug, Clone)]
pub(crate) struct Health(Arc<Mutex<Phase>>);

impl Health {
    pub(crate) fn new(phase: Phase) -> Self {
        Self(Arc::new(Mutex::new(phase)))
    }

    pub(crate) fn phase(&self) -> Phase {
        self.0.lock().map_or(Phase::Stopping, |phase| *phase)
    }

    pub(crate) fn set(&self, phase: Phase) {
        if let Ok(mut held) = self.0.lock() {
            *held = phase;
        }
    }
}

/// However often it is asked, the store is looked at so often.
const LOOK: Duration = Duration::from_secs(5);
/// A store that does not answer for so long does not answer.
const SILENCE: Duration = Duration::from_secs(2);

/// How the store was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Fine,
    /// There is room for what arrives for so many days ahead, which is none.
    NoRoom(i64),
    Silent,
}

/// Whether partners and load balancers should come here.
#[derive(Debug, Clone)]
pub(crate) struct Ready {
    health: Health,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    /// What was found last, and when. Held while it is looked, so that all who ask share the look.
    last: Arc<tokio::sync::Mutex<Option<(Duration, Found)>>>,
}

impl Ready {
    pub(crate) fn new(health: Health, store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self { health, store, clock, last: Arc::default() }
    }

    async fn look(&self) -> Found {
        // One that is this process's own is no better elsewhere.
        if !self.store.shared() {
            return Found::Fine;
        }
        let mut last = self.last.lock().await;
        if let Some((at, found)) = *last
            && self.clock.elapsed().saturating_sub(at) < LOOK
        {
            return found;
        }
        // Read as the engine reads; vitals may have to wait behind operators' long questions.
        let answer = self.clock.timeout(SILENCE, self.store.requests(i64::MAX)).await;
        let found = match answer {
            Some(Ok(_)) => match self.clock.timeout(SILENCE, self.store.vitals()).await {
                Some(Ok(Vitals { days_ahead: Some(days @ ..1), .. })) => Found::NoRoom(days),
                _ => Found::Fine,
            },
            Some(Err(_)) | None => Found::Silent,
        };
        *last = Some((self.clock.elapsed(), found));
        found
    }
}

/// Both, open to everyone who reaches the listener.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>(ready: Ready) -> Router<S> {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(is_ready))
        .with_state(ready)
}

async fn is_ready(State(ready): State<Ready>) -> (StatusCode, &'static str) {
    match ready.health.phase() {
        Phase::Running => match ready.look().await {
            Found::Fine => (StatusCode::OK, "ready\n"),
            // It still takes: what has no partition gets one on arrival, if that can be made at all.
            Found::NoRoom(0) => {
                (StatusCode::OK, "ready, but no partition for tomorrow: see the log\n")
            }
            Found::NoRoom(_) => {
                (StatusCode::OK, "ready, but no partition for today: see the log\n")
            }
            Found::Silent => (StatusCode::SERVICE_UNAVAILABLE, "the store does not answer\n"),
        },
        Phase::Starting => (StatusCode::SERVICE_UNAVAILABLE, "starting\n"),
        Phase::Stopping | Phase::NotRunning => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n"),
    }
}

/// Asks callers to come back while the hub starts or stops. Its sources are not known then, and a
/// partner must not take that for an address that does not exist.
pub(crate) fn only_while_running(router: Router, health: Health) -> Router {
    router.layer(middleware::from_fn_with_state(health, pass_while_running))
}

async fn pass_while_running(
    State(health): State<Health>,
    request: Request,
    next: Next,
) -> Response {
    match health.phase() {
        Phase::Running => next.run(request).await,
        Phase::Starting | Phase::Stopping | Phase::NotRunning => {
            Problem::not_running().into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn a_hub_that_starts_or_stops_asks_partners_to_come_back() {
        let health = Health::new(Phase::Starting);
        // As before the sources are built: nothing is known yet.
        let router =
            only_while_running(pabal_adapter_rest::Ingress::new().router(), health.clone());
        let ask = async || {
            let request = Request::post("/in/town/orders").body(Body::empty()).unwrap();
            let answer = router.clone().oneshot(request).await.unwrap();
            (answer.status().as_u16(), answer.headers().contains_key("retry-after"))
        };
        assert_eq!(ask().await, (503, true));
        health.set(Phase::Running);
        assert_eq!(ask().await, (404, false));
        health.set(Phase::Stopping);
        assert_eq!(ask().await, (503, true));
    }
}
