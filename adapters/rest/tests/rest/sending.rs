//! What goes out: envelope, headers, signatures, repeats.

use pabal_core::{ManualClock, Reason, SendError};
use serde_json::json;

use crate::{
    server::{Seen, Server, Step, answer},
    support::*,
};

async fn sent(settings: serde_json::Value, message: pabal_core::Message) -> Seen {
    let server = Server::start(|_, _| answer(202, "")).await;
    let mut settings = settings;
    let path = settings["url"].as_str().unwrap_or("/v1").to_owned();
    settings["url"] = server.url(&path).into();
    let verdict = send(&*sender(settings), message).await;
    assert_eq!(fate(&verdict), "taken", "{verdict:?}");
    server.seen().remove(0)
}

#[tokio::test]
async fn binary_mode_carries_the_whole_envelope_in_headers() {
    let mut message = message("{}");
    message.origin.source = "/hub/outbox".into();
    message.subject = Some("Zoë \"q\" 100% 日本".into());
    message.version = Some(9_007_199_254_740_993);
    message.schema = Some("urn:pabal:schema:application:2.0".into());
    message.time = Some("2026-11-30T12:00:00.123000Z".into());
    message.correlation = Some("C-1".into());
    message.causation = Some("B-1".into());
    message.trace = Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into());
    message.arrival.hops = 2;
    message.headers.push("ce-tenant", "서울");
    message.headers.push("X-Batch", "7");
    let id = message.id.to_string();
    let seen = sent(json!({ "url": "/v1/a" }), message).await;
    assert_eq!(seen.line, "POST /v1/a HTTP/1.1");
    assert_eq!(seen.body, b"{}");
    for (name, value) in [
        ("ce-specversion", "1.0"),
        ("ce-id", &*id),
        ("idempotency-key", &*id),
        ("ce-source", "/hub/outbox"),
        ("ce-type", "application.submitted"),
        ("ce-originid", "A-1"),
        ("ce-partitionkey", "case-7"),
        ("ce-keyversion", "9007199254740993"),
        ("ce-dataschema", "urn:pabal:schema:application:2.0"),
        ("ce-time", "2026-11-30T12:00:00.123000Z"),
        ("ce-subject", "Zo%C3%AB%20%22q%22%20100%25%20%E6%97%A5%E6%9C%AC"),
        ("ce-correlationid", "C-1"),
        ("ce-causationid", "B-1"),
        ("ce-hops", "3"),
        ("ce-tenant", "%EC%84%9C%EC%9A%B8"),
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("x-batch", "7"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(seen.header(name), Some(value), "{name}");
    }
}

