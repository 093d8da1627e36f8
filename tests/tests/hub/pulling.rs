//! Partners that fetch their messages, by HTTP, with a program no one here wrote in between.

use std::{collections::BTreeMap, fs, path::Path};

use pabal_tests::{Hub, Nodes, Reply, client, python, repository, until};
use serde_json::{Value, json};

use crate::support::{TOWN, dead_letters, drained};

const PULLER: &str = include_str!("../../python/puller.py");
const TOKEN: &str = "clinic-token";

/// `clinic/orders` is fetched from and hands over as well.
fn clinic(more: &str) -> String {
    format!(
        "name = \"Clinic\"\n[destination.orders]\ntakes = [\"*\"]\n\
         retry = {{ attempts = 100, first = \"20ms\", max = \"200ms\" }}\n\
         [destination.orders.pull]\nauth = {{ bearer = {{ env = \"CLINIC_TOKEN\" }} }}\n{more}\n\
         [source.orders.rest]\nauth = {{ bearer = {{ env = \"CLINIC_TOKEN\" }} }}\n"
    )
}

async fn call(hub: &Hub, method: &str, path: &str, token: &str, said: Option<Value>) -> Reply {
    let url = hub.url(&format!("/in/clinic/orders/{path}"));
    let request = client().request(method.parse().unwrap(), url);
    let request = match token {
        "" => request,
        token => request.header("authorization", format!("Bearer {token}")),
    };
    let request = match said {
        Some(said) => request.body(said.to_string()),
        None => request,
    };
    let answer = request.send().await.unwrap();
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    Reply { status, headers, body: answer.bytes().await.unwrap() }
}

async fn pull(hub: &Hub, wishes: &str) -> Vec<Value> {
    let reply = call(hub, "GET", &format!("pull{wishes}"), TOKEN, None).await;
    if reply.status == 204 {
        return Vec::new();
    }
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("content-type"), Some("application/cloudevents-batch+json"));
    reply.json().as_array().unwrap().clone()
}

async fn settle(hub: &Hub, verb: &str, events: &[Value], more: Value) -> Vec<String> {
    let mut said =
        json!({ "tokens": events.iter().map(|it| &it["pulltoken"]).collect::<Vec<_>>() });
    said.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let reply = call(hub, "POST", verb, TOKEN, Some(said)).await;
    let results = reply.expect_status(200).json();
    let results = results["results"].as_array().unwrap().iter();
    results.map(|it| it["result"].as_str().unwrap().to_owned()).collect()
}

fn origins(events: &[Value]) -> Vec<&str> {
    events.iter().map(|it| it["originid"].as_str().unwrap()).collect()
}

async fn hand_over(hub: &Hub, id: &str, key: &str, body: &str) {
    let headers = [("ce-partitionkey", key)];
    hub.hand_over("town/orders", id, &headers, body.to_owned()).await.expect_status(202);
}

async fn hub(more: &str) -> Hub {
    let setup = Hub::setup().partner("town", TOWN).partner("clinic", &clinic(more));
    setup.variable("CLINIC_TOKEN", TOKEN).start().await
}

/// Runs readers on one book until it is full, each again as often as it is killed. How often.
async fn read_all(book: &Path, count: usize, crash: &str, urls: &[String], readers: u64) -> usize {
    let mut running = tokio::task::JoinSet::new();
    for reader in 0..readers {
        let (book, urls, crash) = (book.to_owned(), urls.to_vec(), crash.to_owned());
        running.spawn(async move {
            let book = book.to_str().unwrap();
            for life in 0.. {
                let (count, seed) = (count.to_string(), (reader * 1_000 + life).to_string());
                let mut arguments = vec![book, &count, &crash, &seed];
                arguments.extend(urls.iter().map(String::as_str));
                let script = format!("import os\nos.environ['PULL_TOKEN'] = '{TOKEN}'\n{PULLER}");
                let ran = python(&script, &arguments, b"").await;
                if ran.code == 0 {
                    return usize::try_from(life).unwrap();
                }
                assert_eq!(ran.code, -1, "killed, and nothing else: {}", ran.stderr);
            }
            0
        });
    }
    running.join_all().await.iter().sum()
}

