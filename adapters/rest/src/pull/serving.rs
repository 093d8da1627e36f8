//! The handlers behind `/in/{partner}/{destination}/pull`, `…/ack` and `…/nack`.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Path, Request, State, rejection::PathRejection},
    http::{HeaderValue, Method, Response, StatusCode, header, request::Parts},
    routing::{get, post},
};
use pabal_core::{Handout, Mailbox, PullError, Refusal, Settled};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::sync::Semaphore;
use url::form_urlencoded;

use super::{Desk, PullMode, forms};
use crate::{Ingress, ingress::read, problem::Problem};

/// Nobody waits longer than this for a message.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Nor is a refused one put off for longer.
const DELAY_MAX: Duration = Duration::from_secs(30 * 86_400);
/// Tokens of one call, and the bytes they come in.
const TOKENS_MAX: usize = 1000;
const BODY_BYTES_MAX: usize = 256 * 1024;
/// A paused destination is asked again after so many seconds.
const PAUSED: u64 = 30;

/// To be merged below `/in`.
pub(crate) fn routes() -> Router<Ingress> {
    Router::new()
        .route("/{partner}/{destination}/pull", get(pull).fallback(async || not_allowed("GET")))
        .route("/{partner}/{destination}/ack", post(ack).fallback(async || not_allowed("POST")))
        .route("/{partner}/{destination}/nack", post(nack).fallback(async || not_allowed("POST")))
}

type Names = Result<Path<(String, String)>, PathRejection>;
type Answer = Result<Response<Body>, Problem>;

fn not_allowed(allowed: &'static str) -> Response<Body> {
    let title = "Messages are fetched by GET, and settled by POST";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", title)
        .header(header::ALLOW, HeaderValue::from_static(allowed))
        .response()
}

async fn pull(State(ingress): State<Ingress>, names: Names, request: Request) -> Response<Body> {
    // It would take messages for nobody.
    if request.method() == Method::HEAD {
        return not_allowed("GET");
    }
    let answer = match desk(&ingress, names) {
        Ok(desk) => desk.pull(&request.into_parts().0).await,
        Err(problem) => Err(problem),
    };
    answer.unwrap_or_else(Problem::response)
}

async fn ack(State(ingress): State<Ingress>, names: Names, request: Request) -> Response<Body> {
    let answer = match desk(&ingress, names) {
        Ok(desk) => desk.ack(request, &ingress.memory).await,
        Err(problem) => Err(problem),
    };
    answer.unwrap_or_else(Problem::response)
}

async fn nack(State(ingress): State<Ingress>, names: Names, request: Request) -> Response<Body> {
    let answer = match desk(&ingress, names) {
        Ok(desk) => desk.nack(request, &ingress.memory).await,
        Err(problem) => Err(problem),
    };
    answer.unwrap_or_else(Problem::response)
}

/// Whether the partner or only the destination is unknown is nobody's business.
fn desk(ingress: &Ingress, names: Names) -> Result<Arc<Desk>, Problem> {
    let found = names.ok().and_then(|Path((partner, name))| ingress.desks.find(&partner, &name));
    found.ok_or_else(Problem::not_found)
}

/// `{"tokens": […]}`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Acked {
    tokens: Vec<String>,
}

/// `{"tokens": […], "delay": "30s", "reason": "…", "permanent": false}`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nacked {
    tokens: Vec<String>,
    #[serde(default, with = "humantime_serde")]
    delay: Option<Duration>,
    reason: Option<String>,
    #[serde(default)]
    permanent: bool,
}

impl Desk {
    async fn pull(&self, parts: &Parts) -> Answer {
        self.door.admit(parts)?;
        let (max, wait) = self.wishes(parts.uri.query().unwrap_or_default())?;
        let Some((mailbox, _in_hand)) = self.gate.take() else { return Err(closed()) };
        let Ok(_room) = self.room.try_acquire() else {
            return Err(Problem::wait("busy", 1).detail("too many calls at the same time"));
        };
        let mut wait = wait;
        loop {
            let mut pulled = mailbox.pull(max, wait).await.map_err(refused)?;
            if pulled.is_empty() {
                return Ok(nothing());
            }
            if self.mode == PullMode::Batched {
                return Ok(forms::batched(pulled));
            }
            let Some(one) = pulled.pop() else { return Ok(nothing()) };
            let handout = one.handout;
            match forms::binary(one) {
                Ok(response) => return Ok(response),
                Err(error) => {
                    // It would be in everybody's way for ever.
                    let reason = error.cause().map(ToString::to_string);
                    let refusal = Refusal { reason, permanent: true, delay: None };
                    mailbox.nack(&[handout], &refusal).await.map_err(refused)?;
                    wait = Duration::ZERO;
                }
            }
        }
    }

