//! The commands of README, with a hub and without.

use std::fs;

use pabal_tests::{Answer, Hub, HubSetup, Partner, Ran};
use serde_json::{Value, json};

use crate::support::{TOWN, dead_letters, drained, takes_all};

/// Refuses the first three for good, then takes everything.
async fn partner() -> Partner {
    let partner = Partner::start().await;
    partner.next([404, 404, 404].map(Answer::status));
    partner
}

fn setup(partner: &Partner) -> HubSetup {
    let file = takes_all(partner, "on_dead = \"pass\"", "")
        .replace("takes = [\"*\"]", "takes = [\"order.*\"]");
    Hub::setup().partner("town", TOWN).partner("welfare", &file)
}

async fn send(hub: &Hub, arguments: &[&str]) -> Ran {
    hub.cli_with_input(&[&["send"], arguments, &["-"]].concat(), br#"{"n": 1}"#).await
}

/// Every command that reads, as text and as JSON; those that take an id take these.
async fn all_that_read(hub: &Hub, message: &str, dead: &str) {
    for command in [
        &["check"][..],
        &["check", "--connect"],
        &["status"],
        &["messages", "find"],
        &["messages", "find", "--key", "k", "--type", "order.placed", "--since", "1h"],
        &["messages", "find", "--unrouted", "--source", "hub/cli"],
        &["messages", "show", message],
        &["messages", "show", message, "--body"],
        &["dead-letters", "list"],
        &["dead-letters", "list", "--each", "--reason", "refused", "--kind", "delivery"],
        &["dead-letters", "show", dead],
        &["dead-letters", "show", dead, "--body"],
        &["dead-letters", "replay", dead, "--dry-run"],
        &["dead-letters", "discard", dead, "--dry-run"],
        &["config", "show"],
    ] {
        let text = hub.cli(command).await;
        assert!(!text.ok().trim().is_empty(), "{}", text.command);
        assert_eq!(text.stderr, "", "{}", text.command);
        let json = hub.cli(&[command, &["--json"]].concat()).await;
        let value = json.json();
        assert!(value.is_array() || value.is_object(), "{}: {value}", json.command);
        assert_eq!(json.stderr, "", "{}", json.command);
    }
    let shown = hub.cli(&["messages", "show", message]).await;
    assert!(!shown.ok().contains("\"n\""), "a body is shown only when asked for");
}

async fn exit_codes(hub: &Hub) {
    let nobody = "00000000-0000-0000-0000-000000000000";
    for (command, code, says) in [
        (&["messages", "show", nobody][..], 1, "no message"),
        (&["dead-letters", "show", "999"], 1, "no dead letter 999"),
        (&["pause", "no/one"], 1, "welfare/orders"),
        (&["send", "order.placed", "no-such-file"], 1, "no-such-file"),
        (&["messages", "find", "--since", "yesterday"], 2, "how long ago"),
        (&["messages", "show", "x"], 2, "invalid value"),
        (&["dead-letters", "replay"], 2, "say which"),
        (&["dead-letters", "list", "--reason", "x"], 2, "exhausted"),
        (&["stauts"], 2, "status"),
        (&["status", "--config", "nowhere"], 2, "nowhere"),
    ] {
        let ran = hub.cli(command).await;
        assert_eq!(ran.exits_with(code), "", "{}", ran.command);
        assert!(ran.stderr.contains(says), "{}: {}", ran.command, ran.stderr);
        assert!(!ran.stderr.contains("panicked"), "{}: {}", ran.command, ran.stderr);
    }
}

#[tokio::test]
async fn every_command_works_with_a_hub_that_runs_and_without_one() {
    let partner = partner().await;
    let mut hub = setup(&partner).prepare();
    hub.cli(&["check"]).await.ok();
    hub.cli(&["migrate"]).await.ok();
    hub.cli(&["migrate"]).await.ok();
    let status = hub.cli(&["status", "--json"]).await.json();
    assert_eq!(status["state"], "not-running");
    // Handed over without a hub: it waits for one.
    let first = send(&hub, &["order.placed", "--id", "1", "--key", "k", "--json"]).await.json();
    let again = send(&hub, &["order.placed", "--id", "1", "--key", "k"]).await;
    assert!(again.ok().contains("had it already"), "{}", again.stdout);
    let other = hub.cli_with_input(&["send", "order.placed", "--id", "1", "-"], b"other").await;
    other.exits_with(1);
    assert!(other.stderr.contains("conflict"), "{}", other.stderr);
    assert_eq!(partner.requests().len(), 0);

    hub.start().await;
    for id in ["2", "3"] {
        let more = ["--correlation", "c-1", "--header", "x-office=7", "--id", id];
        send(&hub, &[&["order.placed"], &more[..]].concat()).await.ok();
    }
    send(&hub, &["nobody.cares", "--key", "k"]).await.ok();
    let dead = [("endpoint", "welfare/orders")];
    hub.wait_for_metric("pabal_dead_letters", &dead, |dead| dead == 3.0).await;
    let letters = dead_letters(&hub).await;
    let delivery = letters.iter().find(|letter| letter["kind"] == "delivery").unwrap();
    let number = delivery["id"].to_string();
    let message = first["id"].as_str().unwrap();
    all_that_read(&hub, message, &number).await;
    exit_codes(&hub).await;
    let nothing = json!({ "messages": 0, "log": 0, "inbox": 0, "dead_letters": 0 });
    assert_eq!(hub.cli(&["prune", "--json"]).await.json(), nothing, "all of it is young");
    let by_correlation = hub.cli(&["messages", "find", "c-1", "--json"]).await.json();
    assert_eq!(by_correlation.as_array().unwrap().len(), 2);
    let second = hub.cli(&["run"]).await;
    second.exits_with(1);
    assert!(second.stderr.contains("pabal.db"), "who has it: {}", second.stderr);
    let migrate = hub.cli(&["migrate"]).await;
    migrate.exits_with(1);

    assert!(hub.terminate().await.success());
    assert_eq!(hub.cli(&["prune", "--json"]).await.json(), nothing);
    all_that_read(&hub, message, &number).await;
    exit_codes(&hub).await;
    let paused =
        hub.cli(&["pause", "welfare/orders", "--why", "their move", "--json"]).await.json();
    assert_eq!(paused["paused"]["why"], "their move");
    hub.start().await;
    send(&hub, &["order.placed", "--id", "4"]).await.ok();
    let status = hub.cli(&["status"]).await;
    assert!(status.ok().contains("their move"), "{}", status.stdout);
    assert_eq!(partner.requests().len(), 3, "paused without a hub, and it still is with one");
    hub.cli(&["resume", "welfare/orders"]).await.ok();
    partner.wait_for_taken(1).await;
}

#[tokio::test]
async fn a_replay_pressed_twice_queues_once_with_the_same_id_and_rounds_are_counted() {
    let partner = partner().await;
    let hub = setup(&partner).start().await;
    for id in ["1", "2", "3"] {
        send(&hub, &["order.placed", "--id", id, "--key", "k"]).await.ok();
    }
    let dead = [("endpoint", "welfare/orders")];
    hub.wait_for_metric("pabal_dead_letters", &dead, |dead| dead == 3.0).await;
    let letters = dead_letters(&hub).await;
    let first = letters[0]["id"].to_string();
    // Nothing goes out while both press.
    hub.cli(&["pause", "welfare/orders"]).await.ok();
    let press = ["dead-letters", "replay", first.as_str(), "--json"];
    let once = hub.cli(&press).await.json();
    assert_eq!((&once["queued"], &once["refused"]), (&json!(1), &json!([])));
    let twice = hub.cli(&press).await.json_with(1);
    assert_eq!(twice["queued"], 0);
    assert_eq!(twice["refused"][0][0], letters[0]["id"]);
    // Two operators at once, over all the rest.
    let all = ["dead-letters", "replay", "--all", "--yes", "--why", "mended", "--json"];
    let (one, other) = tokio::join!(hub.cli(&all), hub.cli(&all));
    // Who comes second may find nothing left, which is no success.
    let queued = |ran: &Ran| match ran.stdout.as_str() {
        "" => 0,
        _ => ran.json_with(ran.code)["queued"].as_u64().unwrap_or(0),
    };
    assert_eq!(queued(&one) + queued(&other), 2);
    assert_eq!(dead_letters(&hub).await, Vec::<Value>::new());
    hub.cli(&["resume", "welfare/orders"]).await.ok();
    drained(&hub, &["welfare/orders"]).await;

    let requests = partner.requests();
    assert_eq!(requests.len(), 6, "each once refused, once replayed");
    for number in 0..3 {
        let (before, after) = (&requests[number], &requests[number + 3]);
        assert_eq!(before.message_id(), after.message_id(), "same ids, in the order of the key");
        assert_eq!(before.body, after.body);
        let id = before.message_id().unwrap();
        let told = hub.cli(&["messages", "show", id, "--json"]).await.json();
        let delivery = &told["story"]["summary"]["deliveries"][0];
        assert_eq!((&delivery["state"], &delivery["round"]), (&json!("delivered"), &json!(1)));
    }
}

const WELFARE: &str = "\
name = \"Welfare\"
[destination.orders]
takes = [\"*\"]
max_retires = 3
when = '.a =='
[destination.orders.rest]
url = \"http://a/\"
metod = \"PUT\"
";

/// Neither checked nor run, with all of these parts on standard error.
async fn refused(hub: &Hub, parts: &[&str]) {
    for command in ["check", "run"] {
        let ran = hub.cli(&[command]).await;
        assert_eq!(ran.exits_with(2), "");
        for part in parts {
            assert!(ran.stderr.contains(part), "{}: {part}\n{}", ran.command, ran.stderr);
        }
    }
    // The others need not know the partners, but they do not work on this, either.
    for command in ["status", "migrate"] {
        assert_eq!(hub.cli(&[command]).await.exits_with(2), "");
    }
    assert!(!hub.database().exists(), "nothing was begun");
}

#[tokio::test]
async fn a_broken_configuration_is_told_with_all_faults_at_once_and_neither_checked_nor_run() {
    let hub = Hub::setup()
        .hub_toml("storage-backend = 1")
        .partner("town", "nmae = \"Town\"\n[source.orders.rest]\n")
        .partner("welfare", WELFARE)
        .prepare();
    // What stands in the files' own tables, and what only shows when the parts are built.
    let own = ["hub.toml", "storage-backend", "town.toml", "nmae", "welfare.toml", "max_retires"];
    let of_parts = ["auth", "when", "metod", "`method`"];
    refused(&hub, &[&own[..], &of_parts].concat()).await;
    let json = hub.cli(&["check", "--json"]).await;
    let faults: Value = serde_json::from_str(json.exits_with(2)).unwrap();
    let faults = faults.as_array().unwrap();
    assert!(faults.len() >= 6, "{faults:#?}");
    assert!(faults.iter().all(|fault| fault["message"].is_string() && fault["file"].is_string()));
    let retires = faults.iter().find(|fault| fault["key"] == "destination.orders.max_retires");
    let retires = retires.unwrap_or_else(|| panic!("{faults:#?}"));
    assert_eq!(retires["line"], 4);
    assert!(retires["help"].as_str().unwrap().contains("retry.attempts"), "{retires}");

    fs::write(hub.config().join("hub.toml"), b"name = ").unwrap();
    refused(&hub, &["hub.toml"]).await;
}

#[tokio::test]
async fn a_look_at_everything_finds_the_partner_that_is_down_and_hands_nothing_over() {
    let mut partner = partner().await;
    let hub = setup(&partner).prepare();
    let look = async || hub.cli(&["check", "--connect", "--json"]).await;
    let fine = look().await.json();
    let of = |looked: &Value, kind: &str| {
        let all = looked.as_array().unwrap();
        all.iter().find(|it| it["kind"] == kind).unwrap()["findings"].clone()
    };
    assert_eq!(of(&fine, "destination"), json!([]));
    assert_eq!(of(&fine, "store")[0]["severity"], "note");
    assert!(!hub.database().exists(), "looking makes nothing");
    partner.down().await;
    let found = of(&look().await.json_with(1), "destination");
    assert_eq!(found[0]["severity"], "fault", "{found}");
    assert!(found[0]["what"].as_str().unwrap().starts_with("cannot connect to 127.0.0.1"));
    let text = hub.cli(&["check", "--connect"]).await;
    assert!(text.exits_with(1).contains("welfare/orders"));
    assert!(hub.cli(&["check"]).await.ok().starts_with("the configuration is fine"));
    assert_eq!(partner.requests().len(), 0);
}
