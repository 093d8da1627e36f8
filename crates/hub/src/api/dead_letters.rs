//! What was set aside, and what becomes of it.

use std::{collections::HashSet, sync::Arc};

use axum::{
    Json, Router,
    extract::{
        Path, Query, State,
        rejection::{JsonRejection, QueryRejection},
    },
    routing::{get, post},
};
use pabal_core::{
    DeadKind, DeadLetter, DeadLetterGroup, DeadLetterQuery, DeadReason, EndpointName, MessageId,
    OperatorAct,
};
use pabal_engine::ReplayReport;
use serde::Deserialize;

use super::{
    Desk, Problem,
    messages::Open,
    problem::Answer,
    types::{Content, Discarded, Preview, Replayed, Selection, ToldDead},
};

/// Said of a dead letter that was replayed or discarded before, or never was.
pub(crate) const GONE: &str = "no longer there";

/// So many go in one transaction: the hub keeps sending in between.
const CHUNK: usize = 500;

pub(super) fn routes() -> Router<Arc<Desk>> {
    Router::new()
        .route("/dead-letters", get(list))
        .route("/dead-letters/groups", get(groups))
        .route("/dead-letters/replay", post(replay))
        .route("/dead-letters/discard", post(discard))
        .route("/dead-letters/{id}", get(show))
}

/// [`DeadLetterQuery`] as it stands in an address: the ids with commas between.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Params {
    ids: String,
    kind: Option<DeadKind>,
    endpoint: Option<EndpointName>,
    reason: Option<DeadReason>,
    cause: Option<String>,
    message: Option<MessageId>,
    after: i64,
    limit: u32,
}

impl TryFrom<Params> for DeadLetterQuery {
    type Error = Problem;
    fn try_from(params: Params) -> Result<Self, Problem> {
        let ids = params.ids.split(',').filter(|id| !id.is_empty());
        let ids: Result<Vec<i64>, _> = ids.map(|id| id.trim().parse()).collect();
        Ok(Self {
            ids: ids.map_err(|_| Problem::unusable("`ids` are numbers with commas between"))?,
            kind: params.kind,
            endpoint: params.endpoint,
            reason: params.reason,
            cause: params.cause,
            message: params.message,
            after: params.after,
            limit: params.limit,
        })
    }
}

type Asked = Result<Query<Params>, QueryRejection>;

fn query(params: Asked) -> Result<DeadLetterQuery, Problem> {
    let Query(params) = params.map_err(|error| Problem::unusable(error.body_text()))?;
    params.try_into()
}

async fn list(State(desk): State<Arc<Desk>>, params: Asked) -> Answer<Vec<DeadLetter>> {
    let query = query(params)?;
    let found = desk.store.dead_letters(&query).await?;
    if found.is_empty() {
        desk.nothing_of(query.endpoint.as_ref())?;
    }
    Ok(Json(found))
}

async fn groups(State(desk): State<Arc<Desk>>, params: Asked) -> Answer<Vec<DeadLetterGroup>> {
    let query = query(params)?;
    let found = desk.store.dead_letter_groups(&query).await?;
    if found.is_empty() {
        desk.nothing_of(query.endpoint.as_ref())?;
    }
    Ok(Json(found))
}

async fn show(
    State(desk): State<Arc<Desk>>,
    Path(id): Path<String>,
    open: Result<Query<Open>, QueryRejection>,
) -> Answer<ToldDead> {
    let Query(open) = open.map_err(|error| Problem::unusable(error.body_text()))?;
    let id: i64 = id
        .parse()
        .map_err(|_| Problem::unusable(format!("`{id}` is not the number of a dead letter")))?;
    let one = DeadLetterQuery { ids: vec![id], limit: 1, ..DeadLetterQuery::default() };
    let dead_letter = desk.store.dead_letters(&one).await?.pop().ok_or_else(|| {
        Problem::not_found(format!(
            "no dead letter {id}: it was replayed, discarded, or never there"
        ))
    })?;
    let content = if open.record(&desk, format!("dead letter {id}")).await? {
        desk.store.dead_message(id).await?.as_ref().map(Content::from)
    } else {
        None
    };
    Ok(Json(ToldDead { dead_letter, content }))
}

