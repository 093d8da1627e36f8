//! What a look costs stays the same, also while somebody keeps an old transaction open.

use std::{sync::Arc, time::Duration};

use pabal_conformance::postgres::OWNER;
use pabal_core::ManualClock;
use serde_json::json;
use sqlx::Connection;

use crate::support::{Application, Hub, Kind, Relay, receiver, until};

/// Rows a second, and seconds.
const RATE: u64 = 500;
const SECONDS: u64 = 60;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_costs_the_same_while_a_forgotten_transaction_is_open() {
    let (application, hub) = (Application::new(Kind::Postgres).await, Hub::new());
    let (database, _) = application.postgres();
    database.note_plans();
    // Nothing that was deleted or changed can be cleaned away from now on.
    let mut forgotten = sqlx::PgConnection::connect(&database.url(OWNER)).await.unwrap();
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox";
    sqlx::raw_sql(begin).execute(&mut forgotten).await.unwrap();
    let clock = ManualClock::default();
    let settings = json!({ "interval": "1s", "idle_interval": "1s" });
    let receiver = receiver(&application.url(), settings, Arc::new(clock.clone()));
    let relay = Relay::run(receiver, hub.clone());
    for second in 1..=SECONDS {
        application
            .run(&format!(
                "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) \
                 SELECT gen_random_uuid(), 'a', n % 50, 't', '{{}}' FROM generate_series(1, {RATE}) n"
            ))
            .await;
        until("them to be sent", async || {
            clock.advance(Duration::from_millis(100));
            hub.ids().len() as u64 == second * RATE
        })
        .await;
        clock.advance(Duration::from_millis(1000));
    }
    relay.stop().await;
    let looks: Vec<(bool, u64)> = database
        .plans()
        .into_iter()
        .filter(|(sql, _)| sql.contains("AS o WHERE"))
        .map(|(sql, pages)| (sql.contains(">= $1"), pages))
        .collect();
    let quick: Vec<u64> =
        looks.iter().filter(|(quick, _)| *quick).map(|(_, pages)| *pages).collect();
    let whole: Vec<u64> =
        looks.iter().filter(|(quick, _)| !*quick).map(|(_, pages)| *pages).collect();
    eprintln!("pages of quick looks: {quick:?}\npages of whole looks: {whole:?}");
    // Everything is looked through once in ten seconds, as far as it takes little of the time.
    assert!(quick.len() > 2 * whole.len(), "most looks are quick");
    let third = quick.len() / 3;
    let most = |looks: &[u64]| looks.iter().copied().max().unwrap_or_default();
    let (early, late) = (most(&quick[..third]), most(&quick[2 * third..]));
    assert!(late <= early * 2, "the dearest look early: {early} pages, late: {late} pages");
    drop(forgotten);
}
