//! What becomes of messages whose partner is busy, closed, or loses its answer.

use std::{collections::BTreeSet, collections::VecDeque, time::Duration};

use pabal_core::{Clock, SystemClock};
use pabal_tests::{Answer, Hub, Partner, Request};
use serde_json::{Value, json};

use crate::support::{FAST, TOWN, drained, takes_all, town_to};

/// What `messages show` says of the one message with this origin id.
pub(crate) async fn story(hub: &Hub, origin_id: &str) -> Value {
    let found = hub.cli(&["messages", "find", origin_id, "--json"]).await.json();
    let id = found[0]["id"].as_str().unwrap().to_owned();
    hub.cli(&["messages", "show", &id, "--json"]).await.json()["story"].clone()
}

#[tokio::test]
async fn a_destination_that_says_401_is_held_with_one_alert_spends_no_attempt_and_goes_on_by_itself()
 {
    let partner = Partner::start().await;
    partner.otherwise(Answer::status(401));
    let hub = town_to(&partner).start().await;
    hub.hand_over("town/orders", "1", &[], "{}").await;
    // The first, and probes that fail.
    partner.wait_for(4).await;
    let told = story(&hub, "1").await;
    let delivery = &told["summary"]["deliveries"][0];
    assert_eq!((&delivery["state"], &delivery["attempts"]), (&json!("waiting"), &json!(0)));
    let lines = told["log"].as_array().unwrap();
    let all_401 = |line: &Value| line["outcome"] == "unreachable" && line["cause"] == "HTTP 401";
    assert!(lines.iter().all(all_401), "{told:#}");
    let log = hub.log();
    let alerts: Vec<&str> = log.lines().filter(|line| line.contains("alert=true")).collect();
    assert_eq!(alerts.len(), 1, "{log}");
    assert!(alerts[0].contains("welfare/orders") && alerts[0].contains("401"), "{}", alerts[0]);
    assert!(alerts[0].contains("held"), "{}", alerts[0]);
    let status = hub.cli(&["status", "--json"]).await.json();
    assert_eq!(status["destinations"][0]["now"]["health"]["state"], "held");

    partner.otherwise(Answer::status(200));
    partner.wait_for_taken(1).await;
    drained(&hub, &["welfare/orders"]).await;
    hub.wait_for_log("the destination is open again").await;
    assert_eq!(story(&hub, "1").await["summary"]["deliveries"][0]["state"], "delivered");
}

const PER_SECOND: usize = 50;
const MESSAGES: usize = 400;

#[tokio::test]
async fn a_partner_that_allows_fifty_a_second_gets_all_near_one_attempt_each_and_slows_no_other() {
    let (busy, free) = (Partner::start().await, Partner::start().await);
    let mut taken = VecDeque::new();
    busy.decide(move |_| {
        let now = SystemClock.elapsed();
        while taken.front().is_some_and(|at| now - *at > Duration::from_secs(1)) {
            taken.pop_front();
        }
        if taken.len() >= PER_SECOND {
            return Some(Answer::status(429));
        }
        taken.push_back(now);
        None
    });
    let hub = Hub::setup()
        .partner("town", TOWN)
        .partner("busy", &takes_all(&busy, "", ""))
        .partner("free", &takes_all(&free, "", ""))
        .start()
        .await;
    for number in 0..MESSAGES {
        hub.hand_over("town/orders", &number.to_string(), &[], "{}").await;
    }
    free.wait_for_taken(MESSAGES).await;
    assert!(busy.taken().len() < MESSAGES, "the other one was not waited for");
    let all = busy.wait_for_taken(MESSAGES).await;
    drained(&hub, &["busy/orders", "free/orders"]).await;
    let ids: BTreeSet<_> = all.iter().filter(|r| r.taken).map(Request::message_id).collect();
    assert_eq!(ids.len(), MESSAGES);
    let per_message = busy.requests().len() as f64 / MESSAGES as f64;
    println!("{per_message} requests per message");
    assert!(per_message < 1.5, "{per_message}");
    assert_eq!(free.requests().len(), MESSAGES);
}