type Given = Result<Json<Selection>, JsonRejection>;

fn selection(given: Given) -> Result<Selection, Problem> {
    let Json(given) = given.map_err(|error| Problem::new(error.status(), error.body_text()))?;
    if given.ids.is_empty() == given.query.is_none() {
        return Err(Problem::unusable("say either `ids` or `query`; `\"query\": {}` is all"));
    }
    Ok(given)
}

impl Selection {
    fn query(&self) -> DeadLetterQuery {
        DeadLetterQuery { ids: self.ids.clone(), ..self.query.clone().unwrap_or_default() }
    }

    fn act(&self, verb: &str, subject: &[i64]) -> OperatorAct {
        let subject = match subject {
            [one] => format!("dead letter {one}"),
            [first, .., last] => format!("{} dead letters, {first} to {last}", subject.len()),
            [] => "no dead letter".to_owned(),
        };
        OperatorAct { by: self.by.clone(), verb: verb.to_owned(), subject, why: self.why.clone() }
    }

    async fn preview(&self, desk: &Desk) -> Result<Preview, Problem> {
        let query = self.query();
        let groups = desk.store.dead_letter_groups(&query).await?;
        if groups.is_empty() {
            desk.nothing_of(query.endpoint.as_ref())?;
        }
        let all: u64 = groups.iter().map(|group| group.count).sum();
        let count = self.canary.map_or(all, |canary| all.min(canary.into()));
        Ok(Preview { groups, count })
    }

    /// The next ones after this number, oldest first; `left` is what `canary` still allows.
    async fn next(&self, desk: &Desk, after: i64, left: usize) -> Result<Vec<i64>, Problem> {
        if left == 0 {
            return Ok(Vec::new());
        }
        let mut query = self.query();
        query.after = query.after.max(after);
        query.limit = u32::try_from(left.min(CHUNK)).unwrap_or(1);
        let found = desk.store.dead_letters(&query).await?;
        Ok(found.into_iter().map(|dead_letter| dead_letter.id).collect())
    }

    fn left(&self) -> usize {
        self.canary.map_or(usize::MAX, |canary| canary as usize)
    }
}

async fn replay(State(desk): State<Arc<Desk>>, given: Given) -> Answer<Replayed> {
    let given = selection(given)?;
    if given.dry_run {
        let preview = Some(given.preview(&desk).await?);
        return Ok(Json(Replayed { preview, report: None }));
    }
    let engine = desk.engine()?;
    let mut report = ReplayReport::default();
    let mut tried = HashSet::new();
    let (mut after, mut left) = (i64::MIN, given.left());
    loop {
        let ids = given.next(&desk, after, left).await?;
        let Some(last) = ids.last() else { break };
        (after, left) = (*last, left.saturating_sub(ids.len()));
        tried.extend(ids.iter().copied());
        let part = engine.replay(&ids, &given.act("replay", &ids)).await?;
        report.queued += part.queued;
        report.taken += part.taken;
        report.routed += part.routed;
        report.refused.extend(part.refused);
        engine.wake();
    }
    // Asked for by number and not there any more: somebody was faster.
    let gone = given.ids.iter().filter(|id| given.canary.is_none() && !tried.contains(id));
    report.refused.extend(gone.map(|id| (*id, GONE.to_owned())));
    Ok(Json(Replayed { preview: None, report: Some(report) }))
}

async fn discard(State(desk): State<Arc<Desk>>, given: Given) -> Answer<Discarded> {
    let given = selection(given)?;
    if given.dry_run {
        let preview = Some(given.preview(&desk).await?);
        return Ok(Json(Discarded { preview, discarded: Vec::new() }));
    }
    let engine = desk.engine()?;
    let mut discarded = Vec::new();
    let (mut after, mut left) = (i64::MIN, given.left());
    loop {
        let ids = given.next(&desk, after, left).await?;
        let Some(last) = ids.last() else { break };
        (after, left) = (*last, left.saturating_sub(ids.len()));
        let gone = desk.store.discard(&ids, &given.act("discard", &ids)).await?;
        discarded.extend(gone.into_iter().map(|dead_letter| dead_letter.id));
        engine.wake();
    }
    Ok(Json(Discarded { preview: None, discarded }))
}
