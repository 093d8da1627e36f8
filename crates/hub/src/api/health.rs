//! `/healthz`: the process answers. `/readyz`: it takes and sends.

use std::sync::{Arc, Mutex};

use axum::{Router, extract::State, http::StatusCode, routing::get};

use super::types::Phase;

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
