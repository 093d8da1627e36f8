//! Nodes of one hub on one PostgreSQL database: who delivers, who is told, who may be asked.

use std::{collections::BTreeSet, fs};

use pabal_tests::{Answer, Hub, Nodes, Partner, until};
use serde_json::{Value, json};

use crate::support::{TOWN, dead_letters, drained, takes_all};

const LANES: &str = "lanes = 4\nretry = { attempts = 12, first = \"20ms\", max = \"200ms\" }\n";

/// So many nodes, from `town/orders` to `welfare/orders` over four lanes.
async fn nodes(count: u8, welfare: &Partner) -> Nodes {
    let file = takes_all(welfare, LANES, "");
    Nodes::start(count, |hub| {
        hub.partner("town", TOWN).partner("welfare", &file).hub_toml("lease = \"2s\"")
    })
    .await
}

async fn hand_over(node: &Hub, id: &str, key: &str) {
    let reply = node.hand_over("town/orders", id, &[("ce-partitionkey", key)], "{}").await;
    assert_eq!(reply.status, 202, "{}", reply.text());
}

#[tokio::test]
async fn what_one_node_takes_is_delivered_once_by_whichever_node_holds_its_lane() {
    let partner = Partner::start().await;
    let nodes = nodes(2, &partner).await;
    nodes.wait_for_lanes("welfare/orders", 4, true).await;
    for number in 0..40 {
        // Two of each key, at different nodes.
        hand_over(nodes.node(number % 2), &number.to_string(), &format!("k{}", number / 2)).await;
    }
    let requests = partner.wait_for_taken(40).await;
    drained(nodes.node(0), &["welfare/orders"]).await;
    assert_eq!(partner.requests().len(), 40, "each once");
    let ids: BTreeSet<_> = requests.iter().map(|request| request.message_id()).collect();
    assert_eq!(ids.len(), 40);
    for key in 0..20 {
        let key = format!("k{key}");
        let of_key = requests.iter().filter(|it| it.header("ce-partitionkey") == Some(&*key));
        let numbers: Vec<u32> =
            of_key.map(|it| it.header("ce-originid").unwrap().parse().unwrap()).collect();
        assert!(numbers.len() == 2 && numbers.is_sorted(), "{key}: {numbers:?}");
    }
    let mut delivered = 0.0;
    for node in &nodes {
        let count = node.metrics().await.value("pabal_delivery_seconds_count", &[]).unwrap();
        assert!(count > 0.0, "both had some");
        delivered += count;
    }
    assert_eq!(delivered, 40.0);
}

#[tokio::test]
async fn a_command_without_a_hub_works_through_the_store_and_a_running_node_heeds_it() {
    let partner = Partner::start().await;
    partner.next([Answer::status(404)]);
    let mut nodes = nodes(2, &partner).await;
    // From here on nothing runs where the commands are given.
    assert!(nodes.node_mut(1).terminate().await.success());
    let (running, desk) = (nodes.node(0), nodes.node(1));
    hand_over(running, "1", "a").await;
    let dead = [("endpoint", "welfare/orders")];
    running.wait_for_metric("pabal_dead_letters", &dead, |dead| dead == 1.0).await;

    let paused = desk.cli(&["pause", "welfare/orders", "--why", "their move"]).await;
    assert!(paused.ok().contains("is paused"), "{}", paused.stdout);
    until("the running node to be paused", async || {
        let status = running.api_get("/api/v1/status").await;
        (status["destinations"][0]["now"]["health"]["state"] == "paused").then_some(())
    })
    .await;
    hand_over(running, "2", "b").await;
    let letter = dead_letters(desk).await[0]["id"].to_string();
    let replayed = desk.cli(&["dead-letters", "replay", &letter, "--json"]).await.json();
    assert_eq!(replayed["queued"], 1, "{replayed}");
    let sent = desk.cli_with_input(&["send", "order.placed", "--key", "c", "-"], b"{}").await;
    assert_eq!(sent.ok().trim().len(), 36, "{}", sent.stdout);
    let status = desk.cli(&["status"]).await;
    assert!(status.ok().contains("their move"), "{}", status.stdout);
    assert_eq!(partner.requests().len(), 1, "all of it waits");

    desk.cli(&["resume", "welfare/orders"]).await.ok();
    partner.wait_for_taken(3).await;
    drained(running, &["welfare/orders"]).await;
    let story = partner.requests();
    let again = story.iter().filter(|request| request.message_id() == story[0].message_id());
    assert_eq!(again.count(), 2, "replayed with its id");
}

