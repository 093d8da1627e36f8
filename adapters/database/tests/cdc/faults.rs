//! What goes wrong between the server and the hub, and how it goes on.

use std::sync::Arc;

use pabal_conformance::postgres::{OWNER, Server};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::{
    hub::{Hub, Mood},
    log::Log,
    support::{Application, insert},
};

#[tokio::test]
async fn a_server_that_crashes_in_mid_stream_loses_nothing() {
    let server = Server::start(&[]);
    let application = Application::new(&server);
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    application.streaming().await;
    for round in 0..2 {
        application.commit(&format!("{round}-before"));
        hub.has(round * 2 + 1).await;
        server.stop_immediately();
        server.start_again();
        application.commit(&format!("{round}-after"));
        hub.has(round * 2 + 2).await;
    }
    assert_eq!(hub.ids(), ["0-before", "0-after", "1-before", "1-after"]);
    relay.stop().await;
}

#[tokio::test]
async fn a_connection_that_is_cut_is_made_again() {
    let application = Application::new(Server::shared());
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    application.streaming().await;
    application.commit("a");
    hub.has(1).await;
    application.database.ask(&format!(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{}'",
        application.slot
    ));
    application.commit("b");
    hub.has(2).await;
    relay.stop().await;
}

#[tokio::test]
async fn a_slot_that_was_dropped_is_made_again_and_the_table_is_read_for_what_it_missed() {
    let (log, _guard) = Log::keep();
    let application = Application::new(Server::shared());
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    application.streaming().await;
    application.commit("a");
    hub.has(1).await;
    relay.stop().await;
    application.database.ask(&format!("SELECT pg_drop_replication_slot('{}')", application.slot));
    application.commit("missed");
    let relay = application.relay(&hub);
    log.alerts("the slot is gone").await;
    hub.has(2).await;
    application.commit("b");
    hub.has(3).await;
    assert_eq!(hub.ids(), ["a", "missed", "b"]);
    relay.stop().await;
}

#[tokio::test]
async fn a_slot_that_waits_for_a_forgotten_transaction_is_told_of_and_a_stop_waits_for_nobody() {
    let (log, _guard) = Log::keep();
    let application = Application::new(Server::shared());
    let mut forgetful = PgConnection::connect(&application.database.url(OWNER)).await.unwrap();
    let mut transaction = forgetful.begin().await.unwrap();
    let statement = AssertSqlSafe(insert("forgotten"));
    sqlx::raw_sql(statement).execute(&mut *transaction).await.unwrap();
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    log.alerts("pg_stat_activity shows them").await;
    relay.stop().await;
    let relay = application.relay(&hub);
    transaction.commit().await.unwrap();
    hub.has(1).await;
    application.commit("after");
    hub.has(2).await;
    assert_eq!(hub.ids(), ["forgotten", "after"]);
    relay.stop().await;
}

#[tokio::test]
async fn a_slot_that_somebody_else_holds_is_waited_for_and_told_of() {
    let (log, _guard) = Log::keep();
    let application = Application::new(Server::shared());
    let hub = Arc::new(Hub::default());
    let first = application.relay(&hub);
    application.streaming().await;
    let second = application.relay(&hub);
    log.alerts("is active for PID").await;
    first.stop().await;
    application.commit("a");
    hub.has(1).await;
    second.stop().await;
}

#[tokio::test]
async fn a_lost_slot_is_told_of_with_what_to_do() {
    let (log, _guard) = Log::keep();
    let server =
        Server::start(&["max_slot_wal_keep_size=1MB", "min_wal_size=32MB", "max_wal_size=32MB"]);
    let application = Application::new(&server);
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    application.streaming().await;
    application.commit("a");
    hub.has(1).await;
    relay.stop().await;
    // More of the log than is kept.
    application.commit("b");
    for _ in 0..6 {
        application
            .database
            .ask("SELECT pg_switch_wal(); CREATE TABLE t AS SELECT 1; DROP TABLE t");
        application.database.ask("CHECKPOINT");
    }
    let relay = application.relay(&hub);
    log.alerts("is lost").await;
    application.database.ask(&format!("SELECT pg_drop_replication_slot('{}')", application.slot));
    // What still stands in the table is taken.
    hub.has(2).await;
    assert_eq!(hub.ids(), ["a", "b"]);
    relay.stop().await;
}

#[tokio::test]
async fn a_log_that_grows_because_of_the_slot_is_told_of_once() {
    let (log, _guard) = Log::keep();
    let application = Application::new(Server::shared()).cdc("wal_max", json!("2MiB"));
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    application.streaming().await;
    hub.mood.send_replace(Mood::Busy);
    application.commit("a");
    hub.called(2).await;
    application
        .database
        .ask("CREATE TABLE much AS SELECT repeat('x', 1000) FROM generate_series(1, 9000)");
    log.alerts("cdc.wal_max").await;
    hub.called(hub.calls()).await;
    assert_eq!(log.count("cdc.wal_max"), 1);
    hub.mood.send_replace(Mood::Takes);
    hub.has(1).await;
    relay.stop().await;
}

#[tokio::test]
async fn without_logical_replication_the_table_is_polled_until_it_is_there() {
    let (log, _guard) = Log::keep();
    let server = Server::start(&["wal_level=replica"]);
    let application = Application::new(&server).cdc("fall_back", json!(true));
    application.commit("a");
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    log.alerts("wal_level = replica").await;
    hub.has(1).await;
    application.database.ask("ALTER SYSTEM SET wal_level = 'logical'");
    server.stop_immediately();
    server.start_again();
    application.streaming().await;
    application.commit("b");
    hub.has(2).await;
    assert_eq!(hub.ids(), ["a", "b"]);
    relay.stop().await;
}

#[tokio::test]
async fn without_a_free_slot_it_says_so_and_goes_on_once_there_is_one() {
    let (log, _guard) = Log::keep();
    let server = Server::start(&["max_replication_slots=1"]);
    let application = Application::new(&server);
    application.database.ask("SELECT pg_create_physical_replication_slot('other')");
    application.commit("a");
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    log.alerts("no slot free").await;
    application.database.ask("SELECT pg_drop_replication_slot('other')");
    hub.has(1).await;
    relay.stop().await;
}
