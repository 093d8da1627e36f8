//! The operators' interface: HTTP under `/api/v1`, `/metrics`, and the two health checks.
//!
//! The command line uses the same routes, over HTTP while a hub runs and in process while none does.
//! There are no cookies: every request proves itself with the token in its own header, so that a
//! page in an operator's browser can do nothing in their name.

mod dead_letters;
mod health;
mod links;
mod messages;
mod problem;
mod status;
#[cfg(test)]
mod tests;
pub(crate) mod types;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use pabal_core::{BODY_BYTES_MAX, Clock, EndpointName, Retention, Secret, Store};
use pabal_engine::Engine;
use tower_http::catch_panic::CatchPanicLayer;

pub(crate) use dead_letters::GONE;
pub(crate) use health::{Health, Ready, only_while_running, routes as health_routes};
pub(crate) use problem::Problem;

use crate::{metrics::Metrics, token};

/// A body in Base64 and what stands around it.
const REQUEST_BYTES_MAX: usize = BODY_BYTES_MAX / 3 * 4 + 256 * 1024;

/// What the handlers work with.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) hub: String,
    pub(crate) token: Secret,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) health: Health,
    pub(crate) ready: Ready,
    /// The hash of the configuration, ...
    pub(crate) plan: String,
    /// ... and what of it is needed here.
    pub(crate) lease: Duration,
    pub(crate) retention: Retention,
    /// All sources but the command line's own.
    pub(crate) sources: Vec<EndpointName>,
    pub(crate) destinations: Vec<EndpointName>,
    /// Set once it runs; the listener is up before.
    pub(crate) engine: OnceLock<Arc<Engine>>,
}

impl Desk {
    fn engine(&self) -> Result<&Arc<Engine>, Problem> {
        self.engine.get().ok_or_else(Problem::not_running)
    }

    /// Nothing was found of `endpoint`: if it does not exist, that is why. What the configuration no
    /// longer knows may still have something in the store.
    fn nothing_of(&self, endpoint: Option<&EndpointName>) -> Result<(), Problem> {
        let known = || self.sources.iter().chain(&self.destinations).map(EndpointName::as_str);
        match endpoint {
            Some(name)
                if !known().chain([crate::COMMAND_LINE]).any(|known| known == name.as_str()) =>
            {
                let known: Vec<&str> = known().chain([crate::COMMAND_LINE]).collect();
                Err(Problem::not_found(format!(
                    "there is no source or destination {name}; there are: {}",
                    known.join(", ")
                )))
            }
            _ => Ok(()),
        }
    }
}

/// Everything the operators' listener serves.
pub(crate) fn router(desk: Arc<Desk>) -> Router {
    let api = Router::new()
        .merge(status::routes())
        .merge(messages::routes())
        .merge(dead_letters::routes())
        .merge(links::routes())
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX));
    Router::new()
        .nest("/api/v1", api)
        .merge(status::metrics_route())
        .fallback(async || Problem::not_found("nothing is served under this path"))
        .layer(middleware::from_fn_with_state(desk.clone(), require_token))
        .merge(health_routes(desk.ready.clone()))
        .layer(CatchPanicLayer::new())
        .with_state(desk)
}

/// Only who knows the token gets an answer, also on whether something exists.
async fn require_token(State(desk): State<Arc<Desk>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION);
    if given.is_some_and(|given| token::matches(&desk.token, given.as_bytes())) {
        return next.run(request).await;
    }
    let problem =
        Problem::new(StatusCode::UNAUTHORIZED, "send the admin token as `Authorization: Bearer …`");
    ([(header::WWW_AUTHENTICATE, "Bearer")], problem).into_response()
}

pub(crate) fn to_base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

pub(crate) fn from_base64(text: &str) -> Result<Vec<u8>, base64::DecodeError> {
    BASE64_STANDARD.decode(text)
}
