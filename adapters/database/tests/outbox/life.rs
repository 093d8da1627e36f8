//! Databases that go away, say nothing or allow nothing.

use std::sync::Arc;

use pabal_conformance::{mariadb, postgres};
use pabal_core::{Stop, SystemClock};
use serde_json::json;

use crate::support::{Application, Hub, Kind, Relay, receiver, until, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_comes_back_after_postgresql_was_away() {
    let server: &'static _ = Box::leak(Box::new(postgres::Server::start(&[])));
    let application = Application::on_postgres(server.database()).await;
    let hub = Hub::new();
    let relay = Relay::start(&application, &hub, json!({ "relay": "notify" }));
    application.write(&[("a1", "a")]).await;
    until("the first to be sent", async || application.status("a1").await == "SENT").await;
    server.stop_immediately();
    server.start_again();
    application.renew().await;
    application.write(&[("a2", "a")]).await;
    until("the second to be sent", async || application.status("a2").await == "SENT").await;
    assert_eq!(hub.words(), ["a1", "a2"]);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_comes_back_after_mariadb_was_away() {
    let server: &'static _ = Box::leak(Box::new(mariadb::Server::start(&[])));
    let application = Application::on_mariadb(server.database()).await;
    let hub = Hub::new();
    let relay = Relay::start(&application, &hub, json!({}));
    application.write(&[("a1", "a")]).await;
    until("the first to be sent", async || application.status("a1").await == "SENT").await;
    server.stop_immediately();
    server.start_again();
    application.renew().await;
    application.write(&[("a2", "a")]).await;
    until("the second to be sent", async || application.status("a2").await == "SENT").await;
    assert_eq!(hub.words(), ["a1", "a2"]);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_does_not_wait_for_a_database_that_says_nothing() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    for scheme in ["postgres", "mysql"] {
        let url = format!("{scheme}://somebody@{address}/x");
        let receiver = receiver(&url, json!({}), Arc::new(SystemClock));
        let (hub, stop) = (Hub::new(), Stop::new());
        let own = stop.clone();
        let task = tokio::spawn(async move { receiver.run(hub, own).await });
        let (connection, _) = within("a connection", silent.accept()).await.unwrap();
        stop.fire();
        within("the end", task).await.unwrap().unwrap();
        drop(connection);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_write_back_is_told_so() {
    for kind in [Kind::Postgres, Kind::MariaDb] {
        let (application, hub) = (Application::new(kind).await, Hub::new());
        application.revoke_update();
        application.write(&[("a1", "a")]).await;
        let relay = Relay::start(&application, &hub, json!({}));
        let ended = within("the end of the relay", relay.task).await.unwrap();
        let error = ended.unwrap_err().to_string();
        assert!(error.contains("denied"), "{error}");
        assert_eq!(application.status("a1").await, "NEW");
    }
}
