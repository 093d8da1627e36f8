//! Hearing of what other nodes wrote, also after the connection was lost.

use std::time::Duration;

use pabal_conformance::postgres::Server;
use pabal_core::*;

use crate::{
    database::{accept, message},
    kit::{open, prepared},
};

/// Bounds a test that would hang.
const PATIENCE: Duration = Duration::from_secs(20);

async fn hears(store: &dyn Store) -> bool {
    tokio::time::timeout(PATIENCE, store.changed()).await.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_lost_the_connection_it_listens_on_listens_again_and_catches_up() {
    let database = prepared(Server::shared()).await;
    let (store, other) = (open(&database).await, open(&database).await);
    let vitals = store.vitals().await.unwrap();
    assert_eq!((vitals.listening, vitals.relistened), (Some(true), 0));
    accept(&*other, message("1", None, "x")).await;
    assert!(hears(&*store).await);

    let ended = database.ask(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
         WHERE datname = current_database() AND query ILIKE 'LISTEN%'",
    );
    assert_eq!(ended, "2", "both nodes listen");
    // It says so by itself, before anything is written: something may have been missed.
    while store.vitals().await.unwrap().relistened == 0 {
        assert!(hears(&*store).await);
    }
    assert_eq!(store.vitals().await.unwrap().listening, Some(true));
    // What is left of the catching up is heard, and then a new message by its notification.
    let drain = async {
        while tokio::time::timeout(Duration::from_millis(1), store.changed()).await.is_ok() {}
    };
    drain.await;
    accept(&*other, message("2", None, "x")).await;
    assert!(hears(&*store).await);
    assert_eq!(store.vitals().await.unwrap().relistened, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_open_transaction_and_the_room_ahead_are_told() {
    use sqlx::{Connection, Executor, PgConnection};

    let database = prepared(Server::shared()).await;
    let store = open(&database).await;
    let vitals = store.vitals().await.unwrap();
    assert_eq!(vitals.days_ahead, Some(7));
    // The role sees its own sessions, and those of others if it is told to.
    let mut forgotten = PgConnection::connect(&database.url("runtime")).await.unwrap();
    forgotten.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await.unwrap();
    forgotten.execute("SELECT pg_sleep(0.2)").await.unwrap();
    let oldest = store.vitals().await.unwrap().oldest_transaction.unwrap();
    assert!(oldest >= 0.2, "{oldest}");
}