#[tokio::test]
async fn structured_mode_holds_the_body_digit_for_digit() {
    let body = r#"{"amt":0.10,"b":4.81,"c":1.0,"d":117.63331139400017}"#;
    let seen = sent(json!({ "mode": "structured" }), message(body)).await;
    let document = String::from_utf8(seen.body).unwrap();
    assert_eq!(
        seen.headers.iter().find(|h| h.0 == "content-type").unwrap().1,
        "application/cloudevents+json"
    );
    assert!(document.contains(&format!(r#""data":{body}"#)), "{document}");
    let parsed: serde_json::Value = serde_json::from_str(&document).unwrap();
    assert_eq!(parsed["specversion"], "1.0");
    assert_eq!(parsed["partitionkey"], "case-7");
    assert_eq!(parsed["hops"], 1);
}

#[tokio::test]
async fn raw_mode_sends_the_body_and_nothing_of_the_envelope() {
    let settings = json!({
        "mode": "raw", "method": "PUT", "url": "/k/{key}?v={type}",
        "headers": { "X-Ref": "{origin_id}", "X-Version": "{version}" },
        "query": { "c": "a b&{key}", "gone": "{correlation}" },
        "auth": { "bearer": { "env": "TOKEN" } },
    });
    let mut message = message("{}");
    message.key = Some("서울/1".into());
    message.headers.push("x-of-the-message", "1");
    let seen = sent(settings, message).await;
    assert_eq!(
        seen.line,
        "PUT /k/%EC%84%9C%EC%9A%B8%2F1?v=application.submitted&c=a%20b%26%EC%84%9C%EC%9A%B8%2F1 HTTP/1.1"
    );
    let mut names: Vec<_> = seen.headers.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "accept",
            "authorization",
            "content-length",
            "content-type",
            "host",
            "user-agent",
            "x-ref"
        ]
    );
}

#[tokio::test]
async fn a_path_cannot_be_left_by_a_value() {
    let server = Server::start(|_, _| answer(200, "")).await;
    let sender = sender(json!({ "url": server.url("/v1/{key}/x") }));
    for (key, reason) in [("..", "`.` or `..`"), (".", "`.` or `..`"), ("", "{key}")] {
        let mut message = message("{}");
        message.key = Some(key.into());
        let verdict = send(&*sender, message).await;
        assert_eq!(fate(&verdict), "permanent");
        assert!(cause(&verdict).contains(reason), "{verdict:?}");
    }
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn a_header_value_never_adds_a_header_and_never_panics() {
    let server = Server::start(|_, _| answer(200, "")).await;
    let sender = sender(json!({ "url": server.url("/"), "headers": { "X-Key": "{key}" } }));
    for value in ["a\r\nX-Evil: 1", "홍길동", "a\0b", "a\u{7f}", "\n", "tab\tok"] {
        let mut message = message("{}");
        message.key = Some(value.into());
        message.subject = Some(value.into());
        message.content_type = Some(format!("text/plain; x={value}"));
        message.headers.push("X-Own", value);
        message.headers.push("bad name\r\n", value);
        let verdict = send(&*sender, message).await;
        assert_eq!(fate(&verdict), "taken", "{value:?}: {verdict:?}");
    }
    for seen in server.seen() {
        assert!(seen.header("x-evil").is_none(), "{seen:?}");
        assert!(seen.headers.iter().all(|(_, value)| value.is_ascii()));
    }
    assert_eq!(server.seen()[0].header("x-own"), Some("a%0D%0AX-Evil:%201"));
    assert_eq!(server.seen()[1].header("x-key"), Some("%ED%99%8D%EA%B8%B8%EB%8F%99"));
    let mut long = message("{}");
    long.headers.push("X-Long", "x".repeat(70 * 1024));
    let verdict = send(&*sender, long).await;
    assert!(matches!(&verdict, Err(SendError::Permanent { reason: Reason::Invalid, .. })));
    assert!(cause(&verdict).contains("x-long") && cause(&verdict).len() < 200);
    assert_eq!(fate(&send(&*sender, message("{}")).await), "taken");
}

#[tokio::test]
async fn a_message_brings_no_header_of_the_connection_or_of_ours() {
    let mut message = message("{}");
    for name in [
        "Authorization",
        "Host",
        "Content-Length",
        "Transfer-Encoding",
        "Connection",
        "Cookie",
        "ce-id",
        "CE-Type",
        "ce-destination",
        "webhook-id",
        "Idempotency-Key",
        "X-Forwarded-For",
        "traceparent",
        "X-Api-Key",
    ] {
        message.headers.push(name, "evil");
    }
    let auth =
        json!({ "auth": { "header": { "name": "X-Api-Key", "value": { "env": "TOKEN" } } } });
    let seen = sent(auth, message).await;
    assert!(seen.headers.iter().all(|(_, value)| value != "evil"), "{:?}", seen.headers);
    assert_eq!(seen.header("x-api-key"), Some(TOKEN));
}

#[tokio::test]
async fn a_signature_is_made_over_the_bytes_on_the_wire() {
    const BODY: &str = r#"{"amount":1.0,"name":"\ud64d\uae38\ub3d9","z":1,"a":2}"#;
    for mode in ["binary", "structured", "raw"] {
        let settings = json!({
            "mode": mode,
            "sign": { "standard_webhooks": [{ "env": "FIRST" }, { "env": "SECOND" }] },
        });
        let message = message(BODY);
        let id = message.id.to_string();
        let seen = sent(settings, message).await;
        if mode != "structured" {
            assert_eq!(seen.body, BODY.as_bytes());
        }
        assert_eq!(seen.header("webhook-id"), Some(&*id));
        let time = seen.header("webhook-timestamp").unwrap();
        let signatures: Vec<_> = seen.header("webhook-signature").unwrap().split(' ').collect();
        assert_eq!(signatures.len(), 2);
        for (secret, signature) in [FIRST, SECOND].into_iter().zip(signatures) {
            assert_eq!(signature, reference_signature(secret, &id, time, &seen.body));
        }
    }
}

/// Made here once more, independent of the adapter.
fn reference_signature(secret: &str, id: &str, time: &str, body: &[u8]) -> String {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    use hmac::{Hmac, KeyInit as _, Mac as _};
    let key = BASE64_STANDARD.decode(&secret["whsec_".len()..]).unwrap();
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&key).unwrap();
    mac.update(&[format!("{id}.{time}.").as_bytes(), body].concat());
    format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()))
}