/// What a book has, in the order it was taken.
async fn taken(book: &Path) -> Vec<Value> {
    let shown = python(PULLER, &[book.to_str().unwrap(), "show"], b"").await;
    shown.ok().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Each once in effect, with its bytes, and each key in its order. How many came more than once.
fn complete(taken: &[Value], keys: usize, of_each: usize) -> usize {
    assert_eq!(taken.len(), keys * of_each);
    let mut by_key = BTreeMap::<&str, Vec<&str>>::new();
    for it in taken {
        let (key, origin) = (it["key"].as_str().unwrap(), it["origin"].as_str().unwrap());
        by_key.entry(key).or_default().push(origin);
        assert_eq!(it["body"], body(origin), "its bytes");
    }
    for (key, origins) in by_key {
        let in_order: Vec<_> = (0..of_each).map(|number| format!("{key}-{number}")).collect();
        assert_eq!(origins, in_order);
    }
    taken.iter().filter(|it| it["seen"].as_u64().unwrap() > 1).count()
}

fn body(origin: &str) -> String {
    format!("{{\"order\":\"{origin}\",\"amount\":12.5}}")
}

async fn hand_all_over(hub: &Hub, keys: usize, of_each: std::ops::Range<usize>) {
    for number in of_each {
        for key in 0..keys {
            let (key, origin) = (format!("k{key}"), format!("k{key}-{number}"));
            hand_over(hub, &origin, &key, &body(&origin)).await;
        }
    }
}

#[tokio::test]
async fn readers_and_a_hub_that_are_killed_at_any_moment_lose_nothing_and_take_nothing_twice() {
    let mut hub = hub("lease = \"1s\"").await;
    let folder = tempfile::tempdir().unwrap();
    let book = folder.path().join("book.db");
    let url = hub.url("/in/clinic/orders");
    hand_all_over(&hub, 6, 0..4).await;
    let reading = {
        let (book, urls) = (book.clone(), vec![url]);
        tokio::spawn(async move { read_all(&book, 48, "0.15", &urls, 2).await })
    };
    for death in 1..=3 {
        let enough = async || {
            let status = hub.api_get("/api/v1/status").await;
            let waiting = status["destinations"][0]["waiting"].as_u64()?;
            (waiting <= 24 - 4 * death).then_some(())
        };
        until("some of them taken", enough).await;
        hub.kill9().await;
        hub.start().await;
    }
    hand_all_over(&hub, 6, 4..8).await;
    let deaths = reading.await.unwrap();
    drained(&hub, &["clinic/orders"]).await;
    let repeats = complete(&taken(&book).await, 6, 8);
    assert!(deaths > 0 && repeats > 0, "{deaths} readers killed, {repeats} repeats");
    assert!(dead_letters(&hub).await.is_empty());
}

#[tokio::test]
async fn two_nodes_serve_readers_that_fetch_at_one_and_acknowledge_at_the_other() {
    let mut nodes = Nodes::start(2, |hub| {
        let hub = hub.partner("town", TOWN).partner("clinic", &clinic("lease = \"1s\""));
        hub.variable("CLINIC_TOKEN", TOKEN).hub_toml("lease = \"2s\"")
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let book = folder.path().join("book.db");
    let urls: Vec<_> = nodes.iter().map(|node| node.url("/in/clinic/orders")).collect();
    let reading = {
        let book = book.clone();
        tokio::spawn(async move { read_all(&book, 60, "0.05", &urls, 3).await })
    };
    hand_all_over(nodes.node(0), 6, 0..5).await;
    nodes.node_mut(0).kill9().await;
    hand_all_over(nodes.node(1), 6, 5..8).await;
    nodes.node_mut(0).start().await;
    hand_all_over(nodes.node(0), 6, 8..10).await;
    reading.await.unwrap();
    drained(nodes.node(1), &["clinic/orders"]).await;
    complete(&taken(&book).await, 6, 10);
    assert!(dead_letters(nodes.node(1)).await.is_empty());
    // Nobody holds a lane of it, and nothing was sent.
    for node in &nodes {
        let status = node.api_get("/api/v1/status").await;
        let now = &status["destinations"][0]["now"];
        assert_eq!((&now["fetched"], &now["lanes"]), (&json!(true), &json!(0)), "{status:#}");
    }
    // Who waits at one node hears at once of what another one took.
    let waiting = tokio::spawn({
        let url = nodes.node(0).url("/in/clinic/orders/pull?wait=60");
        let request = client().get(url).header("authorization", format!("Bearer {TOKEN}"));
        async move { request.send().await.unwrap().bytes().await.unwrap() }
    });
    hand_over(nodes.node(1), "last", "k", "{}").await;
    let got: Value = serde_json::from_slice(&waiting.await.unwrap()).unwrap();
    assert_eq!(origins(got.as_array().unwrap()), ["last"]);
}

#[tokio::test]
async fn only_who_shows_the_partners_secret_learns_or_changes_anything() {
    let hub = hub("").await;
    hand_over(&hub, "1", "k", "{\"secret\": 1}").await;
    let nothing = json!({ "tokens": [] });
    for token in ["", "another-token", "clinic-tokenx"] {
        for (method, path, said) in [
            ("GET", "pull", None),
            ("POST", "ack", Some(nothing.clone())),
            ("POST", "nack", Some(nothing.clone())),
        ] {
            let reply = call(&hub, method, path, token, said).await.expect_status(401);
            assert!(!reply.text().contains("secret\": 1"), "{}", reply.text());
            assert!(reply.header("www-authenticate").is_some());
        }
    }
    let nobody = client().get(hub.url("/in/nobody/orders/pull")).send().await.unwrap();
    let nowhere = client().get(hub.url("/in/clinic/nothing/pull")).send().await.unwrap();
    assert_eq!(
        (nobody.status(), nowhere.status()),
        (404.try_into().unwrap(), 404.try_into().unwrap())
    );
    assert_eq!(nobody.text().await.unwrap(), nowhere.text().await.unwrap());
    // Nothing was handed out to any of them.
    let events = pull(&hub, "").await;
    assert_eq!((origins(&events), &events[0]["pullattempt"]), (vec!["1"], &json!(1)));
    // The source of the same name is another way.
    let auth = format!("Bearer {TOKEN}");
    let reply = hub.hand_over("clinic/orders", "2", &[("authorization", &auth)], "{}").await;
    assert_eq!(reply.status, 202);
    assert!(hub.log().contains("a caller was turned away"));
}

#[tokio::test]
async fn a_refused_message_is_seen_replayed_and_fetched_again_and_a_pause_is_told() {
    let mut hub = hub("").await;
    for (id, key) in [("1", "a"), ("2", "a"), ("3", "b")] {
        hand_over(&hub, id, key, "{ \"n\": 1.0 }").await;
    }
    let events = pull(&hub, "?max=10").await;
    assert_eq!(origins(&events), ["1", "3"], "of a key one at a time");
    assert_eq!(events[0]["data"], json!({ "n": 1.0 }));
    let never = json!({ "permanent": true, "reason": "no such patient" });
    assert_eq!(settle(&hub, "nack", &events[..1], never).await, ["done"]);
    assert_eq!(settle(&hub, "ack", &events, json!({})).await, ["done", "done"], "after all");
    assert_eq!(settle(&hub, "ack", &events, json!({})).await, ["gone", "gone"]);
    let events = pull(&hub, "").await;
    assert_eq!(origins(&events), ["2"]);
    let never = json!({ "permanent": true, "reason": "no such patient" });
    assert_eq!(settle(&hub, "nack", &events, never).await, ["done"]);
    let letter = dead_letters(&hub).await.remove(0);
    assert_eq!(
        (&letter["reason"], &letter["detail"]),
        (&json!("refused"), &json!("no such patient"))
    );
    hub.cli(&["dead-letters", "replay", &letter["id"].to_string()]).await.ok();
    let again = pull(&hub, "?wait=30").await;
    assert_eq!((&again[0]["id"], origins(&again)), (&events[0]["id"], vec!["2"]));

    hub.cli(&["pause", "clinic/orders"]).await.ok();
    let paused = until("the pause", async || {
        let reply = call(&hub, "GET", "pull", TOKEN, None).await;
        (reply.status == 503).then_some(reply)
    })
    .await;
    assert_eq!(
        (paused.header("retry-after"), &paused.json()["type"]),
        (Some("30"), &json!("urn:pabal:problem:paused"))
    );
    assert_eq!(settle(&hub, "ack", &again, json!({})).await, ["done"], "acks are taken");
    hub.cli(&["resume", "clinic/orders"]).await.ok();
    drained(&hub, &["clinic/orders"]).await;
    let status = hub.cli(&["status"]).await;
    assert!(status.ok().contains("the partner fetches"), "{}", status.stdout);
    let metrics = hub.metrics().await;
    let labels = [("destination", "clinic/orders"), ("outcome", "delivered")];
    assert_eq!(metrics.value("pabal_attempts_total", &labels), Some(3.0));

    // A stop lets go of who waits.
    until("the resume", async || {
        (call(&hub, "GET", "pull", TOKEN, None).await.status == 204).then_some(())
    })
    .await;
    let waiting = tokio::spawn({
        let url = hub.url("/in/clinic/orders/pull?wait=60");
        let request = client().get(url).header("authorization", format!("Bearer {TOKEN}"));
        async move { request.send().await.unwrap().status().as_u16() }
    });
    let in_hand = hub.url("/in/clinic/orders/pull");
    assert_eq!(
        client().head(in_hand).send().await.unwrap().status(),
        405,
        "it would take for nobody"
    );
    assert!(hub.terminate().await.success());
    assert_eq!(waiting.await.unwrap(), 204);
}

#[tokio::test]
async fn one_message_at_a_time_comes_with_its_bytes_and_its_envelope_in_headers() {
    let hub = hub("mode = \"binary\"").await;
    let headers = [
        ("content-type", "text/plain; charset=euc-kr"),
        ("ce-partitionkey", "홍길동"),
        ("ce-pulltoken", "of-the-origin"),
        ("ce-tenant", "x"),
    ];
    let bytes = &b"\xb0\xa1\0\xff\r\n"[..];
    hub.hand_over("town/orders", "1", &headers, bytes).await.expect_status(202);
    hand_over(&hub, "2", "k", "{}").await;
    let reply = call(&hub, "GET", "pull?max=9", TOKEN, None).await.expect_status(200);
    assert_eq!(&reply.body[..], bytes);
    assert_eq!(reply.header("content-type"), Some("text/plain; charset=euc-kr"));
    assert_eq!(reply.header("ce-partitionkey"), Some("%ED%99%8D%EA%B8%B8%EB%8F%99"));
    assert_eq!((reply.header("ce-tenant"), reply.header("ce-pullattempt")), (Some("x"), Some("1")));
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    let token = reply.header("ce-pulltoken").unwrap();
    assert_ne!(token, "of-the-origin");
    let said = json!({ "tokens": [token, "nonsense"] });
    let results = call(&hub, "POST", "ack", TOKEN, Some(said)).await.expect_status(200).json();
    assert_eq!(results["results"][0]["result"], "done", "{results}");
    assert_eq!(results["results"][1], json!({ "token": "nonsense", "result": "unreadable" }));
}

#[tokio::test]
async fn the_guide_works_as_written() {
    let guide = fs::read_to_string(repository("docs/guides/pull.md")).unwrap();
    let block = |first: &str| {
        let (_, rest) = guide.split_once(&format!("\n{first}")).unwrap();
        let (block, _) = rest.split_once("\n```").unwrap();
        format!("{first}{block}")
    };
    let partner = block("# partners/clinic.toml");
    let hub = Hub::setup()
        .partner("town", TOWN)
        .partner("clinic", &partner)
        .variable("CLINIC_TOKEN", TOKEN)
        .start()
        .await;
    hub.cli(&["check"]).await.ok();
    for (id, key) in [("R-1", "P-17"), ("R-2", "P-18"), ("R-3", "P-19")] {
        let headers = [("ce-partitionkey", key), ("ce-type", "referral.made")];
        hub.hand_over("town/orders", id, &headers, "{\"patient\": \"P-17\"}").await;
    }
    let listener = hub.url("");
    let shell = async |words: &str| {
        let words = words.replace("http://127.0.0.1:8080", &listener);
        let script = format!("set -e; export CLINIC_TOKEN={TOKEN}\n{words}");
        pabal_tests::run("bash", &["-c", &script], b"").await
    };
    let fetch = block("at=");
    let at = fetch.lines().next().unwrap().to_owned();
    let shown: Value = serde_json::from_str(&block("[{\"specversion\"")).unwrap();
    let events = shell(&fetch).await.json();
    let event = &events[0];
    for (name, value) in shown[0].as_object().unwrap() {
        assert!(event.get(name).is_some(), "{name}");
        if matches!(name.as_str(), "type" | "partitionkey" | "data" | "datacontenttype") {
            assert_eq!(&event[name], value);
        }
    }
    let settle: Vec<_> = guide.lines().filter(|line| line.contains("\"tokens\": [\"")).collect();
    assert_eq!(settle.len(), 3, "done, later, never");
    for (settle, event) in settle.iter().zip(events.as_array().unwrap()) {
        let token = event["pulltoken"].as_str().unwrap();
        let words = format!("{at}\n{}", settle.replace("AQAA…", token));
        let results = shell(&words).await.json();
        assert_eq!(results["results"][0]["result"], "done", "{settle}");
    }
    // One is done, one comes again later, one is for an operator.
    let empty = shell(&fetch.replace("&wait=20", "")).await;
    assert_eq!(empty.ok(), "");
    assert_eq!(dead_letters(&hub).await.len(), 1);
}
