//! The live routes, and the handler behind `POST /in/{partner}/{source}`.

use std::{fmt, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Path, Request, State, rejection::PathRejection},
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
    routing::post,
};
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use pabal_core::{Bytes, Message, Reason, Receipt, SendError, Sender, Verdict};

use crate::{
    incoming::Form,
    problem::Problem,
    pull::{Desk, serving},
    receiver::Route,
    routes::Routes,
};

/// The names in a client certificate that the listener has checked: common name and alternative
/// names. The listener inserts it as an extension of every request of that connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerCertificate {
    /// In no particular order.
    pub names: Vec<String>,
}

/// What partners call: the routes of all sources that run, and of all destinations that are fetched
/// from. Cheap to clone; all clones are one.
///
/// Each is known from when its receiver or pickup is built until it is dropped. While it does not run,
/// callers are asked to come back (503), so that a pause or reload is no reason for a partner to
/// give a message up; what nobody knows is a 404.
#[derive(Clone)]
pub struct Ingress {
    pub(crate) sources: Arc<Routes<Route>>,
    pub(crate) desks: Arc<Routes<Desk>>,
    /// What all bodies in hand may take, in units of [`MEMORY_UNIT`].
    pub(crate) memory: Arc<Semaphore>,
}

/// All bodies in hand together, whatever their sources, in bytes; more callers come back later.
const MEMORY_BYTES_MAX: usize = 256 * 1024 * 1024;
const MEMORY_UNIT: usize = 1024;

impl Default for Ingress {
    fn default() -> Self {
        let memory = Arc::new(Semaphore::new(MEMORY_BYTES_MAX / MEMORY_UNIT));
        Self { sources: Arc::default(), desks: Arc::default(), memory }
    }
}

impl fmt::Debug for Ingress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sources, desks, .. } = self;
        f.debug_struct("Ingress").field("sources", sources).field("desks", desks).finish()
    }
}

impl Ingress {
    /// One without routes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Serves `POST /in/{partner}/{source}`, and for destinations `GET …/pull`, `POST …/ack` and
    /// `POST …/nack`; every refusal under `/in` is a problem document.
    ///
    /// The listener should insert [`axum::extract::ConnectInfo`] with the peer's [`SocketAddr`]
    /// (without it a source with `allow` takes nobody) and, with TLS, [`PeerCertificate`]. It must
    /// set no body limit and no time limit of its own below this path.
    pub fn router(&self) -> Router {
        let inner = Router::new()
            .route("/{partner}/{source}", post(hand_over).fallback(not_allowed))
            .merge(serving::routes())
            .fallback(async || Problem::not_found().response())
            .with_state(self.clone());
        Router::new().nest("/in", inner)
    }
}

async fn not_allowed() -> Response<Body> {
    let title = "Messages are handed over by POST";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", title)
        .header(header::ALLOW, HeaderValue::from_static("POST"))
        .response()
}

async fn hand_over(
    State(ingress): State<Ingress>,
    path: Result<Path<(String, String)>, PathRejection>,
    request: Request,
) -> Response<Body> {
    // Whether the partner or only the source is unknown is nobody's business.
    let route =
        path.ok().and_then(|Path((partner, source))| ingress.sources.find(&partner, &source));
    let result = match route {
        Some(route) => route.hand_over(request, &ingress.memory).await,
        None => Err(Problem::not_found()),
    };
    result.unwrap_or_else(Problem::response)
}

impl Route {
    async fn hand_over(
        &self,
        request: Request,
        memory: &Arc<Semaphore>,
    ) -> Result<Response<Body>, Problem> {
        let (parts, body) = request.into_parts();
        let headers = &parts.headers;
        self.door.admit(&parts)?;
        // Held to the end: it keeps the receiver from returning.
        let Some((inbox, _in_hand)) = self.gate.take() else {
            return Err(Problem::later("not-open", 1).detail("this source takes nothing now"));
        };
        let Ok(_room) = self.room.try_acquire() else {
            return Err(Problem::later("busy", 1).detail("too many hand-overs at the same time"));
        };
        let clock = &*self.context.clock;
        let (body, _memory) = clock
            .timeout(self.settings.timeout, read(body, headers, self.body_max, memory))
            .await
            .unwrap_or_else(|| {
                let title = "The body did not arrive in time";
                Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", title))
            })?;
        let form = Form {
            source: &self.context.name,
            check: &self.door.check,
            message_type: self.settings.message_type.as_deref(),
            keep_headers: &self.keep_headers,
        };
        let message = form.read(headers, body, clock.now()).inspect_err(|problem| {
            if problem.status() == StatusCode::UNAUTHORIZED {
                self.door.turned_away(&parts, problem.why());
            }
        })?;
        self.answer(deliver(&*inbox, message).await)
    }

