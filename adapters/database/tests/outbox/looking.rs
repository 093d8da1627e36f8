//! What a look at a table finds before the first row is sent.

use std::sync::Arc;

use pabal_core::{Severity, SystemClock};
use serde_json::{Value, json};

use crate::support::{Application, Kind, on_each, receiver};

on_each!(
    the_documented_table_with_the_documented_rights_is_fine,
    a_table_made_in_a_hurry_is_told_of,
);

/// What is found: a letter of how much it matters, and what.
async fn look(url: &str, settings: Value) -> Vec<String> {
    let receiver = receiver(url, settings, Arc::new(SystemClock));
    let found = receiver.probe().await;
    let letter = |severity| match severity {
        Severity::Fault => 'F',
        Severity::Warning => 'W',
        Severity::Note => 'N',
    };
    found.iter().map(|it| format!("{} {}", letter(it.severity), it.what)).collect()
}

fn has(found: &[String], what: &str) -> bool {
    found.iter().any(|it| it.contains(what))
}

async fn the_documented_table_with_the_documented_rights_is_fine(kind: Kind) {
    let application = Application::new(kind).await;
    let settings = json!({ "keep_sent": "7d", "on_failed": "hold" });
    let expected: &[&str] = match kind {
        // MySQL has no index of some rows; of a key there may be many refused ones.
        Kind::MariaDb => &["W no index finds the refused rows of a key of outbox"],
        _ => &[],
    };
    assert_eq!(look(&application.url(), settings).await, expected);
    let open = look(&application.url(), json!({})).await;
    assert_eq!(open, ["W what was sent stays in outbox for ever"]);
}

async fn a_table_made_in_a_hurry_is_told_of(kind: Kind) {
    let application = Application::bare(kind).await;
    let url = application.url().replace("runtime", "owner");
    let missing = look(&url, json!({})).await;
    assert!(missing[0].starts_with("F ") && missing[0].contains("outbox"), "{missing:?}");
    let body = match kind {
        Kind::Postgres => "jsonb",
        Kind::MariaDb => "json",
        Kind::Sqlite => "TEXT",
    };
    application
        .run(&format!(
            "CREATE TABLE outbox (id varchar(40), payload {body}, event_type varchar(40), \
             status varchar(9), created_at varchar(40))"
        ))
        .await;
    let found = look(&url, json!({ "keep_sent": "7d" })).await;
    assert!(!has(&found, "would be refused"), "{found:?}");
    assert!(has(&found, "W nothing keeps two rows of outbox from having one `id`"), "{found:?}");
    assert!(has(&found, "W no index finds the unsent rows of outbox"), "{found:?}");
    assert!(
        has(&found, "W outbox has no column of the order: rows of a key go by time"),
        "{found:?}"
    );
    assert!(has(&found, "N outbox has no key"), "{found:?}");
    assert!(has(&found, "N outbox has no column for `schema`"), "{found:?}");
    if kind == Kind::Postgres {
        assert!(has(&found, "W bodies of outbox are JSONB"), "{found:?}");
        assert!(has(&found, "N outbox is cleaned by the share of rows"), "{found:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_rights_and_a_missing_trigger_are_told_of() {
    let application = Application::new(Kind::Postgres).await;
    let settings = json!({ "keep_sent": "7d", "relay": "notify" });
    let found = look(&application.url(), settings.clone()).await;
    assert_eq!(
        found,
        ["W no trigger of outbox notifies: rows are found by looking, every `idle_interval`"]
    );
    application.run(include_str!("../../../../migrations/app-side/postgres/notify.sql")).await;
    assert_eq!(look(&application.url(), settings.clone()).await, Vec::<String>::new());
    application.revoke_update();
    let found = look(&application.url(), settings.clone()).await;
    assert!(has(&found, "F marking rows as sent would be refused: permission denied"), "{found:?}");
    let url = application.postgres().0.url(pabal_conformance::postgres::OWNER);
    let found = look(&url, settings).await;
    assert_eq!(found, ["N the role may do more with outbox than a relay needs"]);
    let nowhere = look("postgres://somebody@127.0.0.1:1/x", json!({})).await;
    assert!(nowhere[0].starts_with("F "), "{nowhere:?}");
}
