//! The operators' interface in process, on a store of its own and an engine that sends nothing.

use std::{fs, sync::Arc};

use axum::{Router, body::Body, http::Request};
use http_body_util::BodyExt;
use pabal_adapter_rest::{Ingress, RestAdapter};
use pabal_core::{Clock, Secret, SystemClock};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::types::Phase;
use crate::{
    plan::{Depth, Plan},
    running::Stage,
    stores::open,
};

struct Bench {
    router: Router,
    stage: Stage,
    _dir: tempfile::TempDir,
}

impl Bench {
    async fn new() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config");
        fs::create_dir_all(config.join("partners")).unwrap();
        fs::write(config.join("hub.toml"), "name = \"test\"\n").unwrap();
        fs::write(
            config.join("partners/tax.toml"),
            "name = \"Tax\"\n[destination.cases]\ntakes = [\"case.*\"]\n\
             [destination.cases.rest]\nurl = \"http://127.0.0.1:9/\"\n\
             auth = { bearer = { env = \"NOBODY_SET_THIS\" } }\n",
        )
        .unwrap();
        let ingress = Ingress::new();
        let adapter = Arc::new(RestAdapter::new(ingress.clone()));
        let plan = Plan::load(&config, None, vec![adapter], ingress, Depth::Files).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let store = open(&plan, clock.clone()).await.unwrap().store;
        let stage = Stage::new(&plan, store, clock, Secret::new("t"), Phase::NotRunning);
        stage.start(&plan, true).await.unwrap();
        Self { router: super::router(stage.desk.clone()), stage, _dir: dir }
    }

    async fn ask(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: Value,
    ) -> (u16, Value) {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.header("content-type", "application/json");
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = request.body(Body::from(body)).unwrap();
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.ask("GET", path, Some("t"), Value::Null).await
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.ask("POST", path, Some("t"), body).await
    }
}

#[tokio::test]
async fn without_the_token_only_the_health_checks_answer() {
    let bench = Bench::new().await;
    for path in ["/api/v1/status", "/api/v1/messages", "/metrics", "/", "/api/v1/nothing"] {
        for token in [None, Some("x"), Some("")] {
            let (status, problem) = bench.ask("GET", path, token, Value::Null).await;
            assert_eq!(status, 401, "{path} {token:?}");
            assert_eq!(problem["title"], "Unauthorized");
        }
    }
    assert_eq!(bench.ask("GET", "/healthz", None, Value::Null).await.0, 200);
    assert_eq!(bench.ask("GET", "/readyz", None, Value::Null).await.0, 503);
    bench.stage.desk.health.set(Phase::Running);
    assert_eq!(bench.ask("GET", "/readyz", None, Value::Null).await.0, 200);
}