    fn answer(&self, verdict: Verdict) -> Result<Response<Body>, Problem> {
        match verdict {
            Ok(receipt) => Ok(taken(&receipt)),
            Err(SendError::Permanent { reason, cause }) => {
                let status = StatusCode::from_u16(reason.http_status())
                    .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                let problem = Problem::new(status, reason.to_string(), "The message is not taken");
                // What the hub stumbled over is for its own log.
                Err(match reason {
                    Reason::Panic => problem,
                    _ => problem.detail(cause.to_string()),
                })
            }
            Err(
                error @ (SendError::Transient { retry_after, .. }
                | SendError::Unreachable { retry_after, .. }),
            ) => {
                tracing::debug!(source = %self.context.name, %error, "asked to come back");
                Err(Problem::later("unavailable", retry_after.map_or(1, seconds_up)))
            }
            Err(SendError::NotSent) => Err(Problem::later("unavailable", 1)),
        }
    }
}

async fn deliver(inbox: &dyn Sender, message: Message) -> Verdict {
    let verdicts = inbox.send(std::slice::from_ref(&message)).await;
    let mut verdicts = verdicts.into_iter();
    match (verdicts.next(), verdicts.next()) {
        (Some(verdict), None) => verdict,
        // Silence never means success.
        _ => Err(SendError::transient("the inbox gave no verdict")),
    }
}

pub(crate) fn seconds_up(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// 202 for a message that is stored now, 200 for one that was here already.
fn taken(receipt: &Receipt) -> Response<Body> {
    let mut document = serde_json::Map::new();
    if let Some(id) = &receipt.remote_id {
        document.insert("id".into(), id.as_str().into());
    }
    let mut status = StatusCode::ACCEPTED;
    if receipt.duplicate {
        document.insert("duplicate".into(), true.into());
        status = StatusCode::OK;
    }
    let mut response = Response::new(Body::from(serde_json::Value::from(document).to_string()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// Reads a body as it comes, and stops before it holds more than `max` bytes, or all bodies together
/// more than there is room for. The room is taken until the permit is dropped.
pub(crate) async fn read(
    mut body: Body,
    headers: &HeaderMap,
    max: usize,
    memory: &Arc<Semaphore>,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Problem> {
    let too_large = || {
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The body is too large")
            .detail(format!("at most {max} bytes are taken"))
    };
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let announced = announced.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
    if announced > max as u64 {
        return Err(too_large());
    }
    let mut all = Vec::new();
    let mut taken: Option<OwnedSemaphorePermit> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::unreadable("the body broke off"))?;
        if let Ok(data) = frame.into_data() {
            if data.len() > max - all.len() {
                return Err(too_large());
            }
            all.extend_from_slice(&data);
            // Never waits: all of them waiting for the rest of their room would wait for ever.
            let units = all.len().div_ceil(MEMORY_UNIT);
            let missing = units - taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            let more = u32::try_from(missing)
                .ok()
                .and_then(|missing| Arc::clone(memory).try_acquire_many_owned(missing).ok());
            let Some(more) = more else {
                return Err(Problem::later("busy", 1).detail("too much is in hand at the moment"));
            };
            match &mut taken {
                Some(taken) => taken.merge(more),
                None => taken = Some(more),
            }
        }
    }
    Ok((all.into(), taken))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bodies_in_hand_have_a_bound_together_and_give_their_room_back() {
        let memory = Arc::new(Semaphore::new(10));
        let headers = HeaderMap::new();
        let body = || Body::from(vec![0; 6 * MEMORY_UNIT]);
        let first = read(body(), &headers, usize::MAX, &memory).await.unwrap();
        let second = read(body(), &headers, usize::MAX, &memory).await.unwrap_err();
        assert_eq!(second.response().status(), StatusCode::SERVICE_UNAVAILABLE);
        drop(first);
        assert!(read(body(), &headers, usize::MAX, &memory).await.is_ok());
        assert_eq!(memory.available_permits(), 10);
    }
}
