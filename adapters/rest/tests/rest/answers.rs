//! What becomes of a message by what the partner answers, or does not.

use std::{sync::Arc, time::Duration};

use pabal_core::{Cause, Clock, Judgement, SendError, SystemClock, Verdict};
use serde_json::json;

use crate::{
    server::{Server, Step, answer, answer_with},
    support::*,
};

async fn verdict_on(step: Step) -> Verdict {
    let server = Server::start(move |_, _| step.clone()).await;
    send(&*sender(json!({ "url": server.url("/v1?token=query-secret") })), message("{}")).await
}

fn retry_after(verdict: &Verdict) -> Option<u64> {
    match verdict {
        Err(
            SendError::Unreachable { retry_after, .. } | SendError::Transient { retry_after, .. },
        ) => retry_after.map(|time| time.as_secs()),
        _ => None,
    }
}

#[tokio::test]
async fn a_wish_to_be_left_alone_is_passed_on_in_both_forms() {
    let date = |seconds: i64| {
        let time = std::time::UNIX_EPOCH
            + Duration::from_secs((SystemClock.now().as_second() + seconds).unsigned_abs());
        httpdate::fmt_http_date(time)
    };
    for status in [429, 503, 401] {
        let fate_of = if status == 503 { "transient" } else { "unreachable" };
        for (value, expected) in [
            ("30".to_owned(), Some(30)),
            (date(30), Some(30)),
            (date(-30), None),
            ("-5".into(), None),
            ("abc".into(), None),
        ] {
            let verdict = verdict_on(answer_with(status, "retry-after", value.clone())).await;
            assert_eq!(fate(&verdict), fate_of);
            let wait = retry_after(&verdict);
            let near = match (wait, expected) {
                (Some(wait), Some(expected)) => (expected - 2..=expected).contains(&wait),
                (wait, expected) => wait == expected,
            };
            assert!(near, "{status} {value}: {wait:?}");
        }
    }
}

#[tokio::test]
async fn the_table_of_decisions_holds_on_the_wire() {
    for (status, expected) in [
        (200, "taken"),
        (202, "taken"),
        (204, "taken"),
        (400, "permanent"),
        (401, "unreachable"),
        (403, "unreachable"),
        (404, "permanent"),
        (407, "unreachable"),
        (408, "transient"),
        (409, "permanent"),
        (410, "permanent"),
        (413, "permanent"),
        (415, "permanent"),
        (422, "permanent"),
        (425, "transient"),
        (429, "unreachable"),
        (500, "transient"),
        (502, "transient"),
        (503, "transient"),
        (504, "transient"),
    ] {
        let verdict = verdict_on(answer(status, "")).await;
        assert_eq!(fate(&verdict), expected, "{status}");
        if verdict.is_err() {
            assert_eq!(cause(&verdict), format!("HTTP {status}"));
        }
    }
}

#[tokio::test]
async fn a_destination_may_read_single_codes_its_own_way() {
    let server = Server::start(|_, seen| {
        answer(seen.body.iter().fold(0, |n, b| n * 10 + u16::from(b - b'0')), "")
    })
    .await;
    let sender = sender(json!({
        "url": server.url("/"),
        "status": { "404": "retry", "409": "duplicate", "403": "dead", "500": "success" },
    }));
    for (status, expected) in [
        ("404", "transient"),
        ("409", "duplicate"),
        ("403", "permanent"),
        ("500", "taken"),
        ("400", "permanent"),
    ] {
        assert_eq!(fate(&send(&*sender, message(status)).await), expected, "{status}");
    }
}

#[tokio::test]
async fn a_redirect_is_no_delivery_and_carries_nothing_elsewhere() {
    for status in [301, 302, 303, 307, 308] {
        let elsewhere = Server::start(|_, _| answer(200, "<html>log in</html>")).await;
        let target = elsewhere.url("/login?session=query-secret");
        let server = Server::start(move |_, seen| {
            assert!(seen.header("authorization").is_some());
            answer_with(status, "location", target.clone())
        })
        .await;
        let settings = json!({ "url": server.url("/"), "auth": { "bearer": { "env": "TOKEN" } } });
        let verdict = send(&*sender(settings), message("{}")).await;
        assert_eq!(fate(&verdict), "unreachable");
        let expected = format!("HTTP {status}: redirects to {}", elsewhere.url("/login"));
        assert_eq!(cause(&verdict), expected);
        assert!(elsewhere.seen().is_empty());
        assert_eq!(server.seen().len(), 1);
    }
}

