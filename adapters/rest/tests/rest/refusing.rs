//! What is refused at the door.

use std::sync::Arc;

use axum::Extension;
use pabal_adapter_rest::{Ingress, PeerCertificate, RestAdapter};
use pabal_core::{Adapter, ManualClock, Sender, Stop};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    receiving::{Way, client, said},
    support::*,
};

/// Sends bytes as they are and gives the status of the answer.
async fn raw(way: &Way, request: &str) -> u16 {
    let mut socket = tokio::net::TcpStream::connect(way.address).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    socket.read_exact(&mut answer).await.unwrap();
    std::str::from_utf8(&answer[9..]).unwrap().parse().unwrap()
}

fn head(more: &str) -> String {
    format!("POST /in/welfare/applications HTTP/1.1\r\nhost: h\r\n{more}")
}

#[tokio::test]
async fn paths_and_methods_that_lead_nowhere_say_the_same() {
    let inbox = Inbox::open();
    let way = Way::open(json!({ "auth": "none" }), &inbox).await;
    let mut answers = Vec::new();
    for path in [
        "/in/welfare/nothing",
        "/in/nobody/applications",
        "/in/welfare",
        "/in/a/b/c",
        "/in/WELFARE/applications",
        "/in/%ff/applications",
        "/in/welfare%2Fapplications/x",
    ] {
        let (status, document) = said(client().post(way.url(path)).body("{}")).await;
        assert_eq!(status, 404, "{path}");
        answers.push(document);
    }
    answers.dedup();
    assert_eq!(answers.len(), 1);
    let answer = client().get(way.url("/in/welfare/applications")).send().await.unwrap();
    assert_eq!(answer.status(), 405);
    assert_eq!(answer.headers()["allow"], "POST");
    assert_eq!(answer.headers()["content-type"], "application/problem+json");
    assert!(inbox.taken.lock().unwrap().is_empty());
}

