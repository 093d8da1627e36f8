//! `/healthz`: the process answers. `/readyz`: it takes and sends.

use std::sync::{Arc, Mutex};

use axum::{
    Router,
    extract::{Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};

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

/// Both, open to everyone who reaches the listener.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>(health: Health) -> Router<S> {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .with_state(health)
}

async fn ready(State(health): State<Health>) -> (StatusCode, &'static str) {
    match health.phase() {
        Phase::Running => (StatusCode::OK, "ready\n"),
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