#[tokio::test]
async fn a_rule_decides_what_an_answer_means_and_a_mismatch_keeps_the_body() {
    let server = Server::start(|number, _| match number {
        0 => answer(200, r#"{"result":"FAIL","code":"E102"}"#),
        1 => answer(200, "<html>log in</html>"),
        2 => answer(200, ""),
        3 => answer(500, r#"{"result":"OK"}"#),
        4 => answer(200, r#"{"result":"DUP"}"#),
        5 => answer(401, r#"{"result":"OK"}"#),
        6 => answer_with(302, "location", "/login"),
        _ => answer(200, format!("{{\"pad\":\"{}\",\"result\":\"OK\"}}", "x".repeat(60_000))),
    })
    .await;
    let mut context = context(json!({ "url": server.url("/") }));
    context.answer = Arc::new(Rule(|answer| {
        let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        Some(match body["result"].as_str() {
            Some("OK") => Judgement::Success,
            Some("DUP") => Judgement::Duplicate,
            Some("FAIL") => Judgement::Dead(Cause::from("the answer says no")),
            _ => Judgement::Retry(Cause::from("the answer is not the expected one")),
        })
    }));
    let sender = build(context);
    for (expected, text) in [
        ("permanent", "the answer says no: {\"result\":\"FAIL\",\"code\":\"E102\"}"),
        ("transient", "the answer is not the expected one: <html>log in</html>"),
        ("transient", "the answer is not the expected one"),
        ("taken", ""),
        ("duplicate", ""),
        ("unreachable", "HTTP 401: {\"result\":\"OK\"}"),
        ("unreachable", "redirects to"),
        ("taken", ""),
    ] {
        let verdict = send(&*sender, message("{}")).await;
        assert_eq!(fate(&verdict), expected, "{verdict:?}");
        match verdict {
            Ok(receipt) => assert!(receipt.answer.unwrap().body.len() <= 2048),
            Err(_) => assert!(cause(&verdict).contains(text), "{verdict:?}"),
        }
    }
}

#[tokio::test]
async fn korean_answers_are_cut_at_a_character_and_broken_ones_are_shown() {
    for shift in 0..3 {
        let body = format!("{}{}", " x".repeat(shift), "접수할 수 없습니다. ".repeat(2000));
        let verdict = verdict_on(answer(400, body)).await;
        let detail = verdict.unwrap_err().cause().unwrap().detail.clone().unwrap();
        assert!(detail.len() <= 2048 && detail.contains("접수할 수 없습니다"));
        assert!(!detail.contains(char::REPLACEMENT_CHARACTER), "cut inside a character");
    }
    // EUC-KR, and nonsense.
    let verdict = verdict_on(answer(400, b"\xc1\xd6\xb9\xae\xff\x00".repeat(900))).await;
    assert!(cause(&verdict).len() <= 2048 + 16);
}

#[tokio::test]
async fn one_limit_holds_for_the_whole_exchange_and_a_healthy_partner_is_not_delayed() {
    let healthy = Server::start(|_, _| answer(200, "")).await;
    let slow = Server::start(|_, _| Step::Drip(Duration::from_millis(50))).await;
    let silent = Server::start(|_, _| Step::Silent).await;
    let endless = Server::start(|_, _| Step::Endless).await;
    let to = |server: &Server, timeout: &str| {
        sender(json!({ "url": server.url("/"), "timeout": timeout }))
    };
    let [good, drip, nothing, flood] =
        [to(&healthy, "30s"), to(&slow, "400ms"), to(&silent, "400ms"), to(&endless, "30s")];
    let started = SystemClock.elapsed();
    let drips: Vec<_> = (0..20)
        .map(|number| {
            let mut message = message(format!("{number}"));
            message.key = None;
            message
        })
        .collect();
    let (dripped, well, quiet, flooded) = tokio::join!(
        drip.send(&drips),
        async {
            let verdict = send(&*good, message("{}")).await;
            (verdict, SystemClock.elapsed() - started)
        },
        send(&*nothing, message("{}")),
        send(&*flood, message("{}")),
    );
    assert!(SystemClock.elapsed() - started < Duration::from_secs(5));
    assert_eq!(dripped.len(), 20);
    for verdict in &dripped {
        assert_eq!(fate(verdict), "transient");
        assert!(cause(verdict).contains("did not end in time: HTTP 200 ."), "{verdict:?}");
    }
    assert_eq!(fate(&well.0), "taken");
    assert!(well.1 < Duration::from_millis(400), "{:?}", well.1);
    assert_eq!(cause(&quiet), "no answer in time");
    // Enough of the answer is there to judge it; the rest is not read.
    let receipt = flooded.unwrap();
    assert_eq!(receipt.answer.unwrap().body.len(), 2048);
    assert!(endless.written() < 32 * 1024 * 1024, "{}", endless.written());
}

#[tokio::test]
async fn what_fails_before_the_first_byte_is_about_the_place() {
    // A port that nobody listens on.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = listener.local_addr().unwrap();
    drop(listener);
    for (url, summary) in [
        (format!("http://{gone}/"), "cannot connect"),
        ("http://no-such-host.invalid/".into(), "the name has no address"),
    ] {
        let verdict = send(&*sender(json!({ "url": url })), message("{}")).await;
        assert_eq!(fate(&verdict), "unreachable", "{verdict:?}");
        assert!(cause(&verdict).starts_with(summary), "{verdict:?}");
    }
    let verdict = verdict_on(Step::Close).await;
    assert_eq!(fate(&verdict), "transient");
    assert!(cause(&verdict).starts_with("the connection broke"), "{verdict:?}");
    let verdict = verdict_on(Step::BreakOff).await;
    assert_eq!(fate(&verdict), "transient");
    assert!(cause(&verdict).contains("HTTP 200 abc"), "{verdict:?}");
}

#[tokio::test]
async fn a_partner_that_takes_the_connection_and_says_nothing_is_unreachable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let sender = sender(json!({ "url": url, "connect_timeout": "200ms", "timeout": "20s" }));
    let verdict = send(&*sender, message("{}")).await;
    assert_eq!(fate(&verdict), "unreachable");
    assert!(cause(&verdict).starts_with("connecting took too long"), "{verdict:?}");
}

#[tokio::test]
async fn of_one_key_nothing_is_sent_behind_a_failure() {
    let server = Server::start(|number, _| answer(if number == 0 { 500 } else { 200 }, "")).await;
    let sender = sender(json!({ "url": server.url("/") }));
    let verdicts = sender.send(&[message("1"), message("2")]).await;
    assert_eq!(verdicts.iter().map(fate).collect::<Vec<_>>(), ["transient", "not sent"]);
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn no_secret_is_seen_in_debug_errors_logs_or_kept_answers() {
    let (log, _guard) = Log::start();
    // The partner repeats the whole request in its answer.
    let server = Server::start(|number, seen| {
        let echo = format!("{:?} {}", seen.headers, String::from_utf8_lossy(&seen.body));
        Step::Answer([200, 500, 401, 400][number % 4], vec![("x-echo", echo.clone())], echo.into())
    })
    .await;
    for auth in [
        json!({ "bearer": { "env": "TOKEN" } }),
        json!({ "basic": { "user": "hub", "password": { "env": "TOKEN" } } }),
        json!({ "header": { "name": "X-Api-Key", "value": { "env": "TOKEN" } } }),
    ] {
        for url in [
            server.url("/v1?token=query-secret"),
            "http://127.0.0.1:1/v1?token=query-secret".into(),
            "http://no-such-host.invalid/v1?token=query-secret".into(),
        ] {
            let sender = sender(json!({
                "url": url, "auth": auth, "query": { "t": "query-secret" },
                "sign": { "standard_webhooks": [{ "env": "FIRST" }] },
            }));
            for _ in 0..4 {
                let verdict = send(&*sender, message("{}")).await;
                assert_secret_free(&format!("{verdict:?}"));
                if let Ok(receipt) = verdict {
                    let answer = receipt.answer.unwrap();
                    assert_secret_free(&String::from_utf8_lossy(&answer.body));
                    assert!(answer.body.windows(8).any(|part| part == b"[secret]"));
                }
            }
            assert_secret_free(&format!("{sender:?}"));
        }
    }
    assert_secret_free(&log.text());
}

#[tokio::test]
async fn a_rule_that_quotes_the_answer_shows_no_secret_either() {
    let server = Server::start(|_, seen| answer(200, format!("{:?}", seen.headers))).await;
    let settings = json!({ "url": server.url("/"), "auth": { "bearer": { "env": "TOKEN" } } });
    let mut context = context(settings);
    context.answer = Arc::new(Rule(|answer| {
        assert!(answer.body.windows(TOKEN.len()).any(|part| part == TOKEN.as_bytes()));
        let quoted = String::from_utf8_lossy(&answer.body).into_owned();
        Some(Judgement::Dead(Cause::with("not what it should be", quoted)))
    }));
    let verdict = send(&*build(context), message("{}")).await;
    assert!(cause(&verdict).contains("Bearer [secret]"), "{verdict:?}");
    assert_secret_free(&format!("{verdict:?}"));
}

#[tokio::test]
async fn a_refusal_of_half_a_request_is_still_no_delivery() {
    // Answers after the head, and closes while the body is on its way.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.read_exact(&mut [0; 512]).await.unwrap();
            let head = b"HTTP/1.1 413 X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            socket.write_all(head).await.unwrap();
        }
    });
    let sender = sender(json!({ "url": url }));
    for _ in 0..5 {
        let verdict = send(&*sender, message("x".repeat(1024 * 1024))).await;
        // Which of the two depends on whether the answer was read before the connection broke.
        assert!(["permanent", "transient"].contains(&fate(&verdict)), "{verdict:?}");
    }
    server.abort();
}
