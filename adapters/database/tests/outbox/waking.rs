//! A committed row wakes the relay, and looking is the net.

use std::{sync::Arc, time::Duration};

use pabal_core::ManualClock;
use serde_json::{Value, json};

use crate::support::{Application, Hub, Kind, Relay, receiver, until};

const TRIGGER: &str = include_str!("../../../../migrations/app-side/postgres/notify.sql");

/// Nobody who looks this seldom finds anything within a test.
fn seldom() -> Value {
    json!({ "relay": "notify", "interval": "10m", "idle_interval": "10m" })
}

async fn application() -> Application {
    let application = Application::new(Kind::Postgres).await;
    application.run(TRIGGER).await;
    application
}

/// The processes of the server that listen.
async fn listeners(application: &Application) -> String {
    let sql = "SELECT string_agg(pid::text, ' ') FROM pg_stat_activity WHERE query LIKE 'LISTEN%' \
               AND datname = current_database()";
    application.postgres().0.ask(sql)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_committed_row_wakes_the_relay_long_before_its_next_look() {
    let (application, hub) = (application().await, Hub::new());
    let relay = Relay::start(&application, &hub, seldom());
    until("it to listen", async || !listeners(&application).await.is_empty()).await;
    for id in ["a1", "a2", "a3"] {
        application.write(&[(id, "a")]).await;
        until("it to be sent", async || application.status(id).await == "SENT").await;
    }
    assert_eq!(hub.words(), ["a1", "a2", "a3"]);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_was_cut_off_looks_and_listens_again() {
    let (application, hub) = (application().await, Hub::new());
    let relay = Relay::start(&application, &hub, seldom());
    until("it to listen", async || !listeners(&application).await.is_empty()).await;
    let before = listeners(&application).await;
    // Written while nobody can hear it.
    application.run("ALTER TABLE outbox DISABLE TRIGGER outbox_notify").await;
    application.write(&[("unheard", "a")]).await;
    application.run("ALTER TABLE outbox ENABLE TRIGGER outbox_notify").await;
    assert_eq!(application.status("unheard").await, "NEW");
    application.postgres().0.ask(&format!("SELECT pg_terminate_backend({before})"));
    until("the unheard one to be sent", async || application.status("unheard").await == "SENT")
        .await;
    until("it to listen again", async || {
        let now = listeners(&application).await;
        !now.is_empty() && now != before
    })
    .await;
    application.write(&[("heard", "a")]).await;
    until("the next to be sent", async || application.status("heard").await == "SENT").await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_table_is_asked_once_in_five_seconds() {
    let (application, hub) = (application().await, Hub::new());
    let (database, _) = application.postgres();
    database.note_plans();
    let clock = ManualClock::default();
    let settings = json!({ "relay": "notify", "interval": "1s", "idle_interval": "5s" });
    let receiver = receiver(&application.url(), settings, Arc::new(clock.clone()));
    let relay = Relay::run(receiver, hub);
    until("it to listen", async || !listeners(&application).await.is_empty()).await;
    let looks = || database.plans().iter().filter(|(sql, _)| sql.contains("outbox")).count();
    // The first look, and the one after it began to listen.
    until("the first looks", async || looks() >= 1).await;
    until("it to be idle", async || {
        let before = looks();
        for _ in 0..500 {
            tokio::task::yield_now().await;
        }
        application.one("SELECT pg_sleep(0.2)::text").await;
        looks() == before
    })
    .await;
    let before = looks();
    let mut seconds = 0;
    while looks() < before + 6 {
        clock.advance(Duration::from_secs(1));
        seconds += 1;
        assert!(seconds < 120, "{} looks in {seconds} seconds", looks() - before);
        // It goes to sleep again before the next second.
        application.one("SELECT pg_sleep(0.1)::text").await;
    }
    assert!(seconds >= 30, "6 looks in {seconds} seconds");
    relay.stop().await;
}