    /// `max` and `wait` of a query.
    fn wishes(&self, query: &str) -> Result<(usize, Duration), Problem> {
        let (mut max, mut wait) = (None, None);
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let place = match &*name {
                "max" => &mut max,
                "wait" => &mut wait,
                _ => return Err(Problem::unreadable("only `max` and `wait` can be asked for")),
            };
            let number = value
                .parse::<u32>()
                .map_err(|_| Problem::unreadable(format!("`{name}` is not a whole number")))?;
            if place.replace(number).is_some() {
                return Err(Problem::unreadable(format!("`{name}` is given more than once")));
            }
        }
        if max == Some(0) {
            return Err(Problem::unreadable("`max` is at least 1"));
        }
        let most = if self.mode == PullMode::Binary { 1 } else { self.batch_max };
        let max = max.map_or(most, |max| usize::try_from(max).unwrap_or(most).min(most));
        let wait = Duration::from_secs(wait.unwrap_or(0).into());
        Ok((max, wait.min(WAIT_MAX)))
    }

    async fn ack(&self, request: Request, memory: &Arc<Semaphore>) -> Answer {
        let (mailbox, Acked { tokens }, _in_hand) = self.taken(request, memory).await?;
        let known = handouts(&tokens)?;
        let settled = mailbox.ack(&known.iter().flatten().copied().collect::<Vec<_>>()).await;
        Ok(results(&tokens, &known, settled.map_err(refused)?))
    }

    async fn nack(&self, request: Request, memory: &Arc<Semaphore>) -> Answer {
        let (mailbox, nacked, _in_hand) = self.taken::<Nacked>(request, memory).await?;
        let Nacked { tokens, delay, reason, permanent } = nacked;
        if permanent && delay.is_some() {
            return Err(invalid("`permanent` and `delay` exclude each other"));
        }
        if delay.is_some_and(|delay| delay > DELAY_MAX) {
            return Err(invalid("`delay` is at most 30 days"));
        }
        if reason.as_ref().is_some_and(|reason| reason.contains('\0')) {
            return Err(invalid("`reason` holds a zero character"));
        }
        let known = handouts(&tokens)?;
        let these: Vec<_> = known.iter().flatten().copied().collect();
        let settled = mailbox.nack(&these, &Refusal { delay, reason, permanent }).await;
        Ok(results(&tokens, &known, settled.map_err(refused)?))
    }

    /// Lets a caller in and reads what it says.
    async fn taken<T: DeserializeOwned>(
        &self,
        request: Request,
        memory: &Arc<Semaphore>,
    ) -> Result<(Arc<dyn Mailbox>, T, impl Drop + use<T>), Problem> {
        let (parts, body) = request.into_parts();
        self.door.admit(&parts)?;
        let Some((mailbox, in_hand)) = self.gate.take() else { return Err(closed()) };
        let (body, _memory) = read(body, &parts.headers, BODY_BYTES_MAX, memory).await?;
        let said = serde_json::from_slice(&body).map_err(|error| {
            Problem::unreadable(pabal_core::shorten(&error.to_string(), 200).into_owned())
        })?;
        Ok((mailbox, said, in_hand))
    }
}

fn handouts(tokens: &[String]) -> Result<Vec<Option<Handout>>, Problem> {
    if tokens.len() > TOKENS_MAX {
        return Err(invalid(&format!("at most {TOKENS_MAX} tokens are taken in one call")));
    }
    Ok(tokens.iter().map(|token| forms::handout(token)).collect())
}

/// One result a token, in their order.
fn results(tokens: &[String], known: &[Option<Handout>], settled: Vec<Settled>) -> Response<Body> {
    let mut settled = settled.into_iter();
    let results = tokens.iter().zip(known).map(|(token, known)| {
        let result = match known.and_then(|_| settled.next()) {
            Some(Settled::Done) => "done",
            Some(Settled::NotThere) => "gone",
            None => "unreadable",
        };
        serde_json::json!({ "token": token, "result": result })
    });
    let document = serde_json::json!({ "results": results.collect::<Vec<_>>() });
    let mut response = Response::new(Body::from(document.to_string()));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

fn nothing() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let no_store = HeaderValue::from_static("no-store");
    response.headers_mut().insert(header::CACHE_CONTROL, no_store);
    response
}

fn invalid(detail: &str) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", "This is not done").detail(detail)
}

fn closed() -> Problem {
    Problem::wait("not-open", 1).detail("this destination hands out nothing now")
}

fn refused(error: PullError) -> Problem {
    match error {
        PullError::Paused => Problem::wait("paused", PAUSED).detail("this destination is paused"),
        // What the hub stumbled over is for its own log.
        PullError::Unavailable(why) => {
            tracing::warn!(why, "a partner that fetches was asked to come back");
            Problem::wait("unavailable", 1)
        }
    }
}