#[tokio::test]
async fn a_repeat_carries_the_same_id_and_bytes_and_only_a_fresh_signature() {
    let server = Server::start(|number, _| match number {
        0 => Step::Close,
        _ => answer(200, ""),
    })
    .await;
    let clock = ManualClock::default();
    let settings = json!({
        "url": server.url("/"), "sign": { "standard_webhooks": [{ "env": "FIRST" }] },
    });
    let sender = build(with_clock(context(settings), &clock));
    let message = message(r#"{"a":1.0}"#);
    let first = send(&*sender, message.clone()).await;
    assert_eq!(fate(&first), "transient", "{first:?}");
    clock.advance(std::time::Duration::from_secs(60));
    assert_eq!(fate(&send(&*sender, message).await), "taken");
    let [first, second] = server.seen().try_into().unwrap();
    assert_eq!(first.body, second.body);
    let fixed = |seen: &Seen| {
        let mut headers = seen.headers.clone();
        headers.retain(|(name, _)| !matches!(&**name, "webhook-timestamp" | "webhook-signature"));
        headers
    };
    assert_eq!(fixed(&first), fixed(&second));
    assert_ne!(first.header("webhook-timestamp"), second.header("webhook-timestamp"));
    assert_eq!(second.header("webhook-timestamp"), Some("1767225660"));
}

#[tokio::test]
async fn connections_the_other_side_closed_lose_nothing_in_200_sends() {
    let server = Server::start(|_, _| Step::AnswerAndClose(200)).await;
    let sender = sender(json!({ "url": server.url("/") }));
    let mut again = 0;
    for number in 0..200 {
        let mut message = message(format!("{number}"));
        message.id = pabal_core::MessageId::of("h", &message.source, "s", &number.to_string());
        loop {
            let verdict = send(&*sender, message.clone()).await;
            match fate(&verdict) {
                "taken" => break,
                "transient" => again += 1,
                _ => panic!("{verdict:?}"),
            }
            assert!(again < 200, "it never goes through");
        }
    }
    let seen = server.seen();
    let bodies: std::collections::BTreeSet<_> = seen.iter().map(|seen| &seen.body).collect();
    assert_eq!(bodies.len(), 200);
}

#[tokio::test]
async fn connections_are_used_again_while_they_are_fresh_and_not_longer() {
    let server = Server::start(|_, _| answer(200, "ok")).await;
    let kept = sender(json!({ "url": server.url("/") }));
    let fresh = sender(json!({ "url": server.url("/"), "idle": "0s" }));
    for sender in [&kept, &kept, &fresh, &fresh] {
        assert_eq!(fate(&send(&**sender, message("{}")).await), "taken");
    }
    let connections: Vec<_> = server.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [0, 0, 1, 2]);
}

#[tokio::test]
async fn the_size_on_the_wire_is_never_under_what_is_sent() {
    for mode in ["binary", "structured", "raw"] {
        for (content_type, body) in [("application/json", "{\"a\": 1}"), ("text/plain", "가나다라")]
        {
            let mut message = message(body.repeat(if body.starts_with('{') { 1 } else { 500 }));
            message.content_type = Some(content_type.into());
            message.subject = Some("서울시 민원".repeat(20));
            message.headers.push("x-a", "홍길동");
            let server = Server::start(|_, _| answer(200, "")).await;
            let sender = sender(json!({ "url": server.url("/"), "mode": mode }));
            let size = sender.wire_size(&message);
            assert_eq!(fate(&send(&*sender, message).await), "taken");
            let seen = server.seen().remove(0);
            let headers: usize = seen.headers.iter().map(|(n, v)| n.len() + v.len() + 4).sum();
            let real = seen.line.len() + 4 + headers + seen.body.len();
            assert!((real..real + 4096).contains(&size), "{mode}: {size} for {real}");
        }
    }
}

#[test]
fn faults_in_the_settings_are_found_all_at_once() {
    let found = faults(json!({
        "url": "ftp://u:p@h/{kee}", "headers": { "Authorization": "x", "ce-id": "y", "b d": "z" },
        "query": { "a": "{" }, "timeout": "0s", "answer_max": "1MiB", "tls": { "cert": "a.pem" },
        "status": { "404": "retry", "99": "dead" },
        "sign": { "standard_webhooks": [] },
        "auth": { "bearer": { "env": "NOWHERE" } },
    }));
    for part in [
        "url: unknown placeholder",
        "headers.Authorization",
        "headers.ce-id",
        "headers.b d",
        "query.a",
        "timeout",
        "answer_max",
        "tls",
        "status.99",
        "sign.standard_webhooks",
        "auth.bearer",
    ] {
        assert!(found.iter().any(|fault| fault.starts_with(part)), "{part} is not in {found:?}");
    }
    let found = faults(json!({ "url": "http://h/", "tls": { "ca": "ca.pem" } }));
    assert!(found[0].starts_with("tls: the URL is not https"), "{found:?}");
    for url in [
        "ftp://h/",
        "http://u:p@h/",
        "http://{key}/",
        "{key}://h/",
        "http://h/a/../b",
        "http://h/#x",
        "h",
        "http://h:{version}/",
    ] {
        let found = faults(json!({ "url": url }));
        assert!(found.len() == 1 && found[0].starts_with("url"), "{url}: {found:?}");
        assert!(!found[0].contains("u:p"));
    }
}
