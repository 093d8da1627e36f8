//! What the application sees of a row: sent, refused or to be tried again, and never sent twice.

use pabal_core::SendError;
use serde_json::json;

use crate::support::{Application, Hub, Kind, Relay, on_each, until};

on_each!(
    a_sent_row_says_so_and_when,
    a_repeat_after_a_lost_mark_is_marked_and_taken_once,
    a_hub_that_takes_nothing_leaves_no_trace_in_the_rows,
    the_same_id_with_other_content_is_refused_and_said_so,
    rows_sent_long_ago_are_removed_and_no_others,
    sent_rows_are_deleted_where_one_wants_it,
    a_body_over_the_limit_is_refused_without_being_read,
);

async fn a_sent_row_says_so_and_when(kind: Kind) {
    let (application, hub) = (Application::new(kind).await, Hub::new());
    application.write(&[("a1", "a"), ("a2", "a")]).await;
    let relay = Relay::start(&application, &hub, json!({}));
    until("both to be sent", async || application.count("status = 'SENT'").await == 2).await;
    let since = match kind {
        Kind::Postgres => "now() - sent_at < interval '1 minute' AND sent_at >= created_at",
        Kind::MariaDb => {
            "timestampdiff(SECOND, sent_at, utc_timestamp()) < 60 AND sent_at >= created_at"
        }
        Kind::Sqlite => "unixepoch('now') - unixepoch(sent_at) < 60 AND sent_at >= created_at",
    };
    assert_eq!(application.count(since).await, 2);
    assert_eq!(application.count("retry_count = 0 AND last_error IS NULL").await, 2);
    assert_eq!(hub.calls(), 1, "one hand-over for both");
    relay.stop().await;
}

async fn a_repeat_after_a_lost_mark_is_marked_and_taken_once(kind: Kind) {
    let (application, hub) = (Application::new(kind).await, Hub::new());
    application.write(&[("a1", "a"), ("b1", "b")]).await;
    // The hub has them, and the process dies before it can say so.
    hub.open(false);
    let relay = Relay::start(&application, &hub, json!({}));
    hub.called(1).await;
    relay.kill().await;
    assert_eq!(application.count("status = 'NEW'").await, 2);
    hub.open(true);
    // As if nothing had been written back.
    let first = Relay::start(&application, &hub, json!({}));
    until("both to be sent", async || application.count("status = 'SENT'").await == 2).await;
    first.stop().await;
    application.run("UPDATE outbox SET status = 'NEW', sent_at = NULL").await;
    let second = Relay::start(&application, &hub, json!({}));
    until("both to be sent", async || application.count("status = 'SENT'").await == 2).await;
    second.stop().await;
    assert_eq!(hub.words(), ["a1", "b1"], "a repeat is none to the hub");
    assert_eq!(hub.ids(), [application.id("a1"), application.id("b1")], "the application's ids");
}

async fn a_hub_that_takes_nothing_leaves_no_trace_in_the_rows(kind: Kind) {
    let (application, hub) = (Application::new(kind).await, Hub::new());
    hub.says(|_| Some(SendError::unreachable("paused by an operator")));
    application.write(&[("a1", "a"), ("b1", "b")]).await;
    let relay = Relay::start(&application, &hub, json!({}));
    hub.called(3).await;
    assert_eq!(application.count("status = 'NEW' AND retry_count = 0").await, 2);
    hub.says(|_| None);
    until("both to be sent", async || application.count("status = 'SENT'").await == 2).await;
    relay.stop().await;
}

async fn the_same_id_with_other_content_is_refused_and_said_so(kind: Kind) {
    let (application, hub) = (Application::new(kind).await, Hub::new());
    application.write(&[("a1", "a")]).await;
    let relay = Relay::start(&application, &hub, json!({}));
    until("it to be sent", async || application.status("a1").await == "SENT").await;
    let other = application.bytes(b"{\"id\":\"other\"}");
    application.run(&format!("UPDATE outbox SET status = 'NEW', payload = {other}")).await;
    until("it to be refused", async || application.status("a1").await == "FAILED").await;
    let reason = application.one("SELECT last_error FROM outbox").await;
    assert_eq!(reason, "conflict: another content under the same id");
    assert_eq!(hub.words(), ["a1"]);
    relay.stop().await;
}

async fn rows_sent_long_ago_are_removed_and_no_others(kind: Kind) {
    let (application, hub) = (Application::new(kind).await, Hub::new());
    let ids: Vec<_> = (0..2_500).map(|number| format!("old{number}")).collect();
    let rows: Vec<_> = ids.iter().map(|id| (id.as_str(), "a")).collect();
    application.write(&rows).await;
    let old = match kind {
        Kind::Postgres => "now() - interval '8 days'",
        Kind::MariaDb => "utc_timestamp(6) - INTERVAL 8 DAY",
        Kind::Sqlite => "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-8 days')",
    };
    application.run(&format!("UPDATE outbox SET status = 'SENT', sent_at = {old}")).await;
    application.write(&[("refused", "b"), ("fresh", "c")]).await;
    let refused = application.is("refused");
    application.run(&format!("UPDATE outbox SET status = 'FAILED' WHERE {refused}")).await;
    let relay = Relay::start(&application, &hub, json!({ "keep_sent": "7d" }));
    until("the old ones to be gone", async || application.count("1 = 1").await == 2).await;
    assert_eq!(application.status("refused").await, "FAILED");
    assert_eq!(application.status("fresh").await, "SENT");
    relay.stop().await;
}

async fn sent_rows_are_deleted_where_one_wants_it(kind: Kind) {
    let (application, hub) = (Application::new(kind).await, Hub::new());
    application.write(&[("a1", "a"), ("b1", "b")]).await;
    let relay = Relay::start(&application, &hub, json!({ "sent": "delete" }));
    until("the table to be empty", async || application.count("1 = 1").await == 0).await;
    assert_eq!(hub.words(), ["a1", "b1"]);
    relay.stop().await;
}

async fn a_body_over_the_limit_is_refused_without_being_read(kind: Kind) {
    let (application, hub) = (Application::new(kind).await, Hub::new());
    let large = match kind {
        Kind::Postgres => "convert_to(repeat('x', 1048577), 'UTF8')",
        Kind::MariaDb => "repeat('x', 1048577)",
        Kind::Sqlite => "zeroblob(1048577)",
    };
    application.write(&[("large", "a"), ("small", "a")]).await;
    let id = application.is("large");
    application.run(&format!("UPDATE outbox SET payload = {large} WHERE {id}")).await;
    let relay = Relay::start(&application, &hub, json!({}));
    until("it to be refused", async || application.status("large").await == "FAILED").await;
    let reason = application.one(&format!("SELECT last_error FROM outbox WHERE {id}")).await;
    assert_eq!(reason, "too-large: the body has 1048577 bytes, this source takes 1048576");
    until("the next to be sent", async || application.status("small").await == "SENT").await;
    assert_eq!(hub.words(), ["small"]);
    relay.stop().await;
}
