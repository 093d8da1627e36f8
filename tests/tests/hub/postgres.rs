//! One hub on PostgreSQL: its schema, its rights, its commands, its vitals.

use pabal_tests::{Hub, Nodes, Partner, Postgres, pabal, repository, until};
use serde_json::json;

use crate::{
    demo::{assert_all_is_right, demo},
    metrics::check_format,
    support::{FAST, TOWN, dead_letters, drained, takes_all},
};

/// One node, from `town/orders` to `welfare/orders`.
async fn one(welfare: &Partner, more: &str) -> Nodes {
    let file = takes_all(welfare, FAST, "");
    Nodes::start(1, |hub| hub.partner("town", TOWN).partner("welfare", &file).hub_toml(more)).await
}

#[tokio::test]
async fn the_demo_on_postgres_is_right_and_takes_no_database_that_is_not_empty() {
    let postgres = Postgres::shared().await;
    let url = postgres.owner();
    let sample = repository("crates/hub/samples/legal-districts.euckr.tsv");
    let (report, compared) = demo(&sample, &["--postgres", &url]).await;
    assert_all_is_right(&report, &compared);
    assert_eq!(report["records"], 5_000);
    assert_eq!(postgres.ask("SELECT count(*) FROM pabal.message").await, "5000");

    let again = pabal(&["demo", "--postgres", &url]).await;
    again.exits_with(1);
    assert!(again.stderr.contains("an earlier demo"), "{}", again.stderr);
    postgres.ask("UPDATE pabal.meta SET value = 'central' WHERE name = 'hub'").await;
    let another = pabal(&["demo", "--postgres", &url]).await;
    another.exits_with(1);
    assert!(another.stderr.contains("belongs to hub `central`"), "{}", another.stderr);
    let wrong = pabal(&["demo", "--postgres", "mysql://u:hunter2@h/d"]).await;
    wrong.exits_with(1);
    assert!(!wrong.stderr.contains("hunter2"), "{}", wrong.stderr);
}

#[tokio::test]
async fn a_role_that_may_not_change_the_schema_is_told_to_migrate_and_then_runs() {
    let postgres = Postgres::shared().await;
    let partner = Partner::start().await;
    let file = takes_all(&partner, FAST, "");
    let setup = Hub::setup().partner("town", TOWN).partner("welfare", &file);
    let mut hub = setup.postgres(&postgres.runtime()).prepare();
    for command in ["run", "status", "migrate"] {
        let refused = hub.cli(&[command]).await;
        assert_eq!(refused.exits_with(1), "");
        assert!(refused.stderr.contains("pabal migrate"), "{}", refused.stderr);
    }
    // To look at what is not there does not make it, not even with the rights.
    let owner = postgres.owner();
    let as_owner = [("PABAL_DATABASE_URL", owner.as_str())];
    hub.cli_with(&as_owner, &["status"]).await.exits_with(1);
    assert_eq!(postgres.ask("SELECT to_regnamespace('pabal') IS NULL").await, "t");

    let made = hub.cli_with(&as_owner, &["migrate"]).await;
    assert!(made.ok().contains("step 1"), "{}", made.stdout);
    assert!(made.stderr.contains("pabal.grant_to"), "{}", made.stderr);
    let again = hub.cli_with(&as_owner, &["migrate", "--json"]).await.json();
    assert_eq!((&again["up_to_date"], &again["applied"]), (&json!(true), &json!([])));
    postgres.grant().await;
    hub.cli(&["migrate"]).await.ok();
    hub.start().await;
    assert_eq!(hub.hand_over("town/orders", "1", &[], "{}").await.status, 202);
    assert_eq!(hub.hand_over("town/orders", "1", &[], "{}").await.status, 200);
    partner.wait_for_taken(1).await;
    drained(&hub, &["welfare/orders"]).await;
    hub.restart().await;
    assert_eq!(hub.hand_over("town/orders", "1", &[], "[]").await.status, 409);
    // Tables are what it may not touch.
    let drop = [postgres.runtime(), "DROP TABLE pabal.inbox".to_owned()];
    let dropped = pabal_tests::run("psql", &["-d", &drop[0], "-c", &drop[1]], b"").await;
    assert!(dropped.stderr.contains("must be owner"), "{}", dropped.stderr);
}

#[tokio::test]
async fn a_url_that_is_missing_or_leads_nowhere_is_told_without_its_password() {
    let hub = Hub::setup().partner("town", TOWN).postgres("").prepare();
    for command in ["check", "run", "status", "migrate"] {
        let refused = hub.cli(&[command]).await;
        assert_eq!(refused.exits_with(2), "", "{command}");
        let says = ["hub.toml:3", "PABAL_DATABASE_URL"];
        assert!(says.iter().all(|part| refused.stderr.contains(part)), "{}", refused.stderr);
    }
    let nowhere = "postgres://hub:hunter2@127.0.0.1:9/pabal";
    for command in ["run", "status", "migrate"] {
        let refused = hub.cli_with(&[("PABAL_DATABASE_URL", nowhere)], &[command]).await;
        assert_eq!(refused.exits_with(1), "", "{command}");
        assert!(refused.stderr.contains("127.0.0.1:9"), "{}", refused.stderr);
        assert!(!refused.stderr.contains("hunter2"), "{}", refused.stderr);
    }
}