#[tokio::test]
async fn only_who_shows_the_secret_may_hand_over() {
    for (auth, good, bad, challenge) in [
        (
            json!({ "bearer": { "env": "TOKEN" } }),
            ("authorization", format!("bearer {TOKEN}")),
            vec![format!("Bearer {TOKEN}x"), TOKEN.into(), "Bearer".into(), "Bearer ".into()],
            "Bearer realm=\"pabal\"",
        ),
        (
            json!({ "basic": { "user": "hub", "password": { "env": "TOKEN" } } }),
            ("authorization", "Basic aHViOnUtbi1pLXEtdS1lLXQtby1rLWUtbg==".into()),
            vec!["Basic aHViOg==".into(), "Basic ***".into(), format!("Bearer {TOKEN}")],
            "Basic realm=\"pabal\", charset=\"UTF-8\"",
        ),
        (
            json!({ "header": { "name": "X-Api-Key", "value": { "env": "TOKEN" } } }),
            ("x-api-key", TOKEN.into()),
            vec!["x".into(), String::new(), format!("{TOKEN} x")],
            "ApiKey",
        ),
    ] {
        let inbox = Inbox::open();
        let way = Way::open(json!({ "auth": auth }), &inbox).await;
        assert_eq!(said(way.post().header(good.0, &good.1).body("{}")).await.0, 202);
        for value in &bad {
            let answer = way.post().header(good.0, value).body("{}").send().await.unwrap();
            assert_eq!(answer.status(), 401, "{value}");
            assert_eq!(answer.headers()["www-authenticate"], challenge);
            assert_secret_free(&answer.text().await.unwrap());
        }
        assert_eq!(said(way.post().body("{}")).await.0, 401);
        // Two of them: which one would the proxy in front have believed?
        let twice = way.post().header(good.0, &good.1).header(good.0, "x");
        assert_eq!(said(twice.body("{}")).await.0, 400);
        assert_eq!(inbox.taken.lock().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_signature_is_checked_over_the_bytes_as_they_came() {
    const BODY: &str = r#"{"amount":1.0,"name":"\ud64d\uae38\ub3d9","z":1,"a":2}"#;
    let inbox = Inbox::open();
    let clock = ManualClock::default();
    let settings = json!({
        "auth": { "standard_webhooks": [{ "env": "SECOND" }, { "env": "FIRST" }] },
        "type": "t",
    });
    let way = Way::open_in(with_clock(context(settings), &clock), &inbox).await;
    // Signed by our own sender, whose signatures are compared with a reference elsewhere.
    let send_settings = json!({
        "url": way.url("/in/welfare/applications"),
        "sign": { "standard_webhooks": [{ "env": "FIRST" }] },
    });
    for mode in ["binary", "structured", "raw"] {
        let mut settings = send_settings.clone();
        settings["mode"] = mode.into();
        let sender = build(with_clock(context(settings), &clock));
        let message = message(BODY);
        let verdict = send(&*sender, message.clone()).await;
        assert_eq!(fate(&verdict), "taken", "{mode}: {verdict:?}");
        let read = inbox.last();
        assert_eq!(read.body, message.body);
        assert_eq!(read.origin.id, Some(message.id.to_string()));
        assert_eq!(read.arrival.origin_time.unwrap().to_string(), "2026-01-01T00:00:00Z");
    }
    // Captured, and changed in whatever way.
    let server = crate::server::Server::start(|_, _| crate::server::answer(200, "")).await;
    let mut settings = send_settings.clone();
    settings["url"] = server.url("/").into();
    let sender = build(with_clock(context(settings), &clock));
    send(&*sender, message(BODY)).await.unwrap();
    let seen = server.seen().remove(0);
    let replay = |change: &[(&str, &str)], body: &str| {
        let mut request = way.post();
        for (name, value) in &seen.headers {
            if matches!(&**name, "host" | "content-length") {
                continue;
            }
            let changed = change.iter().find(|(changed, _)| changed == name);
            match changed.map_or(value.as_str(), |(_, value)| value) {
                "-" => {}
                value => request = request.header(name, value),
            }
        }
        request.body(body.to_owned())
    };
    assert_eq!(said(replay(&[], BODY)).await.0, 202);
    let count = inbox.taken.lock().unwrap().len();
    let reordered = r#"{"a":2,"amount":1.0,"name":"\ud64d\uae38\ub3d9","z":1}"#;
    for (change, body) in [
        (vec![], reordered),
        (vec![], &*BODY.replace("1.0", "1")),
        (vec![("webhook-signature", "garbage")], BODY),
        (vec![("webhook-signature", "v1,")], BODY),
        (vec![("webhook-signature", "v1,%%% v2,x ,,,")], BODY),
        (vec![("webhook-signature", "-")], BODY),
        (vec![("webhook-timestamp", "-")], BODY),
        (vec![("webhook-timestamp", "1e9")], BODY),
        (vec![("webhook-timestamp", "1767225601")], BODY),
        (vec![("webhook-id", "other")], BODY),
    ] {
        assert_eq!(said(replay(&change, body)).await.0, 401, "{change:?}");
    }
    // The signature fits, but the header names another event.
    assert_eq!(said(replay(&[("ce-id", "other")], BODY)).await.0, 400);
    clock.advance(std::time::Duration::from_secs(301));
    assert_eq!(said(replay(&[], BODY)).await.0, 401);
    assert_eq!(inbox.taken.lock().unwrap().len(), count);
}

#[tokio::test]
async fn a_client_certificate_must_have_the_name() {
    let adapter = RestAdapter::new(Ingress::new());
    let ingress = Ingress::new();
    let receiver = RestAdapter::new(ingress.clone())
        .receiver(context(json!({ "auth": { "client_certificate": "link.welfare.example" } })))
        .unwrap();
    let (inbox, stop) = (Inbox::open(), Stop::new());
    let (taking, end) = (Arc::clone(&inbox) as Arc<dyn Sender>, stop.clone());
    let run = tokio::spawn(async move { receiver.run(taking, end).await });
    tokio::task::yield_now().await;
    for (names, expected) in [
        (None, 401),
        (Some(vec!["other.example"]), 401),
        (Some(vec![]), 401),
        (Some(vec!["other.example", "link.welfare.example"]), 202),
    ] {
        let mut router = ingress.router();
        if let Some(names) = names {
            let names = names.into_iter().map(str::to_owned).collect();
            router = router.layer(Extension(PeerCertificate { names }));
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/in/welfare/applications", listener.local_addr().unwrap());
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        assert_eq!(said(client().post(url).body("{}")).await.0, expected);
        server.abort();
    }
    stop.fire();
    run.await.unwrap().unwrap();
    let empty = context(json!({ "auth": { "client_certificate": "" } }));
    assert!(adapter.receiver(empty).is_err());
}

#[tokio::test]
async fn only_the_named_networks_may_call() {
    let cases: [(Value, Option<&str>, u16); 6] = [
        (json!({ "allow": ["127.0.0.0/8"] }), None, 202),
        (json!({ "allow": ["10.1.0.0/16"] }), None, 403),
        // Nobody is believed unless trusted.
        (json!({ "allow": ["10.1.0.0/16"] }), Some("10.1.0.9"), 403),
        (
            json!({ "allow": ["10.1.0.0/16"], "trusted_proxies": ["127.0.0.1/32"] }),
            Some("1.2.3.4, 10.1.0.9"),
            202,
        ),
        (
            json!({ "allow": ["10.1.0.0/16"], "trusted_proxies": ["127.0.0.1/32"] }),
            Some("10.1.0.9, 1.2.3.4"),
            403,
        ),
        (
            json!({ "allow": ["10.1.0.0/16"], "trusted_proxies": ["127.0.0.1/32"] }),
            Some("10.1.0.9, nonsense"),
            403,
        ),
    ];
    for (mut settings, forwarded, expected) in cases {
        settings["auth"] = "none".into();
        let way = Way::open(settings, &Inbox::open()).await;
        let mut request = way.post().body("{}");
        if let Some(forwarded) = forwarded {
            request = request.header("x-forwarded-for", forwarded);
        }
        assert_eq!(said(request).await.0, expected, "{forwarded:?}");
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_while_it_streams() {
    let inbox = Inbox::open();
    let way = Way::open(json!({ "auth": "none", "body_max": "1KiB" }), &inbox).await;
    assert_eq!(said(way.post().body("x".repeat(1024))).await.0, 202);
    // Announced: not a byte is waited for.
    assert_eq!(raw(&way, &head("content-length: 5368709120\r\n\r\n")).await, 413);
    // Chunked: refused at the first byte too many, though the upload goes on for ever.
    let chunk = format!("400\r\n{}\r\n", "x".repeat(1024));
    let more = format!("transfer-encoding: chunked\r\n\r\n{chunk}1\r\nx\r\n");
    assert_eq!(raw(&way, &head(&more)).await, 413);
    assert_eq!(inbox.taken.lock().unwrap().len(), 1);
    let whole = format!("transfer-encoding: chunked\r\n\r\n{chunk}0\r\n\r\n");
    assert_eq!(raw(&way, &head(&whole)).await, 202);
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let inbox = Inbox::open();
    let way = Way::open(json!({ "auth": "none", "timeout": "100ms" }), &inbox).await;
    assert_eq!(raw(&way, &head("content-length: 5\r\n\r\nab")).await, 408);
    assert!(inbox.taken.lock().unwrap().is_empty());
}

#[tokio::test]
async fn hand_overs_at_the_same_time_are_bounded() {
    let inbox = Inbox::closed();
    let way = Way::open(json!({ "auth": "none", "concurrent": 3 }), &inbox).await;
    let hands: Vec<_> = (0..3).map(|_| tokio::spawn(way.post().body("{}").send())).collect();
    inbox.wait_begun(3).await;
    let answer = way.post().body("{}").send().await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["retry-after"]),
        (503, &"1".parse().unwrap())
    );
    inbox.gate.add_permits(4);
    for hand in hands {
        assert_eq!(hand.await.unwrap().unwrap().status(), 202);
    }
    assert_eq!(said(way.post().body("{}")).await.0, 202);
    assert_eq!(*inbox.begun.borrow(), 4);
}

#[tokio::test]
async fn forms_that_are_not_taken_are_named() {
    let inbox = Inbox::open();
    let way = Way::open(json!({ "auth": "none" }), &inbox).await;
    for content_type in [
        "application/cloudevents-batch+json",
        "application/cloudevents+xml",
        "Application/CloudEvents-Batch+JSON",
    ] {
        let (status, document) =
            said(way.post().header("content-type", content_type).body("[]")).await;
        assert_eq!(status, 415);
        assert!(document["detail"].is_string());
    }
    assert_eq!(said(way.post().header("content-encoding", "gzip").body("x")).await.0, 415);
    for (name, value) in [
        ("ce-specversion", "0.3"),
        ("ce-subject", "%ff"),
        ("ce-id", "a%00b"),
        ("ce-keyversion", "seven"),
        ("ce-hops", "256"),
        ("content-type", "application/cloudevents+json"),
    ] {
        let (status, document) = said(way.post().header(name, value).body("{}")).await;
        assert_eq!(status, 400, "{name}: {value}");
        assert!(document["detail"].as_str().unwrap().len() < 300);
    }
    let quoted = format!("\"{}\"", "x".repeat(100_000));
    let structured = way.post().header("content-type", "application/cloudevents+json");
    let (status, document) = said(structured.body(quoted)).await;
    assert_eq!((status, document["detail"].as_str().unwrap().len() < 300), (400, true));
    let twice = "content-length: 0\r\nce-id: 1\r\nce-id: 1\r\n\r\n";
    assert_eq!(raw(&way, &head(twice)).await, 400);
    let twice = "content-length: 0\r\nidempotency-key: 1\r\nidempotency-key: 2\r\n\r\n";
    assert_eq!(raw(&way, &head(twice)).await, 400);
    assert!(inbox.taken.lock().unwrap().is_empty());
}

#[test]
fn faults_in_the_settings_of_a_source_are_found_all_at_once() {
    let faults = |settings| {
        let found = RestAdapter::new(Ingress::new()).receiver(context(settings)).unwrap_err();
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let found = faults(json!({
        "auth": { "bearer": { "env": "EMPTY" } }, "body_max": "1GiB", "concurrent": 0,
        "keep_headers": ["Authorization", "bad name"], "timeout": "0s",
    }));
    for part in
        ["auth.bearer", "body_max", "concurrent", "keep_headers.0", "keep_headers.1", "timeout"]
    {
        assert!(found.iter().any(|fault| fault.starts_with(part)), "{part} is not in {found:?}");
    }
    assert!(faults(json!({})).iter().any(|fault| fault.contains("`auth` is missing")));
    assert!(!faults(json!({ "auth": "none", "allow": ["10.1.0.0/99"] })).is_empty());
    let header = json!({ "header": { "name": "X-Key", "value": { "env": "TOKEN" } } });
    let found = faults(json!({ "auth": header, "keep_headers": ["X-Key"] }));
    assert!(found[0].starts_with("keep_headers.0"), "a secret would be kept and passed on");
}
