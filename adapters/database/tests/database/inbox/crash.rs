//! The server ends in the middle.

use std::sync::Arc;

use pabal_conformance::postgres::{OWNER, Server};
use serde_json::json;
use sqlx::{Connection, Executor, PgConnection};

use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_between_apply_and_commit_leaves_nothing_and_the_repeat_is_applied_once() {
    let server = Server::start(&[]);
    let database = server.database();
    database.ask(include_str!("../../../../../migrations/app-side/postgres/inbox.sql"));
    database.ask(
        "CREATE TABLE application (no text); GRANT ALL ON ALL TABLES IN SCHEMA public TO owner",
    );
    let url = database.url(OWNER);
    let apply = [
        "INSERT INTO application VALUES (:key)",
        // Behind what was applied, before the commit.
        "SELECT pg_advisory_xact_lock(1)",
    ];
    let sender = sender(&url, json!({ "apply": apply }));
    let mut holder = PgConnection::connect(&url).await.unwrap();
    holder.execute("SELECT pg_advisory_lock(1)").await.unwrap();
    let message = of("1", "A-1", "{}");
    let sending = {
        let (sender, message) = (Arc::clone(&sender), message.clone());
        tokio::spawn(async move { send(&*sender, &message).await })
    };
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    let mut ticks = tokio::time::interval(std::time::Duration::from_millis(20));
    while database.ask(waits) == "0" {
        assert!(!sending.is_finished());
        ticks.tick().await;
    }
    server.stop_immediately();
    let verdict = sending.await.unwrap();
    assert_eq!(words(std::slice::from_ref(&verdict)), ["transient"], "{verdict:?}");
    let verdict = send(&*sender, &message).await;
    assert_eq!(words(std::slice::from_ref(&verdict)), ["unreachable"], "{verdict:?}");

    server.start_again();
    let counts = "SELECT (SELECT count(*) FROM inbox), (SELECT count(*) FROM application)";
    assert_eq!(database.ask(counts), "0|0");
    // A connection that was open before may be found broken once.
    let mut verdicts = vec![send(&*sender, &message).await, send(&*sender, &message).await];
    verdicts.push(send(&*sender, &message).await);
    assert!(words(&verdicts).contains(&"taken"), "{verdicts:?}");
    assert_eq!(words(&verdicts[2..]), ["duplicate"], "{verdicts:?}");
    assert_eq!(database.ask(counts), "1|1");
}