#[tokio::test]
async fn how_the_store_is_can_be_read_and_readyz_warns_before_there_is_no_room() {
    let partner = Partner::start().await;
    let nodes = one(&partner, "").await;
    let (hub, postgres) = (nodes.node(0), &nodes.postgres);
    let more = [
        "pabal_plan_differs",
        "pabal_store_listening",
        "pabal_store_relistened_total",
        "pabal_store_oldest_transaction_seconds",
        "pabal_store_days_ahead",
    ];
    check_format(&hub.metrics().await.0, &more);
    let value = async |name: &str| hub.metrics().await.value(name, &[]);
    assert_eq!(value("pabal_plan_differs").await, Some(0.0));
    assert_eq!(value("pabal_store_listening").await, Some(1.0));
    assert_eq!(value("pabal_store_relistened_total").await, Some(0.0));
    assert!(value("pabal_store_days_ahead").await >= Some(6.0));
    assert!(value("pabal_store_oldest_transaction_seconds").await.is_some());

    let open = postgres.forgotten_transaction().await;
    let age = "pabal_store_oldest_transaction_seconds";
    let seen = hub.wait_for_metric(age, &[], |seconds| seconds > 0.0).await;
    hub.wait_for_metric(age, &[], |seconds| seconds > seen + 1.0).await;
    drop(open);
    hub.wait_for_metric(age, &[], |seconds| seconds < 1.0).await;

    // The session that listens ends, and for a while no new one is to be had.
    let may_connect = async |verb: &str| {
        let (verb, role) = verb.split_once(' ').unwrap();
        let sql = format!("{verb} CONNECT ON DATABASE %I {role} PUBLIC");
        let sql = format!("DO $$ BEGIN EXECUTE format('{sql}', current_database()); END $$");
        postgres.ask(&sql).await;
    };
    may_connect("REVOKE FROM").await;
    let listening = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
        WHERE datname = current_database() AND query ILIKE 'LISTEN%'";
    assert_eq!(postgres.ask(listening).await, "1");
    hub.wait_for_metric("pabal_store_listening", &[], |listening| listening == 0.0).await;
    may_connect("GRANT TO").await;
    hub.wait_for_metric("pabal_store_relistened_total", &[], |times| times == 1.0).await;
    hub.wait_for_metric("pabal_store_listening", &[], |listening| listening == 1.0).await;
    hub.hand_over("town/orders", "1", &[], "{}").await;
    partner.wait_for_taken(1).await;

    let ready = async || {
        let reply = hub.way_in().try_get("/readyz").await.unwrap();
        (reply.status, reply.text())
    };
    assert_eq!(ready().await, (200, "ready\n".to_owned()));
    let tomorrow = "DO $$ DECLARE part text; BEGIN \
        FOR part IN SELECT name FROM pabal.partition WHERE day > pabal.today() LOOP \
        EXECUTE format('DROP TABLE pabal.%I', part); END LOOP; END $$";
    postgres.ask(tomorrow).await;
    hub.wait_for_metric("pabal_store_days_ahead", &[], |days| days == 0.0).await;
    until("a warning", async || {
        let (status, text) = ready().await;
        (status == 200 && text.contains("no partition for tomorrow")).then_some(())
    })
    .await;
    // One round of housekeeping makes them again.
    hub.cli(&["prune"]).await.ok();
    hub.wait_for_metric("pabal_store_days_ahead", &[], |days| days >= 6.0).await;
    postgres.stop_immediately().await;
    until("not ready", async || (ready().await.0 == 503).then_some(())).await;
    postgres.start_again().await;
    until("ready again", async || (ready().await.0 == 200).then_some(())).await;
}

#[tokio::test]
async fn what_is_over_is_pruned_on_demand_and_what_waits_stays() {
    let partner = Partner::start().await;
    let day =
        "retention = { bodies = \"1d\", history = \"1d\", inbox = \"1d\", dead_letters = \"1d\" }";
    let nodes = one(&partner, day).await;
    let (hub, postgres) = (nodes.node(0), &nodes.postgres);
    for id in ["1", "2", "3"] {
        hub.hand_over("town/orders", id, &[], "{}").await;
    }
    partner.wait_for_taken(3).await;
    drained(hub, &["welfare/orders"]).await;
    hub.cli(&["pause", "welfare/orders"]).await.ok();
    hub.hand_over("town/orders", "4", &[], "{}").await;
    let nothing = hub.cli(&["prune", "--json"]).await.json();
    assert_eq!(nothing, json!({ "messages": 0, "log": 0, "inbox": 0, "dead_letters": 0 }));

    // The store's clock, as its owner could set it.
    postgres
        .ask(
            "CREATE OR REPLACE FUNCTION pabal.time() RETURNS timestamptz LANGUAGE sql STABLE \
             PARALLEL SAFE AS $$SELECT statement_timestamp() + interval '4 days'$$",
        )
        .await;
    let pruned = hub.cli(&["prune", "--json"]).await.json();
    assert_eq!(pruned, json!({ "messages": 3, "log": 3, "inbox": 3, "dead_letters": 0 }));
    let again = hub.cli(&["prune"]).await;
    assert!(again.ok().contains("removed 0 messages"), "{}", again.stdout);
    let acts = postgres.ask("SELECT count(*) FROM pabal.operator_log WHERE verb = 'prune'").await;
    assert_eq!(acts, "3");
    hub.cli(&["resume", "welfare/orders"]).await.ok();
    let waited = &partner.wait_for_taken(4).await[3];
    assert_eq!(waited.header("ce-originid"), Some("4"));
    assert_eq!(dead_letters(hub).await, Vec::<serde_json::Value>::new());
}
