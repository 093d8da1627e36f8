//! What a configuration without a fault comes to.

use std::{path::Path, time::Duration};

use pabal_config::{Else, HotCacheConfig, LogFormat, MissingId, OnInvalid, StoreConfig};
use pabal_core::{OnDead, Order, RetryPolicy, SecretReference};

use crate::{Directory, HUB, WELFARE};

const FULL: &str = r#"
name = "Welfare Information Service"
contacts = [{ name = "Link team", email = "link@welfare.example", role = "operations" }]

[destination.applications]
id = "IF-WEL-001"
title = "Applications"
takes = ["application.*", "appeal.made"]
from = ["welfare/decisions", "hub/cli"]
when = '.region == "11"'
order = "none"
retry = { attempts = 3 }
concurrency = 4
rate = "20/s"

[destination.applications.rest]
url = "http://127.0.0.1:9001/"
answer = { success = '.body.code == "0000"', else = "dead", charset = "euc-kr" }
auth = { bearer = { env = "WELFARE_TOKEN" } }

[source.decisions]
on_invalid = "keep"
may_address = true
body_max = "1 MiB"
hot_cache = { redis = { env = "REDIS_URL" }, keep = "2h" }
[source.decisions.read]
identify = { id = ".msgId", type = '"decision.made"', missing = "content" }
[source.decisions.rest]
auth = "none"
"#;

fn full() -> Directory {
    Directory::with(&[("hub.toml", HUB), ("partners/welfare.toml", FULL)])
}

#[test]
fn defaults_are_filled_in() {
    let directory = Directory::with(&[("hub.toml", HUB), ("partners/welfare.toml", WELFARE)]);
    let config = directory.load().unwrap();
    let destination = &config.destinations[0];
    assert_eq!((destination.order, destination.on_dead), (Order::Key, OnDead::Hold));
    assert_eq!((destination.concurrency, &destination.retry), (16, &RetryPolicy::default()));
    assert!(destination.rate.is_none() && destination.answer.is_none());
    let source = &config.sources[0];
    assert_eq!((source.on_invalid, source.body_bytes_max), (OnInvalid::Refuse, 16 * 1024 * 1024));
    assert!(!source.may_address && source.identify.is_none());
    assert_eq!(config.hub.http.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.hub.grace, Duration::from_secs(10));
    // Beside the configuration directory, wherever the hub was started.
    let StoreConfig::Sqlite(store) = &config.hub.store else { panic!("another store") };
    assert_eq!(store, &directory.path().parent().unwrap().join("var/pabal.db"));
}

#[test]
fn everything_that_is_written_arrives() {
    let directory = full();
    let config = directory.load().unwrap();
    assert_eq!(config.partners[0].id, "welfare");
    assert_eq!(config.partners[0].contacts[0].role.as_deref(), Some("operations"));
    let destination = &config.destinations[0];
    assert_eq!(destination.name.as_str(), "welfare/applications");
    assert_eq!((destination.order, destination.on_dead), (Order::None, OnDead::Pass));
    assert_eq!(destination.takes[1].0, "appeal.made");
    assert_eq!(destination.from[1].as_str(), "hub/cli");
    assert_eq!(destination.rate.unwrap().to_string(), "20/s");
    let when = destination.when.as_ref().unwrap();
    assert_eq!(
        (when.text.as_str(), when.position.line_column()),
        (".region == \"11\"", Some((10, 1)))
    );
    let answer = destination.answer.as_ref().unwrap();
    assert_eq!((answer.otherwise, answer.charset.as_deref()), (Else::Dead, Some("euc-kr")));
    let settings = &destination.adapter.settings.0;
    assert!(settings.get("answer").is_none());
    assert_eq!(settings["auth"]["bearer"]["env"], "WELFARE_TOKEN");
    let source = &config.sources[0];
    assert_eq!((source.on_invalid, source.may_address), (OnInvalid::Keep, true));
    assert_eq!(source.body_bytes_max, 1024 * 1024);
    let url = SecretReference::Env("REDIS_URL".to_owned());
    let keep = Duration::from_secs(2 * 60 * 60);
    assert_eq!(source.hot_cache, Some(HotCacheConfig::Redis { url, keep }));
    let identify = source.identify.as_ref().unwrap();
    assert_eq!(identify.missing, MissingId::Content);
    assert_eq!(identify.message_type.as_ref().unwrap().text, "\"decision.made\"");
}

#[test]
fn the_effective_settings_can_be_printed_and_read_again() {
    let directory = full();
    let config = directory.load().unwrap();
    let text = config.effective_toml();
    insta::assert_snapshot!(directory.plain(&text));
    let mut again: toml::Table = toml::from_str(&text).unwrap();
    let hub = toml::to_string(&again.remove("hub").unwrap()).unwrap();
    let welfare = toml::to_string(&again["partners"]["welfare"]).unwrap();
    let copy = Directory::with(&[("hub.toml", &hub), ("partners/welfare.toml", &welfare)]);
    assert_eq!(copy.load().unwrap().effective_toml(), text);
}

