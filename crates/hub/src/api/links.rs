//! Pausing and resuming a source or destination.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, State, rejection::JsonRejection},
    routing::post,
};
use pabal_core::{EndpointName, LinkChange, LinkState, OperatorAct, Paused};

use super::{
    Desk, Problem,
    problem::Answer,
    types::{LinkAct, Linked},
};

pub(super) fn routes() -> Router<Arc<Desk>> {
    Router::new()
        .route("/links/{partner}/{name}/pause", post(pause))
        .route("/links/{partner}/{name}/resume", post(resume))
}

type Given = Result<Json<LinkAct>, JsonRejection>;

async fn pause(
    State(desk): State<Arc<Desk>>,
    Path(path): Path<(String, String)>,
    given: Given,
) -> Answer<Linked> {
    let Json(given) = given.map_err(|error| Problem::new(error.status(), error.body_text()))?;
    let endpoint = known(&desk, &path)?;
    let paused = Paused { by: given.by.clone(), why: given.why.clone(), at: desk.clock.now() };
    change(&desk, endpoint, LinkChange::Paused(Some(paused)), given, "pause").await
}

async fn resume(
    State(desk): State<Arc<Desk>>,
    Path(path): Path<(String, String)>,
    given: Given,
) -> Answer<Linked> {
    let Json(given) = given.map_err(|error| Problem::new(error.status(), error.body_text()))?;
    let endpoint = known(&desk, &path)?;
    change(&desk, endpoint, LinkChange::Paused(None), given, "resume").await
}

async fn change(
    desk: &Desk,
    endpoint: EndpointName,
    change: LinkChange,
    given: LinkAct,
    verb: &str,
) -> Answer<Linked> {
    let engine = desk.engine()?;
    let act = OperatorAct {
        by: given.by,
        verb: verb.to_owned(),
        subject: endpoint.to_string(),
        why: given.why,
    };
    let state = async || -> Result<Option<LinkState>, Problem> {
        let states = desk.store.link_states().await?;
        Ok(states.into_iter().find(|link| link.endpoint == endpoint))
    };
    let was_paused = state().await?.is_some_and(|link| link.paused.is_some());
    // Also if nothing changes: a destination that is held is looked at again at once.
    desk.store.set_link_state(&endpoint, change, Some(&act)).await?;
    engine.wake();
    let state = state().await?;
    let state = state.unwrap_or(LinkState { endpoint, paused: None, tripped: None, pace: None });
    Ok(Json(Linked { state, was_paused }))
}

fn known(desk: &Desk, (partner, name): &(String, String)) -> Result<EndpointName, Problem> {
    let endpoint =
        EndpointName::new(partner, name).map_err(|error| Problem::unusable(error.to_string()))?;
    let mut all = desk.sources.iter().chain(&desk.destinations);
    if all.any(|known| *known == endpoint) {
        return Ok(endpoint);
    }
    let known: Vec<&str> =
        desk.sources.iter().chain(&desk.destinations).map(EndpointName::as_str).collect();
    Err(Problem::not_found(format!(
        "there is no source or destination {endpoint}; there are: {}",
        known.join(", ")
    )))
}
