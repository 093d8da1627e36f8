//! Nothing of a key overtakes what stands before it, nothing is passed over, and others pass.

use std::sync::Arc;

use pabal_core::{Reason, SendError};
use serde_json::json;
use sqlx::Connection;

use crate::support::{Application, Hub, Kind, Relay, on_each, until, word};

on_each!(
    rows_of_a_key_go_in_the_order_in_which_they_were_written,
    a_row_that_always_fails_for_now_holds_up_no_other_key,
    behind_a_refused_row_its_key_goes_on,
    behind_a_refused_row_its_key_waits_where_it_is_told_to,
);

async fn rows_of_a_key_go_in_the_order_in_which_they_were_written(kind: Kind) {
    let (application, hub) = (Application::new(kind).await, Hub::new());
    let ids: Vec<_> = (0..40).map(|number| format!("r{number}")).collect();
    for four in ids.chunks(4) {
        let keys = ["a", "b", "a", "c"];
        let rows: Vec<_> = four.iter().map(String::as_str).zip(keys).collect();
        application.write(&rows).await;
    }
    let relay = Relay::start(&application, &hub, json!({ "batch": 7 }));
    until("all rows to be sent", async || application.count("status = 'SENT'").await == 40).await;
    assert_eq!(hub.words(), ids);
    relay.stop().await;
}

async fn a_row_that_always_fails_for_now_holds_up_no_other_key(kind: Kind) {
    let (application, hub) = (Application::new(kind).await, Hub::new());
    // More of them than a batch has room for, and they are the oldest.
    let failing: Vec<_> = (0..10).map(|number| format!("f{number}")).collect();
    let rows: Vec<_> = failing.iter().map(|id| (id.as_str(), id.as_str())).collect();
    application.write(&rows).await;
    let fine: Vec<_> = (0..20).map(|number| format!("g{number}")).collect();
    let rows: Vec<_> = fine.iter().map(|id| (id.as_str(), id.as_str())).collect();
    application.write(&rows).await;
    hub.says(|message| word(message).starts_with('f').then(|| SendError::transient("busy")));
    let relay = Relay::start(&application, &hub, json!({ "batch": 5 }));
    until("the healthy rows to be sent", async || application.count("status = 'SENT'").await == 20)
        .await;
    until("all others to have been tried", async || {
        application.count("status = 'NEW' AND retry_count > 0 AND last_error = 'busy'").await == 10
    })
    .await;
    // Once they can go they go.
    hub.says(|_| None);
    until("the rest to be sent", async || application.count("status = 'SENT'").await == 30).await;
    relay.stop().await;
}

fn refusing(hub: &Hub) {
    hub.says(|message| {
        (word(message) == "no").then(|| SendError::permanent(Reason::Invalid, "not like this"))
    });
}

async fn behind_a_refused_row_its_key_goes_on(kind: Kind) {
    let (application, hub) = (Application::new(kind).await, Hub::new());
    refusing(&hub);
    application.write(&[("a1", "a"), ("no", "a"), ("a2", "a"), ("b1", "b")]).await;
    let relay = Relay::start(&application, &hub, json!({}));
    until("three rows to be sent", async || application.count("status = 'SENT'").await == 3).await;
    assert_eq!(hub.words(), ["a1", "a2", "b1"]);
    assert_eq!(application.status("no").await, "FAILED");
    let reason = application.one("SELECT last_error FROM outbox WHERE status = 'FAILED'").await;
    assert_eq!(reason, "invalid: not like this");
    // Who makes it new again has it sent again.
    hub.says(|_| None);
    application.run("UPDATE outbox SET status = 'NEW' WHERE status = 'FAILED'").await;
    until("the refused row to be sent", async || application.status("no").await == "SENT").await;
    relay.stop().await;
}

async fn behind_a_refused_row_its_key_waits_where_it_is_told_to(kind: Kind) {
    let (application, hub) = (Application::new(kind).await, Hub::new());
    refusing(&hub);
    application.write(&[("a1", "a"), ("no", "a"), ("a2", "a"), ("b1", "b")]).await;
    let relay = Relay::start(&application, &hub, json!({ "on_failed": "hold" }));
    until("one to be refused", async || application.status("no").await == "FAILED").await;
    application.write(&[("a3", "a"), ("b2", "b")]).await;
    until("the other key to be sent", async || application.status("b2").await == "SENT").await;
    assert_eq!(hub.words(), ["a1", "b1", "b2"]);
    hub.says(|_| None);
    application.run("UPDATE outbox SET status = 'NEW' WHERE status = 'FAILED'").await;
    until("all to be sent", async || application.count("status = 'SENT'").await == 6).await;
    assert_eq!(hub.words()[3..], ["no", "a2", "a3"]);
    relay.stop().await;
}

/// A transaction of the application's that is still open.
macro_rules! open {
    ($connection:expr, $sql:expr) => {{
        let mut transaction = $connection.begin().await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe($sql)).execute(&mut *transaction).await.unwrap();
        transaction
    }};
}

