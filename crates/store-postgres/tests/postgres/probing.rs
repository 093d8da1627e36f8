//! Looking at a database without changing it.

use pabal_conformance::postgres::{Database, OWNER, RUNTIME, Server};
use pabal_core::{Secret, Severity};
use pabal_store_postgres::{Options, PostgresStore};

use crate::kit::{by_default, options, prepared};

async fn look(options: &Options) -> Vec<String> {
    let mut found = PostgresStore::probe(options).await;
    // The server of the tests does not write through.
    found.retain(|it| !it.what.starts_with("fsync"));
    found.iter().map(|it| format!("{:?}: {}", it.severity, it.what)).collect()
}

async fn look_as(database: &Database<'_>, role: &str) -> Vec<String> {
    look(&options(database, role)).await
}

#[tokio::test]
async fn a_look_finds_nothing_where_all_is_well_and_makes_nothing() {
    let database = prepared(Server::shared()).await;
    assert_eq!(look_as(&database, RUNTIME).await, Vec::<String>::new());
    let empty = Server::shared().database();
    let told = look_as(&empty, OWNER).await;
    assert_eq!(told, ["Note: the schema is not there yet"]);
    let told = look_as(&empty, RUNTIME).await;
    assert_eq!(told, ["Fault: the schema is not there yet, and this role may not change it"]);
    assert_eq!(empty.ask("SELECT to_regnamespace('pabal') IS NULL"), "t");
}

#[tokio::test]
async fn a_look_tells_what_a_hub_would_be_refused_for() {
    let database = prepared(Server::shared()).await;
    let other = Options { hub_name: "other".to_owned(), ..options(&database, RUNTIME) };
    assert!(look(&other).await[0].contains("belongs to hub `conformance`"));

    database.ask("REVOKE INSERT ON pabal.outbox FROM runtime");
    let found = PostgresStore::probe(&options(&database, RUNTIME)).await;
    let fault = found.iter().find(|it| it.severity == Severity::Fault).unwrap();
    assert_eq!(fault.what, "the role `runtime` may not do what a hub does");
    assert!(fault.help.as_ref().unwrap().contains("pabal.grant_to('runtime')"));
    database.ask("REVOKE USAGE ON SCHEMA pabal FROM runtime");
    let told = look_as(&database, RUNTIME).await;
    assert!(told[0].starts_with("Fault") && told[0].contains("pabal.grant_to"), "{told:?}");

    by_default(&database, "synchronous_commit = off");
    assert!(look_as(&database, OWNER).await[0].contains("synchronous_commit is off"));
}

#[tokio::test]
async fn an_unreachable_server_is_a_fault_that_holds_no_password() {
    let database = prepared(Server::shared()).await;
    let url = Secret::new("postgres://runtime:s3cret@127.0.0.1:1/hub");
    let told = look(&Options { url, ..options(&database, RUNTIME) }).await;
    assert!(told[0].starts_with("Fault: cannot connect to database `hub` at 127.0.0.1:1"));
    assert!(!told[0].contains("s3cret"));
}
