//! Where is message 2026-001234? And: hand one over, route one again.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{
        Path, Query, State,
        rejection::{JsonRejection, QueryRejection},
    },
    http::StatusCode,
    routing::{get, post},
};
use pabal_core::{EndpointName, Message, MessageId, MessageQuery, MessageSummary, OperatorAct};
use serde::Deserialize;

use super::{
    Desk, Problem, from_base64,
    problem::Answer,
    types::{Content, HandOver, Reroute, Rerouted, Taken, Told},
};
use crate::COMMAND_LINE;

pub(super) fn routes() -> Router<Arc<Desk>> {
    Router::new()
        .route("/messages", get(find).post(hand_over))
        .route("/messages/reroute", post(reroute))
        .route("/messages/{id}", get(show))
}

async fn find(
    State(desk): State<Arc<Desk>>,
    query: Result<Query<MessageQuery>, QueryRejection>,
) -> Answer<Vec<MessageSummary>> {
    let Query(query) = query.map_err(|error| Problem::unusable(error.body_text()))?;
    let found = desk.store.messages(&query).await?;
    if found.is_empty() {
        desk.nothing_of(query.source.as_ref())?;
    }
    Ok(Json(found))
}

/// Whether the content is wanted, and by whom.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Open {
    body: bool,
    by: Option<String>,
}

impl Open {
    /// Records that a body is opened, before it is. True: it may be shown.
    pub(super) async fn record(&self, desk: &Desk, subject: String) -> Result<bool, Problem> {
        if !self.body {
            return Ok(false);
        }
        let by = self.by.clone().filter(|by| !by.is_empty()).ok_or_else(|| {
            Problem::unusable("opening a body is recorded: say who does it with `by`")
        })?;
        let act = OperatorAct { by, verb: "open-body".to_owned(), subject, why: None };
        desk.store.note(&act).await?;
        Ok(true)
    }
}

async fn show(
    State(desk): State<Arc<Desk>>,
    Path(id): Path<String>,
    open: Result<Query<Open>, QueryRejection>,
) -> Answer<Told> {
    let Query(open) = open.map_err(|error| Problem::unusable(error.body_text()))?;
    let id: MessageId =
        id.parse().map_err(|_| Problem::unusable(format!("`{id}` is not a message id")))?;
    let story = desk.store.message(id).await?.ok_or_else(|| {
        Problem::not_found(format!(
            "no message {id}; `pabal messages find` also takes an origin's id or a correlation id"
        ))
    })?;
    let content = if open.record(&desk, id.to_string()).await? {
        desk.store.message_content(id).await?.as_ref().map(Content::from)
    } else {
        None
    };
    Ok(Json(Told { story, content }))
}

async fn hand_over(
    State(desk): State<Arc<Desk>>,
    body: Result<Json<HandOver>, JsonRejection>,
) -> Result<(StatusCode, Json<Taken>), Problem> {
    let Json(given) = body.map_err(|error| Problem::new(error.status(), error.body_text()))?;
    let source: EndpointName = COMMAND_LINE
        .parse()
        .map_err(|error: pabal_core::NameError| Problem::unusable(error.to_string()))?;
    if let Some(to) = &given.to
        && !desk.destinations.contains(to)
    {
        return Err(unknown_destination(&desk, to));
    }
    let bytes = from_base64(&given.body)
        .map_err(|error| Problem::unusable(format!("`body` is not Base64: {error}")))?;
    let mut message = Message::new(source.clone(), given.message_type, bytes);
    message.origin.id = given.id;
    message.key = given.key;
    message.correlation = given.correlation;
    message.causation = given.causation;
    message.content_type = given.content_type;
    message.destination = given.to.map(Into::into);
    message.headers = given.headers.into_iter().collect();
    let inbox = desk.engine()?.inbox(&source).ok_or_else(Problem::not_running)?;
    let receipt = match inbox.send(&[message]).await.pop() {
        Some(verdict) => verdict?,
        None => return Err(Problem::not_running()),
    };
    let status = if receipt.duplicate { StatusCode::OK } else { StatusCode::ACCEPTED };
    let taken = Taken { id: receipt.remote_id.unwrap_or_default(), duplicate: receipt.duplicate };
    Ok((status, Json(taken)))
}

fn unknown_destination(desk: &Desk, to: &EndpointName) -> Problem {
    let known: Vec<&str> = desk.destinations.iter().map(EndpointName::as_str).collect();
    Problem::unusable(format!(
        "there is no destination {to}; the destinations are: {}",
        known.join(", ")
    ))
}

async fn reroute(
    State(desk): State<Arc<Desk>>,
    body: Result<Json<Reroute>, JsonRejection>,
) -> Answer<Rerouted> {
    let Json(given) = body.map_err(|error| Problem::new(error.status(), error.body_text()))?;
    if given.ids.is_empty() != given.all {
        return Err(Problem::unusable("say either `ids` or `all`"));
    }
    let act = OperatorAct {
        by: given.by,
        verb: "reroute".to_owned(),
        subject: match given.ids.as_slice() {
            [] => "all unrouted messages".to_owned(),
            [one] => one.to_string(),
            [first, rest @ ..] => format!("{first} and {} more", rest.len()),
        },
        why: given.why,
    };
    let ids = (!given.all).then_some(given.ids.as_slice());
    let engine = desk.engine()?;
    let routed = engine.reroute(ids, &act).await?;
    engine.wake();
    Ok(Json(Rerouted { routed }))
}