async fn a_late_commit_is_sent(
    application: &Application,
    late: impl AsyncFnOnce(),
    hub: &Arc<Hub>,
) {
    let relay = Relay::start(application, hub, json!({}));
    application.write(&[("after", "a")]).await;
    until("the later row to be sent", async || application.status("after").await == "SENT").await;
    assert_eq!(hub.words(), ["after"]);
    late().await;
    until("the late row to be sent", async || application.status("late").await == "SENT").await;
    // In the order of the commits, and none twice.
    assert_eq!(hub.words(), ["after", "late"]);
    assert_eq!(application.count("1 = 1").await, 2, "what was rolled back is not there");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_commits_late_is_not_passed_over_on_postgresql() {
    let (application, hub) = (Application::new(Kind::Postgres).await, Hub::new());
    let (database, _) = application.postgres();
    let url = database.url(pabal_conformance::postgres::OWNER);
    let mut late = sqlx::PgConnection::connect(&url).await.unwrap();
    let mut never = sqlx::PgConnection::connect(&url).await.unwrap();
    let never = open!(never, application.insert("never", "a"));
    let late = open!(late, application.insert("late", "a"));
    never.rollback().await.unwrap();
    a_late_commit_is_sent(&application, async || late.commit().await.unwrap(), &hub).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_commits_late_is_not_passed_over_on_mariadb() {
    let (application, hub) = (Application::new(Kind::MariaDb).await, Hub::new());
    let url = application.url().replace("runtime", "owner");
    let mut late = sqlx::MySqlConnection::connect(&url).await.unwrap();
    let mut never = sqlx::MySqlConnection::connect(&url).await.unwrap();
    let never = open!(never, application.insert("never", "a"));
    let late = open!(late, application.insert("late", "a"));
    never.rollback().await.unwrap();
    a_late_commit_is_sent(&application, async || late.commit().await.unwrap(), &hub).await;
}

/// Ten rows of one key and then one of another; somebody else holds the first.
async fn rows_that_somebody_holds(
    application: &Application,
    held: impl AsyncFnOnce(),
    hub: &Arc<Hub>,
) {
    let relay = Relay::start(application, hub, json!({ "batch": 5 }));
    until("the other key to be sent", async || application.status("b").await == "SENT").await;
    assert_eq!(hub.words(), ["b"], "nothing of the key went past the row that is held");
    held().await;
    until("the rest to be sent", async || application.count("status = 'SENT'").await == 11).await;
    let expected: Vec<_> = (0..10).map(|number| format!("a{number}")).collect();
    assert_eq!(hub.words()[1..], expected);
    relay.stop().await;
}

async fn ten_and_one(application: &Application) {
    let ids: Vec<_> = (0..10).map(|number| format!("a{number}")).collect();
    let rows: Vec<_> = ids.iter().map(|id| (id.as_str(), "a")).collect();
    application.write(&rows).await;
    application.write(&[("b", "b")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_else_holds_keeps_its_key_and_no_other_on_postgresql() {
    let (application, hub) = (Application::new(Kind::Postgres).await, Hub::new());
    ten_and_one(&application).await;
    let url = application.postgres().0.url(pabal_conformance::postgres::OWNER);
    let mut other = sqlx::PgConnection::connect(&url).await.unwrap();
    let lock = format!("SELECT 1 FROM outbox WHERE {} FOR UPDATE", application.is("a0"));
    let other = open!(other, lock);
    rows_that_somebody_holds(&application, async || other.commit().await.unwrap(), &hub).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_else_holds_keeps_its_key_and_no_other_on_mariadb() {
    let (application, hub) = (Application::new(Kind::MariaDb).await, Hub::new());
    ten_and_one(&application).await;
    let url = application.url().replace("runtime", "owner");
    let mut other = sqlx::MySqlConnection::connect(&url).await.unwrap();
    let lock = format!("SELECT 1 FROM outbox WHERE {} FOR UPDATE", application.is("a0"));
    let other = open!(other, lock);
    rows_that_somebody_holds(&application, async || other.commit().await.unwrap(), &hub).await;
}

/// Two relays should never run at the same time; if they do, a key keeps its order.
async fn two_relays_at_once(kind: Kind) {
    let (application, slow, fast) = (Application::new(kind).await, Hub::new(), Hub::new());
    ten_and_one(&application).await;
    slow.open(false);
    let first = Relay::start(&application, &slow, json!({ "batch": 5 }));
    slow.called(1).await;
    let second = Relay::start(&application, &fast, json!({ "batch": 5 }));
    until("the other key to be sent", async || application.status("b").await == "SENT").await;
    assert_eq!(fast.words(), ["b"], "the rest of the key waits for the one that holds its head");
    slow.open(true);
    until("all to be sent", async || application.count("status = 'SENT'").await == 11).await;
    assert_eq!(slow.words()[..5], ["a0", "a1", "a2", "a3", "a4"]);
    let mut all = slow.words();
    all.extend(fast.words().into_iter().skip(1));
    all.sort();
    assert_eq!(all.len(), 10, "each went once: {all:?}");
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_relays_at_once_keep_the_order_of_a_key_on_postgresql() {
    two_relays_at_once(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_relays_at_once_keep_the_order_of_a_key_on_mariadb() {
    two_relays_at_once(Kind::MariaDb).await;
}