#[tokio::test]
async fn status_shows_the_nodes_and_what_each_holds_and_tells_when_their_configurations_differ() {
    let partner = Partner::start().await;
    let mut nodes = nodes(2, &partner).await;
    nodes.wait_for_lanes("welfare/orders", 4, true).await;
    let told = nodes.node(0).api_get("/api/v1/status").await;
    let all = told["nodes"].as_array().unwrap();
    let of = |key: &str| all.iter().map(|node| node[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("node"), ["a", "b"], "{told:#}");
    assert_eq!((of("this"), of("live")), (vec![json!(true), json!(false)], vec![json!(true); 2]));
    assert_eq!(of("differs"), vec![json!(false); 2]);
    assert_eq!(all[0]["plan"].as_str().unwrap().len(), 64);
    let lanes: u64 = of("lanes").iter().map(|lanes| lanes.as_u64().unwrap()).sum();
    assert_eq!(lanes, 4);
    let here = &told["destinations"][0]["now"];
    assert_eq!(here["lanes_of"], 4);
    let text = nodes.node(0).cli(&["status"]).await;
    assert!(text.ok().contains(&format!("{} of 4", here["lanes"])), "{}", text.stdout);

    // The second is restarted with another configuration.
    let file = nodes.node(1).config().join("partners/town.toml");
    fs::write(&file, TOWN.replace("Town", "Old town")).unwrap();
    nodes.node_mut(1).restart().await;
    for node in &nodes {
        node.wait_for_metric("pabal_plan_differs", &[], |nodes| nodes == 1.0).await;
        node.wait_for_log("nodes run another configuration than this one").await;
        let told = node.api_get("/api/v1/status").await;
        let differ = told["nodes"].as_array().unwrap().iter().filter(|it| it["differs"] == true);
        let names: Vec<&Value> = differ.map(|node| &node["this"]).collect();
        assert_eq!(names, [&json!(false)], "{told:#}");
        let text = node.cli(&["status"]).await;
        assert!(text.ok().contains("runs another configuration"), "{}", text.stdout);
    }
    fs::write(&file, TOWN).unwrap();
    nodes.node_mut(1).restart().await;
    for node in &nodes {
        node.wait_for_metric("pabal_plan_differs", &[], |nodes| nodes == 0.0).await;
    }
    // One that ended without a word is shown until its lease is over and the others have seen it.
    nodes.node_mut(1).kill9().await;
    nodes.wait_for_lanes("welfare/orders", 4, true).await;
    until("one node", async || {
        let told = nodes.node(0).api_get("/api/v1/status").await;
        (told["nodes"].as_array().unwrap().len() == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn two_nodes_of_one_folder_have_files_of_their_own_and_a_command_asks_the_one_that_answers() {
    let partner = Partner::start().await;
    let mut nodes = nodes(1, &partner).await;
    let ports = [pabal_tests::free_port(), pabal_tests::free_port()];
    let second = |name: &str| {
        format!(
            "node = \"{name}\"\nhttp = {{ listen = \"127.0.0.1:{}\" }}\n\
             admin = {{ listen = \"127.0.0.1:{}\" }}\n",
            ports[0], ports[1]
        )
    };
    let overlay = nodes.node(0).config().join("hub.second.toml");
    fs::write(&overlay, second("a")).unwrap();
    let twice = nodes.node(0).cli(&["run", "--profile", "second"]).await;
    twice.exits_with(1);
    assert!(twice.stderr.contains("node = "), "says what to do: {}", twice.stderr);
    let of_first = async |nodes: &Nodes, arguments: &[&str]| {
        let told = nodes.node(0).cli(&[&["status", "--json"], arguments].concat()).await.json();
        let nodes = told["nodes"].as_array().unwrap().clone();
        let this: Vec<_> = nodes.iter().filter(|node| node["this"] == true).cloned().collect();
        this.first().map(|node| node["node"].as_str().unwrap().to_owned())
    };
    assert_eq!(of_first(&nodes, &[]).await.as_deref(), Some("a"));

    // Also asked under the other's name, the one that runs answers.
    fs::write(&overlay, second("b")).unwrap();
    let profile = ["--profile", "second"];
    assert_eq!(of_first(&nodes, &profile).await.as_deref(), Some("a"));
    nodes.node_mut(0).kill9().await;
    // What it left behind leads nowhere.
    assert_eq!(of_first(&nodes, &[]).await, None);
    nodes.node_mut(0).start().await;
    assert_eq!(of_first(&nodes, &profile).await.as_deref(), Some("a"));
}
