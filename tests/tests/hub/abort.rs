//! A message that ends the process.

use std::{os::unix::process::ExitStatusExt, path::Path, process::ExitStatus};

use pabal_tests::{Hub, until};
use serde_json::Value;

use crate::support::{TOWN, dead_letters, drained};

const LABELS: [(&str, &str); 1] = [("endpoint", "welfare/orders")];
const SIGABRT: i32 = 6;

/// Key and body of everything that reached the destination.
fn book(path: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    lines.map(|line| (text(&line["key"]), text(&line["body"]))).collect()
}

/// `None`: it lives and has set a message aside.
async fn ends_or_sets_aside(hub: &mut Hub) -> Option<ExitStatus> {
    until("the hub's end, or a dead letter", async || {
        if let Some(status) = hub.has_ended() {
            return Some(Some(status));
        }
        let metrics = hub.try_metrics().await.ok()?;
        (metrics.value("pabal_dead_letters", &LABELS) == Some(1.0)).then_some(None)
    })
    .await
}

#[tokio::test]
async fn a_message_that_aborts_the_process_is_set_aside_after_three_careful_attempts_and_the_rest_goes_on()
 {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("book.jsonl");
    let welfare = format!(
        "name = \"Welfare\"\n[destination.orders]\ntakes = [\"*\"]\n\
         [destination.orders.abort]\non = \"poison\"\nbook = \"{}\"\n",
        path.display()
    );
    let mut hub = Hub::setup()
        .binary(env!("CARGO_BIN_EXE_hub_with_abort"))
        .partner("town", TOWN)
        .partner("welfare", &welfare)
        .start()
        .await;
    // All of it waits before the first goes, so that the guilty one has company in every batch.
    hub.cli(&["pause", "welfare/orders"]).await.ok();
    let mut handed_over = Vec::new();
    for round in 1..=3 {
        for key in ["a", "b", "c", "guilty", "d", "e", "f"] {
            let is_poison = key == "guilty" && round == 2;
            let body = if is_poison { "poison".to_owned() } else { format!("{key} {round}") };
            handed_over.push((key, body));
        }
    }
    handed_over.push(("guilty", "guilty 4".to_owned()));
    for (key, body) in &handed_over {
        let headers = [("ce-partitionkey", *key)];
        let reply = hub.hand_over("town/orders", body, &headers, body.clone()).await;
        assert_eq!(reply.status, 202, "{}", reply.text());
    }
    // The command may see the hub die under it.
    hub.cli(&["resume", "welfare/orders"]).await;

    let mut deaths = 0;
    while let Some(status) = ends_or_sets_aside(&mut hub).await {
        assert_eq!(status.signal(), Some(SIGABRT), "{status}");
        deaths += 1;
        assert!(deaths <= 4, "it is still at large");
        hub.spawn();
    }
    assert_eq!(deaths, 4, "once with others, and three times noted before");

    let dead = dead_letters(&hub).await;
    assert_eq!(dead.len(), 1, "nobody else is blamed: {dead:?}");
    assert_eq!(dead[0]["reason"], "killed-process");
    assert_eq!(dead[0]["key"], "guilty");
    assert_eq!(dead[0]["holds"], "key");
    let groups = hub.cli(&["dead-letters", "list", "--json"]).await.json();
    assert_eq!((&groups[0]["reason"], &groups[0]["count"]), (&"killed-process".into(), &1.into()));
    let number = dead[0]["id"].to_string();
    let shown = hub.cli(&["dead-letters", "show", &number, "--body", "--json"]).await.json();
    assert_eq!(shown["content"]["body"], "cG9pc29u", "`poison` in Base64");

    // Other keys go on by themselves; its own waits for the operator.
    let labels = [("destination", "welfare/orders")];
    hub.wait_for_metric("pabal_outbox_waiting", &labels, |waiting| waiting == 2.0).await;
    hub.wait_for_metric("pabal_outbox_held", &labels, |held| held == 2.0).await;
    let behind = ["guilty 3", "guilty 4"];
    assert!(book(&path).iter().all(|(_, body)| !behind.contains(&body.as_str())));
    hub.cli(&["dead-letters", "discard", &number, "--yes", "--why", "it kills"]).await.ok();
    drained(&hub, &["welfare/orders"]).await;
    assert_eq!(dead_letters(&hub).await.len(), 0);

    let book = book(&path);
    for key in ["a", "b", "c", "d", "e", "f", "guilty"] {
        let mut came: Vec<&str> = Vec::new();
        for (_, body) in book.iter().filter(|(of, _)| of == key) {
            if !came.contains(&body.as_str()) {
                came.push(body);
            }
        }
        let expected: Vec<&str> = handed_over
            .iter()
            .filter(|(of, body)| *of == key && body != "poison")
            .map(|(_, body)| body.as_str())
            .collect();
        assert_eq!(came, expected, "{key}");
    }
    assert!(hub.terminate().await.success());
}