#[test]
fn an_overlay_and_the_environment_lie_over_the_files() {
    let directory = Directory::with(&[
        (
            "hub.toml",
            "name = \"central\"\nadmin = { token = { env = \"T\" } }\nlog = { filter = \"debug\" }\n",
        ),
        (
            "hub.prod.toml",
            "store = { sqlite = \"/data/p.db\" }\nlog = { format = \"json\" }\nadmin = { token = { file = \"t\" } }\n",
        ),
        ("hub.test.toml", "name = \"other\"\nnonsense = 1\n"),
        ("partners/welfare.toml", FULL),
        (
            "partners/welfare.prod.toml",
            "[destination.applications]\nconcurrency = 9\n[destination.applications.pigeon]\ncoop = \"n\"\n",
        ),
    ]);
    let environment = [
        ("PABAL_HTTP__LISTEN", "0.0.0.0:9000"),
        ("PABAL_GRACE", "3s"),
        ("PABAL_LOG__FILTER", "warn"),
        ("HOME", "/root"),
    ];
    let config = directory.load_with(Some("prod"), &environment).unwrap();
    assert_eq!(config.hub.name, "central");
    assert_eq!(config.hub.store, StoreConfig::Sqlite(Path::new("/data/p.db").to_owned()));
    assert_eq!((config.hub.log.format, config.hub.log.filter.as_str()), (LogFormat::Json, "warn"));
    assert_eq!(config.hub.http.listen.to_string(), "0.0.0.0:9000");
    // A name without two underscores is no setting.
    assert_eq!(config.hub.grace, Duration::from_secs(10));
    assert_eq!(config.hub.admin.token, Some(SecretReference::File("t".into())));
    let destination = &config.destinations[0];
    assert_eq!((destination.concurrency, destination.adapter.name.as_str()), (9, "pigeon"));
    // The adapter's table is replaced whole, and the answer rule in it with it.
    assert!(destination.answer.is_none());
    assert_eq!(destination.retry.attempts, 3);
}

#[test]
fn a_database_is_named_by_reference_and_nodes_are_told_what_they_share() {
    let hub = r#"
name = "central"
node = "a"
store = { postgres = { env = "URL", listen = { file = "direct" }, connections = 8 } }
lease = "30s"
retention = { bodies = "14d", inbox = "30d" }
"#;
    let partner = WELFARE.replace("takes", "lanes = 4\ntakes");
    let load = |hub: &str| {
        let directory = Directory::with(&[("hub.toml", hub), ("partners/welfare.toml", &partner)]);
        directory.load().unwrap()
    };
    let config = load(hub);
    let expected = StoreConfig::Postgres {
        url: SecretReference::Env("URL".into()),
        listen: Some(SecretReference::File("direct".into())),
        connections: 8,
    };
    assert_eq!(config.hub.store, expected);
    assert_eq!((config.hub.node.as_deref(), config.hub.lease.as_secs()), (Some("a"), 30));
    assert!(config.hub.files.ends_with("var") && config.hub.files.is_absolute());
    let days = |time: Duration| time.as_secs() / 86_400;
    let kept = &config.hub.retention;
    assert_eq!((days(kept.bodies), days(kept.history), days(kept.inbox)), (14, 365, 30));
    assert_eq!(config.destinations[0].lanes, 4);
    // Where a node stands is its own business; what it runs is everybody's.
    let other = hub.replace("\"a\"", "\"b\"").replace("\"URL\"", "\"OTHER\"");
    assert_eq!(load(&other).plan_hash(), config.plan_hash());
    assert_eq!(config.plan_hash().len(), 64);
    assert_ne!(load(&hub.replace("30s", "20s")).plan_hash(), config.plan_hash());
    assert_ne!(load(&hub.replace("14d", "15d")).plan_hash(), config.plan_hash());
    let text = config.effective_toml();
    for line in
        ["bodies = \"14d\"", "history = \"365d\"", "lanes = 4", "env = \"URL\"", "node = \"a\""]
    {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[test]
fn a_repeat_may_not_come_later_than_ids_are_remembered() {
    let load = |window: &str| {
        let line = format!(
            "[source.decisions]\nredelivery_window = \"{window}\"\n[source.decisions.rest]"
        );
        let partner = WELFARE.replace("[source.decisions.rest]", &line);
        let hub = format!("{HUB}retention = {{ inbox = \"30d\" }}\n");
        Directory::with(&[("hub.toml", &hub), ("partners/welfare.toml", &partner)]).load()
    };
    let config = load("30d").unwrap();
    assert_eq!(config.sources[0].redelivery_window, Some(Duration::from_secs(30 * 86_400)));
    assert!(config.effective_toml().contains("redelivery_window = \"30d\""));
    let faults = load("31d").unwrap_err().to_string();
    assert!(faults.contains("31d is longer than `retention.inbox`, 30d"), "{faults}");
    assert!(faults.contains("welfare.toml"), "{faults}");
}

#[test]
fn a_difference_that_is_not_printed_is_one_all_the_same() {
    let hash = |header: &str| {
        let partner =
            WELFARE.replace("[source", &format!("headers = {{ x-token = \"{header}\" }}\n[source"));
        let files = [("hub.toml", HUB), ("partners/welfare.toml", partner.as_str())];
        let config = Directory::with(&files).load().unwrap();
        assert!(config.effective_toml().contains("[secret]"));
        config.plan_hash()
    };
    assert_ne!(hash("one"), hash("two"));
    assert_eq!(hash("one"), hash("one"));
}
