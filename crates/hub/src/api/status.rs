//! Where everything stands: for people, and for Prometheus.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{State, rejection::JsonRejection},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use pabal_core::{EndpointCounts, EndpointName, Housekeeping, LinkState, OperatorAct};

use super::{
    Desk, Problem,
    problem::Answer,
    types::{NodeStatus, OutStatus, Prune, Pruned, SourceStatus, Status},
};
use crate::housekeeping;

pub(super) fn routes() -> Router<Arc<Desk>> {
    Router::new().route("/status", get(status)).route("/prune", post(prune))
}

pub(super) fn metrics_route() -> Router<Arc<Desk>> {
    Router::new().route("/metrics", get(metrics))
}

/// A prune answers after so long at the latest, and is asked again if there is more.
const PRUNE_LIMIT: Duration = Duration::from_secs(20);

async fn status(State(desk): State<Arc<Desk>>) -> Answer<Status> {
    let engine = desk.engine()?;
    let layouts = if desk.store.shared() { desk.store.layouts().await? } else { Vec::new() };
    let counts = desk.store.counts().await?;
    let links = desk.store.link_states().await?;
    let here = engine.status();
    let count = |name: &EndpointName| counts.iter().find(|count| count.endpoint == *name);
    let link = |name: &EndpointName| links.iter().find(|link| link.endpoint == *name);
    // The command line, and sources that are no longer configured, once something was set aside.
    let set_aside = counts
        .iter()
        .filter(|count| count.dead > 0 && count.waiting == 0)
        .map(|count| &count.endpoint)
        .filter(|name| !desk.sources.contains(name) && !desk.destinations.contains(name));
    let sources = desk
        .sources
        .iter()
        .chain(set_aside)
        .map(|source| SourceStatus {
            source: source.clone(),
            paused: link(source).and_then(|link| link.paused.clone()),
            dead: count(source).map_or(0, |count| count.dead),
        })
        .collect();
    // What waits for a destination that is no longer configured must be seen too.
    let forgotten = counts
        .iter()
        .filter(|count| count.waiting > 0 && !desk.destinations.contains(&count.endpoint))
        .map(|count| &count.endpoint);
    let destinations = desk
        .destinations
        .iter()
        .chain(forgotten)
        .map(|destination| {
            let mut now = here.iter().find(|status| status.destination == *destination).cloned();
            let layout = layouts.iter().find(|layout| layout.destination == *destination);
            if let (Some(now), Some(layout)) = (&mut now, layout)
                && now.lanes_of == 0
            {
                // A node that holds none of them does not know of how many.
                now.lanes_of = layout.lanes;
            }
            out_status(destination, now, count(destination), link(destination))
        })
        .collect();
    Ok(Json(Status {
        hub: desk.hub.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        state: desk.health.phase(),
        sources,
        destinations,
        unrouted: desk.store.unrouted().await?,
        nodes: nodes(&desk).await?,
    }))
}

/// Who shares the store; nobody where it cannot be shared.
async fn nodes(desk: &Desk) -> Result<Vec<NodeStatus>, Problem> {
    if !desk.store.shared() {
        return Ok(Vec::new());
    }
    let own = desk.engine.get().and_then(|engine| engine.epoch());
    let lanes = desk.store.lanes().await?;
    let nodes = desk.store.nodes().await?.into_iter();
    Ok(nodes
        .map(|beat| NodeStatus {
            node: beat.node,
            epoch: beat.epoch,
            beat_ms_ago: u64::try_from(beat.age.as_millis()).unwrap_or(u64::MAX),
            live: beat.age <= desk.lease,
            differs: beat.plan != desk.plan,
            plan: beat.plan,
            this: own == Some(beat.epoch),
            lanes: lanes.iter().filter(|lane| lane.holder == Some(beat.epoch)).count(),
        })
        .collect())
}

async fn prune(
    State(desk): State<Arc<Desk>>,
    given: Result<Json<Prune>, JsonRejection>,
) -> Answer<Pruned> {
    let Json(given) = given.map_err(|error| Problem::new(error.status(), error.body_text()))?;
    let act = OperatorAct {
        by: given.by,
        verb: "prune".to_owned(),
        subject: "all".to_owned(),
        why: None,
    };
    desk.store.note(&act).await?;
    let done =
        housekeeping::round(&*desk.store, &desk.retention, &*desk.clock, PRUNE_LIMIT).await?;
    let Housekeeping { messages, log, inbox, dead_letters, more } = done;
    Ok(Json(Pruned { messages, log, inbox, dead_letters, more }))
}

fn out_status(
    destination: &EndpointName,
    now: Option<pabal_engine::DestinationStatus>,
    count: Option<&EndpointCounts>,
    link: Option<&LinkState>,
) -> OutStatus {
    OutStatus {
        destination: destination.clone(),
        now,
        paused: link.and_then(|link| link.paused.clone()),
        tripped: link.and_then(|link| link.tripped.clone()),
        waiting: count.map_or(0, |count| count.waiting),
        held: count.map_or(0, |count| count.held),
        keys_held: count.map_or(0, |count| count.keys_held),
        oldest: count.and_then(|count| count.oldest),
        dead: count.map_or(0, |count| count.dead),
    }
}

async fn metrics(State(desk): State<Arc<Desk>>) -> Result<Response, Problem> {
    let counts = desk.store.counts().await?;
    let unrouted = desk.store.unrouted().await?;
    let vitals = desk.store.vitals().await?;
    let statuses = desk.engine.get().map(|engine| engine.status()).unwrap_or_default();
    let text = desk
        .metrics
        .render(&counts, unrouted, &statuses, &vitals, desk.clock.now())
        .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((kind, text).into_response())
}