#[tokio::test]
async fn a_message_is_handed_over_once_found_and_its_body_opened_on_the_record() {
    let bench = Bench::new().await;
    let message = |body: &str| json!({ "type": "case.opened", "id": "A-1", "key": "k", "body": super::to_base64(body.as_bytes()) });
    let (status, taken) = bench.post("/api/v1/messages", message("one")).await;
    assert_eq!((status, &taken["duplicate"]), (202, &json!(false)), "{taken}");
    let (status, again) = bench.post("/api/v1/messages", message("one")).await;
    assert_eq!((status, &again["id"]), (200, &taken["id"]));
    let (status, problem) = bench.post("/api/v1/messages", message("two")).await;
    assert_eq!((status, &problem["title"]), (409, &json!("conflict")), "{problem}");

    let (_, found) = bench.get("/api/v1/messages?id=A-1&key=k").await;
    assert_eq!(found[0]["id"], taken["id"]);
    assert_eq!(found[0]["deliveries"][0]["destination"], "tax/cases");
    let id = taken["id"].as_str().unwrap();
    let (_, told) = bench.get(&format!("/api/v1/messages/{id}")).await;
    assert_eq!(told["content"], Value::Null);
    let (status, _) = bench.get(&format!("/api/v1/messages/{id}?body=true")).await;
    assert_eq!(status, 422, "a body is not opened by nobody");
    let (_, told) = bench.get(&format!("/api/v1/messages/{id}?body=true&by=kim")).await;
    assert_eq!(told["content"]["body"], super::to_base64(b"one"));

    let (_, status) = bench.get("/api/v1/status").await;
    assert_eq!(status["destinations"][0]["waiting"], 1, "{status}");
    let (_, text) = bench.get("/metrics").await;
    let text = text.as_str().unwrap();
    for line in [
        "pabal_inbox_duplicates_total{source=\"hub/cli\"} 1",
        "pabal_inbox_conflicts_total{source=\"hub/cli\"} 1",
        "pabal_outbox_waiting{destination=\"tax/cases\"} 1",
        "pabal_dead_letters{endpoint=\"hub/cli\"} 1",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn dead_letters_are_previewed_and_discarded_and_never_all_by_accident() {
    let bench = Bench::new().await;
    for body in ["one", "two"] {
        let message = json!({ "type": "case.opened", "id": "A-1", "body": super::to_base64(body.as_bytes()) });
        bench.post("/api/v1/messages", message).await;
    }
    let (_, groups) = bench.get("/api/v1/dead-letters/groups?reason=conflict").await;
    assert_eq!(groups[0]["count"], 1, "{groups}");
    let (_, list) = bench.get("/api/v1/dead-letters?kind=source").await;
    let id = &list[0]["id"];
    let (status, _) = bench.post("/api/v1/dead-letters/discard", json!({ "by": "kim" })).await;
    assert_eq!(status, 422);
    let everything = json!({ "query": {}, "by": "kim", "dry_run": true });
    let (_, told) = bench.post("/api/v1/dead-letters/discard", everything).await;
    assert_eq!((&told["preview"]["count"], &told["discarded"]), (&json!(1), &json!([])));
    let (_, told) =
        bench.post("/api/v1/dead-letters/discard", json!({ "ids": [id], "by": "kim" })).await;
    assert_eq!(told["discarded"], json!([id]));
    let (status, told) =
        bench.post("/api/v1/dead-letters/replay", json!({ "ids": [id], "by": "kim" })).await;
    assert_eq!((status, &told["report"]["refused"][0][1]), (200, &json!("no longer there")));
}

#[tokio::test]
async fn a_link_is_paused_and_resumed_and_an_unknown_one_is_named() {
    let bench = Bench::new().await;
    let why = json!({ "by": "kim", "why": "their maintenance" });
    let (_, link) = bench.post("/api/v1/links/tax/cases/pause", why.clone()).await;
    assert_eq!(link["paused"]["by"], "kim", "{link}");
    let (_, status) = bench.get("/api/v1/status").await;
    assert_eq!(status["destinations"][0]["paused"]["why"], "their maintenance");
    let (_, link) = bench.post("/api/v1/links/tax/cases/resume", why.clone()).await;
    assert_eq!((&link["paused"], &link["was_paused"]), (&Value::Null, &json!(true)));
    let (_, link) = bench.post("/api/v1/links/tax/cases/resume", why.clone()).await;
    assert_eq!((&link["endpoint"], &link["was_paused"]), (&json!("tax/cases"), &json!(false)));
    let (status, problem) = bench.post("/api/v1/links/tax/case/pause", why).await;
    assert_eq!(status, 404);
    assert!(problem["detail"].as_str().unwrap().contains("tax/cases"));
}

#[tokio::test]
async fn an_endpoint_that_does_not_exist_is_told_with_those_that_do() {
    let bench = Bench::new().await;
    for path in ["dead-letters?endpoint=", "dead-letters/groups?endpoint=", "messages?source="] {
        let (status, problem) = bench.get(&format!("/api/v1/{path}no/such")).await;
        assert_eq!(status, 404, "{path}");
        assert!(problem["detail"].as_str().unwrap().contains("hub/cli"), "{problem}");
        assert_eq!(bench.get(&format!("/api/v1/{path}hub/cli")).await, (200, json!([])), "{path}");
    }
    let nothing = json!({ "query": { "endpoint": "no/such" }, "by": "kim", "dry_run": true });
    for verb in ["replay", "discard"] {
        let path = format!("/api/v1/dead-letters/{verb}");
        assert_eq!(bench.post(&path, nothing.clone()).await.0, 404);
    }
}

#[tokio::test]
async fn what_nobody_takes_is_unrouted_and_a_wrong_address_is_refused() {
    let bench = Bench::new().await;
    let message = json!({ "type": "other", "body": "" });
    assert_eq!(bench.post("/api/v1/messages", message).await.0, 202);
    let (_, status) = bench.get("/api/v1/status").await;
    assert_eq!(status["unrouted"], 1);
    let (_, found) = bench.get("/api/v1/messages?unrouted=true").await;
    assert_eq!(found[0]["deliveries"], json!([]));
    let (_, done) =
        bench.post("/api/v1/messages/reroute", json!({ "all": true, "by": "kim" })).await;
    assert_eq!(done["routed"], 0, "{done}");
    let message = json!({ "type": "case.opened", "to": "tax/nothing", "body": "" });
    let (status, problem) = bench.post("/api/v1/messages", message).await;
    assert_eq!(status, 422);
    assert!(problem["detail"].as_str().unwrap().contains("tax/cases"));
}
