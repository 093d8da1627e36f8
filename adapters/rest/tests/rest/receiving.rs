//! What comes in: forms, envelopes, answers.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use pabal_adapter_rest::{Ingress, RestAdapter};
use pabal_core::{
    Adapter, Cause, Context, Message, Reason, Receipt, ReceiveError, SendError, Sender, Stop,
    SystemClock,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::*;

/// A listener with one source that runs.
pub(crate) struct Way {
    pub(crate) address: SocketAddr,
    pub(crate) ingress: Ingress,
    pub(crate) stop: Stop,
    pub(crate) run: JoinHandle<Result<(), ReceiveError>>,
    server: JoinHandle<()>,
}

impl Drop for Way {
    fn drop(&mut self) {
        self.run.abort();
        self.server.abort();
    }
}

impl Way {
    pub(crate) async fn open(settings: Value, inbox: &Arc<Inbox>) -> Self {
        Self::open_in(context(settings), inbox).await
    }

    pub(crate) async fn open_in(context: Context, inbox: &Arc<Inbox>) -> Self {
        let ingress = Ingress::new();
        let receiver = RestAdapter::new(ingress.clone()).receiver(context).unwrap();
        assert!(!receiver.exclusive());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = ingress.router().into_make_service_with_connect_info::<SocketAddr>();
        let server = tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
        let stop = Stop::new();
        let (inbox, end) = (Arc::clone(inbox) as Arc<dyn Sender>, stop.clone());
        let run = tokio::spawn(async move { receiver.run(inbox, end).await });
        // One turn, and it is open.
        tokio::task::yield_now().await;
        Self { address, ingress, stop, run, server }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// A hand-over to the source.
    pub(crate) fn post(&self) -> reqwest::RequestBuilder {
        client().post(self.url("/in/welfare/applications"))
    }
}

pub(crate) fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().tls_certs_only([]).build().unwrap()
}

/// Status, headers that matter, and document of an answer.
pub(crate) async fn said(request: reqwest::RequestBuilder) -> (u16, Value) {
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
    let document: Value = answer.json().await.unwrap();
    if status >= 400 {
        assert_eq!(kind, "application/problem+json");
        assert_eq!(document["status"], status);
        assert!(document["type"].as_str().unwrap().starts_with("urn:pabal:problem:"));
        assert!(document["title"].is_string());
    } else {
        assert_eq!(kind, "application/json");
    }
    (status, document)
}

async fn taken(way: &Way, inbox: &Inbox, request: reqwest::RequestBuilder) -> Message {
    let _ = way;
    let (status, document) = said(request).await;
    assert_eq!((status, &document), (202, &json!({ "id": "the-id" })));
    inbox.last()
}

fn body(message: &Message) -> &str {
    std::str::from_utf8(message.body.inline().unwrap()).unwrap()
}

#[tokio::test]
async fn a_binary_event_fills_the_envelope() {
    let inbox = Inbox::open();
    let way = Way::open(json!({ "auth": "none" }), &inbox).await;
    let request = way
        .post()
        .header("ce-specversion", "1.0")
        .header("ce-type", "com.example.order.created")
        .header("ce-source", "/hub/outbox")
        .header("ce-id", "A234-1234-1234")
        .header("ce-time", "2026-11-30T12:00:00.123000Z")
        .header("ce-subject", "Zo%C3%AB%20%22q%22%20100%25%20%E6%97%A5%E6%9C%AC")
        .header("ce-dataschema", "https://example.com/schema/1")
        .header("ce-traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
        .header("ce-partitionkey", "cust-7")
        .header("ce-keyversion", "12")
        .header("ce-correlationid", "c")
        .header("ce-causationid", "d")
        .header("ce-destination", "tax/orders")
        .header("ce-originid", "theirs")
        .header("ce-hops", "3")
        .header("ce-tenant", "%EC%84%9C%EC%9A%B8")
        .header("tracestate", "a=b")
        .header("x-not-kept", "1")
        .header("content-type", "application/json")
        .body("{\"id\": 42, \"name\": \"Zo\\u00eb\"}");
    let message = taken(&way, &inbox, request).await;
    assert_eq!(message.source, name());
    assert_eq!(message.origin.source, "/hub/outbox");
    assert_eq!(message.origin.id.as_deref(), Some("A234-1234-1234"));
    assert_eq!(message.message_type, "com.example.order.created");
    assert_eq!(message.time.as_deref(), Some("2026-11-30T12:00:00.123000Z"));
    assert_eq!(message.subject.as_deref(), Some("Zoë \"q\" 100% 日本"));
    assert_eq!(message.schema.as_deref(), Some("https://example.com/schema/1"));
    assert!(message.trace.as_deref().unwrap().starts_with("00-4bf9"));
    assert_eq!((message.key.as_deref(), message.version), (Some("cust-7"), Some(12)));
    assert_eq!(message.correlation.as_deref(), Some("c"));
    assert_eq!(message.causation.as_deref(), Some("d"));
    assert_eq!(message.destination.as_deref(), Some("tax/orders"));
    assert_eq!(message.arrival.hops, 3);
    assert_eq!(message.content_type.as_deref(), Some("application/json"));
    assert_eq!(body(&message), "{\"id\": 42, \"name\": \"Zo\\u00eb\"}");
    let mut headers: Vec<_> = message.headers.iter().collect();
    headers.sort_unstable();
    assert_eq!(headers, [("ce-originid", "theirs"), ("ce-tenant", "서울"), ("tracestate", "a=b")]);
}

#[tokio::test]
async fn the_content_type_of_a_structured_event_wins_over_stray_headers() {
    let inbox = Inbox::open();
    let way = Way::open(json!({ "auth": "none" }), &inbox).await;
    let request = way
        .post()
        .header("content-type", "application/cloudevents+json; charset=utf-8")
        .header("ce-id", "stray")
        .header("ce-specversion", "0.3")
        .header("ce-hops", "x")
        .body(
            r#"{"specversion":"1.0","id":"inner","type":"t","source":"s","hops":2,
                "partitionkey":"k","data":{ "amt":0.10,"big":117.63331139400017,"c":1.0 }}"#,
        );
    let message = taken(&way, &inbox, request).await;
    assert_eq!(message.origin.id.as_deref(), Some("inner"));
    assert_eq!(message.arrival.hops, 2);
    assert_eq!(message.content_type.as_deref(), Some("application/json"));
    assert_eq!(body(&message), r#"{ "amt":0.10,"big":117.63331139400017,"c":1.0 }"#);
}

#[tokio::test]
async fn a_plain_body_has_its_id_in_idempotency_key_and_its_type_from_the_settings() {
    let inbox = Inbox::open();
    let settings = json!({ "auth": "none", "type": "decision.made", "keep_headers": ["X-Dept"] });
    let way = Way::open(settings, &inbox).await;
    for key in ["K-1", "\"K-1\""] {
        let request = way
            .post()
            .header("idempotency-key", key)
            .header("x-dept", "복지")
            .header("traceparent", "nonsense")
            .body("<a/>");
        let message = taken(&way, &inbox, request).await;
        assert_eq!(message.origin.id.as_deref(), Some("K-1"));
        assert_eq!(message.origin.source, "/welfare/applications");
        assert_eq!(message.message_type, "decision.made");
        assert_eq!(message.headers.get("x-dept"), Some("복지"));
        assert_eq!((message.trace.as_deref(), body(&message)), (None, "<a/>"));
    }
    // Without an id it is for the inbox to say no.
    let message = taken(&way, &inbox, way.post().body("x")).await;
    assert_eq!(message.origin.id, None);
}

#[tokio::test]
async fn what_goes_out_comes_in_again_the_same() {
    let inbox = Inbox::open();
    let way = Way::open(json!({ "auth": "none" }), &inbox).await;
    for mode in ["binary", "structured"] {
        let mut message = message(r#"{"amount":1.0,"name":"\ud64d","z":1e400,"a":2}"#);
        message.subject = Some("민원 \"7\" 100%".into());
        message.version = Some(5_000_000_000);
        message.headers.push("ce-tenant", "서울");
        message.trace = Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into());
        message.arrival.hops = 4;
        let url = way.url("/in/welfare/applications");
        let sender = sender(json!({ "url": url, "mode": mode }));
        assert_eq!(fate(&send(&*sender, message.clone()).await), "taken");
        let read = inbox.last();
        assert_eq!(read.origin.id, Some(message.id.to_string()));
        assert_eq!(read.arrival.hops, 5);
        assert_eq!(read.headers.get("ce-originid"), Some("A-1"));
        assert_eq!(read.headers.get("ce-tenant"), Some("서울"));
        assert_eq!(read.body, message.body);
        let fields = |m: &Message| {
            (
                m.message_type.clone(),
                m.key.clone(),
                m.version,
                m.subject.clone(),
                m.content_type.clone(),
                m.trace.clone(),
                m.origin.source.clone(),
            )
        };
        assert_eq!(fields(&read), fields(&message), "{mode}");
    }
}

#[tokio::test]
async fn nothing_is_answered_before_the_receipt() {
    let inbox = Inbox::closed();
    let way = Way::open(json!({ "auth": "none" }), &inbox).await;
    let mut answer = tokio::spawn(way.post().header("idempotency-key", "1").body("{}").send());
    inbox.wait_begun(1).await;
    let clock: &dyn pabal_core::Clock = &SystemClock;
    assert!(clock.timeout(Duration::from_millis(200), &mut answer).await.is_none());
    inbox.gate.add_permits(1);
    assert_eq!(answer.await.unwrap().unwrap().status(), 202);
}

#[tokio::test]
async fn every_verdict_of_the_inbox_has_its_answer() {
    let inbox = Inbox::open();
    let way = Way::open(json!({ "auth": "none" }), &inbox).await;
    let duplicate =
        Receipt { remote_id: Some("the-id".into()), duplicate: true, ..Receipt::default() };
    inbox.says(Ok(duplicate));
    let (status, document) = said(way.post().body("{}")).await;
    assert_eq!((status, document), (200, json!({ "id": "the-id", "duplicate": true })));
    for (reason, expected) in [
        (Reason::Conflict, 409),
        (Reason::Unreadable, 400),
        (Reason::Refused, 400),
        (Reason::Invalid, 422),
        (Reason::UnknownVersion, 422),
        (Reason::TooLarge, 413),
        (Reason::Expired, 410),
        (Reason::BodyGone, 410),
        (Reason::Panic, 500),
    ] {
        inbox.says(Err(SendError::permanent(reason, Cause::with("why", "the field"))));
        let (status, document) = said(way.post().body("{}")).await;
        assert_eq!(status, expected);
        assert_eq!(document["type"], format!("urn:pabal:problem:{reason}"));
        let detail = document["detail"].as_str();
        assert_eq!(detail, (reason != Reason::Panic).then_some("why: the field"));
    }
    let inside = || Cause::from("the store at 10.0.0.5 is down");
    for (error, wait) in [
        (SendError::transient(inside()), "1"),
        (SendError::unreachable(inside()), "1"),
        (SendError::NotSent, "1"),
        (
            SendError::Transient {
                cause: inside(),
                retry_after: Some(Duration::from_millis(2_001)),
            },
            "3",
        ),
    ] {
        inbox.says(Err(error));
        let answer = way.post().body("{}").send().await.unwrap();
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.headers()["retry-after"], wait);
        assert!(!answer.text().await.unwrap().contains("10.0.0.5"));
    }
}

#[tokio::test]
async fn a_stop_takes_nothing_new_finishes_what_is_in_hand_and_returns() {
    let inbox = Inbox::closed();
    let mut way = Way::open(json!({ "auth": "none" }), &inbox).await;
    let hands: Vec<_> = (0..20).map(|_| tokio::spawn(way.post().body("{}").send())).collect();
    inbox.wait_begun(20).await;
    way.stop.fire();
    tokio::task::yield_now().await;
    let late = way.post().body("{}").send().await.unwrap();
    assert_eq!(late.status(), 503);
    assert_eq!(late.headers()["retry-after"], "1");
    assert!(!way.run.is_finished());
    inbox.gate.add_permits(20);
    for hand in hands {
        assert_eq!(hand.await.unwrap().unwrap().status(), 202);
    }
    assert!((&mut way.run).await.unwrap().is_ok());
    // The receiver is gone with its run, and so is its route.
    assert_eq!(said(way.post().body("{}")).await.0, 404);
}

#[tokio::test]
async fn a_known_source_that_does_not_run_asks_to_come_back() {
    let inbox = Inbox::open();
    let way = Way::open(json!({ "auth": "none" }), &inbox).await;
    let adapter = RestAdapter::new(way.ingress.clone());
    let build = |name: &str| {
        let mut context = context(json!({ "auth": "none" }));
        context.name = name.parse().unwrap();
        adapter.receiver(context).unwrap()
    };
    let idle = build("tax/orders");
    assert_eq!(said(client().post(way.url("/in/tax/orders")).body("{}")).await.0, 503);
    drop(idle);
    assert_eq!(said(client().post(way.url("/in/tax/orders")).body("{}")).await.0, 404);
    // One that a reload has built but not started takes nothing away from the one that runs.
    let next = build("welfare/applications");
    assert_eq!(said(way.post().body("{}")).await.0, 202);
    drop(next);
    assert_eq!(said(way.post().body("{}")).await.0, 202);
}

#[tokio::test]
async fn a_receiver_runs_again_after_it_was_stopped() {
    let ingress = Ingress::new();
    let receiver =
        RestAdapter::new(ingress.clone()).receiver(context(json!({ "auth": "none" }))).unwrap();
    for _ in 0..3 {
        let stop = Stop::new();
        stop.fire();
        receiver.run(Inbox::open(), stop).await.unwrap();
    }
}
