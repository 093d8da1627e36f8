//! What a database must be like, and who may do what in it.

use std::sync::Arc;

use pabal_conformance::postgres::{OWNER, RUNTIME, Server};
use pabal_core::{Accepted, Entry, Secret, Store, StoreError, SystemClock};
use pabal_store_postgres::{OpenError, Options, PostgresStore};

use crate::{
    database::{accept, message},
    kit::{by_default, open, open_as, options, prepared},
};

#[tokio::test]
async fn nodes_that_start_together_bring_the_schema_up_to_date_once() {
    let database = Server::shared().database();
    let mut starts = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let options = options(&database, OWNER);
        starts.spawn(async move { PostgresStore::migrate(&options).await.unwrap() });
    }
    starts.join_all().await;
    assert_eq!(database.ask("SELECT count(*) FROM pabal._migrations"), "1");
    // An application's own tables are none of its business.
    let elsewhere = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
    assert_eq!(database.ask(elsewhere), "0");
}

#[tokio::test]
async fn a_role_that_may_not_change_the_schema_is_told_who_should() {
    let database = Server::shared().database();
    let error = open_as(&database, RUNTIME).await.unwrap_err();
    assert!(matches!(error, OpenError::Pending { has: 0, .. }), "{error:?}");
    assert!(
        error.to_string().contains("run `pabal migrate` with the role that owns it"),
        "{error}"
    );
}

#[tokio::test]
async fn the_role_that_runs_can_neither_change_the_schema_nor_what_only_grows() {
    let database = prepared(Server::shared()).await;
    open(&database).await.close().await;
    let started = "SELECT has_table_privilege('runtime', 'pabal.outbox', 'DELETE')";
    assert_eq!(database.ask(started), "t");
    for forbidden in [
        "CREATE TABLE pabal.x (a int)",
        "DROP TABLE pabal.outbox",
        "DELETE FROM pabal.delivery_log",
        "UPDATE pabal.message SET body = NULL",
        "DELETE FROM pabal.operator_log",
        "UPDATE pabal.meta SET value = 'x'",
        "SELECT pabal.grant_to('postgres')",
    ] {
        // Ends with an error of its own if the statement is not refused for want of a right.
        database.ask(&format!(
            "DO $do$ BEGIN SET LOCAL ROLE {RUNTIME}; \
             BEGIN {} EXCEPTION WHEN insufficient_privilege THEN RETURN; END; \
             RAISE 'it was allowed'; END $do$",
            match forbidden.strip_prefix("SELECT ") {
                Some(call) => format!("PERFORM {call};"),
                None => format!("{forbidden};"),
            }
        ));
    }
    let untouched = "SELECT to_regclass('pabal.x') IS NULL AND to_regclass('pabal.outbox') \
                     IS NOT NULL AND NOT has_schema_privilege('runtime', 'pabal', 'CREATE')";
    assert_eq!(database.ask(untouched), "t");
}

#[tokio::test]
async fn another_hubs_database_is_refused() {
    let database = prepared(Server::shared()).await;
    let other = Options { hub_name: "other".to_owned(), ..options(&database, RUNTIME) };
    let error = PostgresStore::open(other, Arc::new(SystemClock)).await.unwrap_err();
    assert!(matches!(error, OpenError::OtherHub { .. }), "{error:?}");
    assert!(error.to_string().contains("belongs to hub `conformance`"), "{error}");
}

#[tokio::test]
async fn a_database_whose_commits_may_be_lost_is_refused() {
    let database = prepared(Server::shared()).await;
    let store = open(&database).await;
    by_default(&database, "synchronous_commit = off");
    let error = open_as(&database, RUNTIME).await.unwrap_err();
    assert!(error.to_string().contains("synchronous_commit is off"), "{error}");
    // Also by who runs already, as soon as it connects anew.
    database.ask(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
         WHERE datname = current_database() AND usename = 'runtime'",
    );
    let error = store.accept(&[Entry::Message(message("1", None, "x"))]).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert_eq!(database.ask("SELECT count(*) FROM pabal.inbox"), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_transactions_are_like_by_default_changes_nothing() {
    let database = prepared(Server::shared()).await;
    by_default(&database, "default_transaction_isolation = serializable");
    by_default(&database, "default_transaction_read_only = on");
    let nodes = [open(&database).await, open(&database).await];
    let mut copies = tokio::task::JoinSet::new();
    for copy in 0..20 {
        let store = nodes[copy % 2].clone();
        copies.spawn(async move { accept(&*store, message("1", None, "x")).await });
    }
    let answers = copies.join_all().await;
    assert_eq!(answers.iter().filter(|answer| **answer == Accepted::Stored).count(), 1);
    assert_eq!(answers.iter().filter(|answer| **answer == Accepted::Duplicate).count(), 19);
}

#[tokio::test]
async fn a_role_that_was_given_nothing_is_told_how_it_gets_it() {
    let database = Server::shared().database();
    PostgresStore::migrate(&options(&database, OWNER)).await.unwrap();
    let error = open_as(&database, RUNTIME).await.unwrap_err();
    assert!(error.to_string().contains("SELECT pabal.grant_to('runtime')"), "{error}");
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let database = prepared(Server::shared()).await;
    database.ask(
        "INSERT INTO pabal._migrations (version, description, success, checksum, execution_time) \
         VALUES (99, 'later', true, '', 0)",
    );
    let error = open_as(&database, OWNER).await.unwrap_err();
    assert!(matches!(error, OpenError::Newer { step: 99, .. }), "{error:?}");
}

#[tokio::test]
async fn no_error_of_opening_holds_the_password() {
    let port = Server::shared().port();
    let secret = "s3cret-pass";
    for url in [
        format!("postgres://runtime:{secret}@127.0.0.1:{port}/nowhere"),
        format!("postgres://runtime:{secret}@127.0.0.1:1/nowhere"),
        format!("postgres:/{secret}"),
        format!("mysql://runtime:{secret}@127.0.0.1/x"),
    ] {
        let options = Options {
            url: Secret::new(url),
            listen_url: None,
            hub_name: "conformance".to_owned(),
            connections: 2,
            may_migrate: true,
        };
        assert!(!format!("{options:?}").contains(secret));
        let error = PostgresStore::open(options, Arc::new(SystemClock)).await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains(secret), "{error}");
    }
}
