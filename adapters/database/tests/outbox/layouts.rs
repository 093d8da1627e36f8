//! Tables as others have them.

use serde_json::json;

use crate::support::{Application, Hub, Kind, Relay, faults, on_each, until};

on_each!(
    a_table_of_the_layout_that_debezium_users_have_is_emptied,
    any_table_can_be_told_by_its_columns,
    a_table_without_what_is_needed_is_told_of_and_waited_for,
);

fn texts(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Postgres => ("uuid", "text"),
        Kind::MariaDb => ("char(36)", "varchar(200)"),
        Kind::Sqlite => ("TEXT", "TEXT"),
    }
}

fn grant_all(application: &Application, table: &str) {
    if application.kind() == Kind::Postgres {
        let all = format!("GRANT SELECT, UPDATE, DELETE ON {table} TO runtime");
        application.postgres().0.ask(&all);
    }
}

fn owner(application: &Application) -> String {
    application.url().replace("runtime", "owner")
}

async fn a_table_of_the_layout_that_debezium_users_have_is_emptied(kind: Kind) {
    let (application, hub) = (Application::bare(kind).await, Hub::new());
    let (id, text) = texts(kind);
    application
        .run(&format!(
            "CREATE TABLE outboxevent (id {id} PRIMARY KEY, aggregatetype {text} NOT NULL, \
             aggregateid {text} NOT NULL, type {text} NOT NULL, payload {text})"
        ))
        .await;
    let ids = ["018f0000-0000-7000-8000-000000000001", "018f0000-0000-7000-8000-000000000002"];
    for (number, id) in ids.iter().enumerate() {
        application
            .run(&format!(
                "INSERT INTO outboxevent VALUES \
                 ('{id}', 'application', '11', 'submitted', '{{\"n\":{number}}}')"
            ))
            .await;
    }
    grant_all(&application, "outboxevent");
    let settings = json!({ "preset": "debezium", "table": "outboxevent" });
    let receiver = crate::support::receiver(
        &owner(&application),
        settings,
        std::sync::Arc::new(pabal_core::SystemClock),
    );
    let relay = Relay::run(receiver, hub.clone());
    until("the table to be empty", async || {
        application.one("SELECT 'some' FROM outboxevent").await.is_empty()
    })
    .await;
    let taken = hub.taken();
    assert_eq!(hub.ids(), ids);
    let first = &taken[0];
    assert_eq!((first.message_type.as_str(), first.key.as_deref()), ("submitted", Some("11")));
    assert_eq!(first.headers.get("ce-aggregatetype"), Some("application"));
    assert_eq!(first.content_type.as_deref(), Some("application/json"));
    assert!(first.arrival.one_way, "the table cannot show a refusal, so the hub keeps it");
    relay.stop().await;
}

async fn any_table_can_be_told_by_its_columns(kind: Kind) {
    let (application, hub) = (Application::bare(kind).await, Hub::new());
    let (_, text) = texts(kind);
    let number = match kind {
        Kind::Postgres => "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        Kind::MariaDb => "bigint AUTO_INCREMENT PRIMARY KEY",
        Kind::Sqlite => "INTEGER PRIMARY KEY",
    };
    application
        .run(&format!(
            "CREATE TABLE events (no {number}, case_no {text}, what {text}, doc {text}, \
             state {text} DEFAULT 'pending', why {text})"
        ))
        .await;
    for number in 1..=12 {
        application
            .run(&format!(
                "INSERT INTO events (case_no, what, doc) VALUES ('c', 'filed', '{{\"id\":\"{number}\"}}')"
            ))
            .await;
    }
    grant_all(&application, "events");
    let settings = json!({
        "table": "events",
        "columns": {
            "id": "no", "order": "no", "key": "case_no", "type": "what", "body": "doc",
            "status": "state", "error": "why",
        },
        "status": { "new": "pending", "sent": "it's done", "failed": "bad" },
        "batch": 5,
    });
    let receiver = crate::support::receiver(
        &owner(&application),
        settings,
        std::sync::Arc::new(pabal_core::SystemClock),
    );
    let relay = Relay::run(receiver, hub.clone());
    until("all to be sent", async || {
        application.one("SELECT 'some' FROM events WHERE state <> 'it''s done'").await.is_empty()
    })
    .await;
    let expected: Vec<_> = (1..=12).map(|number| number.to_string()).collect();
    assert_eq!(hub.ids(), expected, "by number, and not by its digits");
    relay.stop().await;
}

async fn a_table_without_what_is_needed_is_told_of_and_waited_for(kind: Kind) {
    let (application, hub) = (Application::bare(kind).await, Hub::new());
    let receiver = crate::support::receiver(
        &owner(&application),
        json!({}),
        std::sync::Arc::new(pabal_core::SystemClock),
    );
    let relay = Relay::run(receiver.clone(), hub.clone());
    let error = relay.task.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("outbox"), "{error}");
    application.run("CREATE TABLE outbox (id varchar(20) PRIMARY KEY, body varchar(20))").await;
    let relay = Relay::run(receiver, hub.clone());
    let error = relay.task.await.unwrap().unwrap_err().to_string();
    assert_eq!(error, "the table outbox has no column payload");
}

#[tokio::test]
async fn what_cannot_be_is_a_fault_of_the_settings() {
    let postgres = "postgres://somebody@127.0.0.1:1/x";
    for (settings, keys) in [
        (json!({}), vec![]),
        (json!({ "table": "a b" }), vec!["table"]),
        (json!({ "batch": 0, "interval": "1ms" }), vec!["batch", "interval"]),
        (json!({ "interval": "10s", "idle_interval": "1s" }), vec!["idle_interval"]),
        (json!({ "preset": "debezium", "sent": "mark" }), vec!["sent"]),
        (json!({ "preset": "debezium", "keep_sent": "1d" }), vec!["keep_sent", "keep_sent"]),
        (json!({ "columns": { "status": "" }, "on_failed": "hold" }), vec!["on_failed"]),
        (json!({ "sent": "delete", "keep_sent": "1d" }), vec!["keep_sent"]),
        (json!({ "status": { "new": "SENT" } }), vec!["status"]),
        (json!({ "status": { "new": "a\\" } }), vec!["status.new"]),
        (json!({ "columns": { "kee": "a" } }), vec!["columns"]),
        (json!({ "notify": { "channel": "a\"b" } }), vec!["notify.channel"]),
    ] {
        assert_eq!(faults(postgres, settings.clone()), keys, "{settings}");
    }
    for url in ["mysql://a@127.0.0.1:1/x", "sqlite:x.db"] {
        assert_eq!(faults(url, json!({ "relay": "notify" })), ["relay"], "{url}");
        assert_eq!(faults(url, json!({ "one_transaction": true })), ["one_transaction"], "{url}");
    }
    assert_eq!(faults("oracle://a", json!({})), ["url"]);
}