#[tokio::test]
async fn the_same_id_with_other_content_is_a_409_and_stands_before_the_operator_with_both_fingerprints()
 {
    let partner = Partner::start().await;
    let hub = town_to(&partner).start().await;
    let (first, second) = (r#"{"id": "A-1", "amount": 100}"#, r#"{"id": "A-1", "amount": 200}"#);
    assert_eq!(hub.hand_over("town/orders", "A-1", &[], first).await.status, 202);
    let reply = hub.hand_over("town/orders", "A-1", &[], second).await.expect_status(409);
    assert_eq!(reply.header("content-type"), Some("application/problem+json"));
    let problem = reply.json();
    assert_eq!(
        (&problem["status"], &problem["type"]),
        (&json!(409), &json!("urn:pabal:problem:conflict"))
    );
    // The first one holds the id, and its repeat is still one.
    assert_eq!(hub.hand_over("town/orders", "A-1", &[], first).await.status, 200);

    let dead = crate::support::dead_letters(&hub).await;
    assert_eq!(dead.len(), 1);
    assert_eq!((&dead[0]["kind"], &dead[0]["reason"]), (&json!("source"), &json!("conflict")));
    assert_eq!(
        (&dead[0]["endpoint"], &dead[0]["origin_id"]),
        (&json!("town/orders"), &json!("A-1"))
    );
    let shown =
        hub.cli(&["dead-letters", "show", &dead[0]["id"].to_string()]).await.ok().to_owned();
    for body in [first, second] {
        let fingerprint = pabal_core::Fingerprint::of(body.as_bytes()).to_string();
        let told = dead[0]["detail"].as_str().unwrap();
        assert!(told.contains(&fingerprint), "{fingerprint} in {told}");
        assert!(shown.contains(&fingerprint[..12]), "{shown}");
    }
    drained(&hub, &["welfare/orders"]).await;
    let bodies: Vec<String> = partner.requests().iter().map(Request::text).collect();
    assert_eq!(bodies, [first], "the second is not applied");
}

#[tokio::test]
async fn two_partners_and_two_routes_of_one_may_use_the_same_id() {
    let partner = Partner::start().await;
    let two = "name = \"P\"\n[source.a.rest]\nauth = \"none\"\n[source.b.rest]\nauth = \"none\"\n";
    let one = "name = \"Q\"\n[source.a.rest]\nauth = \"none\"\n";
    let hub = Hub::setup()
        .partner("p", two)
        .partner("q", one)
        .partner("welfare", &takes_all(&partner, FAST, ""))
        .start()
        .await;
    let sources = ["p/a", "p/b", "q/a"];
    let mut receipts = Vec::new();
    for status in [202, 200] {
        for source in sources {
            // All say that they come from the same place, which must not matter.
            let headers = [("ce-source", "/same")];
            let body = format!("{{\"from\": \"{source}\"}}");
            let reply = hub.hand_over(source, "1", &headers, body).await.expect_status(status);
            receipts.push(reply.json()["id"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(receipts[..3], receipts[3..], "a repeat sees its own receipt");
    assert_eq!(receipts.iter().collect::<BTreeSet<_>>().len(), 3);
    let requests = partner.wait_for_taken(3).await;
    for (source, id) in sources.iter().zip(&receipts) {
        let of: Vec<_> = requests.iter().filter(|r| r.message_id() == Some(id)).collect();
        assert_eq!(of.len(), 1);
        assert_eq!(of[0].text(), format!("{{\"from\": \"{source}\"}}"));
    }
}

#[tokio::test]
async fn zero_characters_and_twenty_digit_numbers_arrive_byte_for_byte() {
    let partner = Partner::start().await;
    // With a condition, so that the body is read on the way.
    let file = takes_all(&partner, &format!("when = '.memo != 1'\n{FAST}"), "");
    let structured = takes_all(&partner, FAST, "mode = \"structured\"");
    let hub = Hub::setup()
        .partner("town", TOWN)
        .partner("welfare", &file)
        .partner("tax", &structured)
        .start()
        .await;
    let bodies = [
        r#"{"memo":"a\u0000b"}"#,
        r#"{ "id":9007199254740993, "ref":8202522731445525542,"n":12345678901234567890123, "x":1.0,"y":0.10,"z":1e400}"#,
        "{\"name\":\"\\ud64d\\uae38\\ub3d9 홍길동\",\"b\":1,\"a\":2}\n",
    ];
    for (number, body) in bodies.iter().enumerate() {
        let reply = hub.hand_over("town/orders", &number.to_string(), &[], *body).await;
        assert_eq!(reply.status, 202, "{}", reply.text());
    }
    let raw: &[u8] = b"a\0b\xff\xfe\r\n\x1b";
    let kind = [("content-type", "application/octet-stream")];
    assert_eq!(hub.hand_over("town/orders", "raw", &kind, raw).await.status, 202);
    drained(&hub, &["welfare/orders", "tax/orders"]).await;
    let requests = partner.requests();
    let of = |mode: &str, id: &str| -> &Request {
        let structured = mode == "structured";
        let in_body = format!("\"originid\":\"{id}\"");
        let fits = |request: &&Request| {
            let in_headers = request.header("ce-originid");
            if structured {
                in_headers.is_none() && request.text().contains(&in_body)
            } else {
                in_headers == Some(id)
            }
        };
        requests.iter().find(fits).unwrap_or_else(|| panic!("{mode} {id}"))
    };
    for (number, body) in bodies.iter().enumerate() {
        let number = number.to_string();
        assert_eq!(of("binary", &number).text(), *body);
        let event = of("structured", &number).text();
        assert!(event.contains(body.trim()), "{event}");
    }
    assert_eq!(of("binary", "raw").body, raw);
    assert_eq!(of("structured", "raw").json()["data_base64"], "YQBi//4NChs=");
    // And the operator sees what came.
    let found = hub.cli(&["messages", "find", "raw", "--json"]).await.json();
    let id = found[0]["id"].as_str().unwrap();
    let shown = hub.cli(&["messages", "show", id, "--body", "--json"]).await.json();
    assert_eq!(shown["content"]["body"], "YQBi//4NChs=");
}

#[tokio::test]
async fn a_message_whose_answer_was_lost_comes_again_with_the_same_id_and_bytes() {
    let partner = Partner::start().await;
    partner.next([Answer::close_after(), Answer::status(503), Answer::close_after()]);
    let hub = town_to(&partner).start().await;
    let body = r#"{"amount":1.0,"name":"\ud64d\uae38\ub3d9","z":1,"a":2}"#;
    hub.hand_over("town/orders", "1", &[("ce-partitionkey", "k")], body).await;
    let behind = r#"{"behind": true}"#;
    hub.hand_over("town/orders", "2", &[("ce-partitionkey", "k")], behind).await;
    drained(&hub, &["welfare/orders"]).await;
    let requests = partner.requests();
    assert_eq!(requests.len(), 5);
    let id = requests[0].message_id();
    for request in &requests[..4] {
        assert_eq!((request.message_id(), request.text().as_str()), (id, body));
    }
    assert_eq!(requests[4].text(), behind, "it waited for the one ahead of its key");
    let told = story(&hub, "1").await;
    assert_eq!(told["summary"]["deliveries"][0]["state"], "delivered");
    let outcomes: Vec<&Value> =
        told["log"].as_array().unwrap().iter().map(|line| &line["outcome"]).collect();
    assert_eq!(outcomes, ["transient", "transient", "transient", "delivered"]);
}
