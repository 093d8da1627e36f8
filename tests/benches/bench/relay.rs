//! From an application's commit to its partner.

use std::{collections::HashMap, time::Duration};

use pabal_tests::{Postgres, repository};
use sqlx::{PgPool, postgres::PgPoolOptions};

use crate::{
    partner::{Partner, verify},
    relays::{ALL, Relay},
    table::{milliseconds, percentile, print},
};

/// Rows in the table when a relay starts.
const WAITING: usize = 20_000;
/// The textbook is slow, and as fast with the first of them.
const WAITING_FOR_THE_SLOW: usize = 5_000;
/// Rows committed one by one to a relay with nothing else to do.
const SINGLE: usize = 200;
/// Between them: prime to all polls, so that they fall anywhere within an interval.
const BETWEEN: Duration = Duration::from_millis(37);
const LIMIT: Duration = Duration::from_secs(300);

struct Measured {
    relay: Relay,
    rows_a_second: f64,
    p50: Duration,
    p99: Duration,
}

/// Measures all, or the one whose name contains this beside the textbook.
pub(crate) async fn run(only: Option<&str>) {
    let mut measured = Vec::new();
    for relay in ALL {
        let wanted = only.is_none_or(|only| relay.name().contains(only));
        if !wanted && relay != Relay::Textbook {
            continue;
        }
        if !relay.is_there() {
            println!("left out, as what it needs is not there: {}", relay.name());
            continue;
        }
        measured.push(measure(relay).await);
        eprintln!("{}: done", relay.name());
    }
    let base = measured[0].rows_a_second;
    let rows: Vec<_> = measured
        .iter()
        .map(|it| {
            vec![
                it.relay.name().to_owned(),
                format!("{:.0}", it.rows_a_second),
                format!("{:.1} ×", it.rows_a_second / base),
                milliseconds(it.p50),
                milliseconds(it.p99),
            ]
        })
        .collect();
    print(&["relay", "rows/s", "of the textbook", "commit → partner p50", "p99"], &rows);
}

async fn measure(relay: Relay) -> Measured {
    let database = Postgres::durable().await;
    let pool = PgPoolOptions::new().max_connections(2).connect(&database.owner()).await.unwrap();
    let table = std::fs::read_to_string(repository("migrations/app-side/postgres/outbox.sql"));
    sqlx::raw_sql(sqlx::AssertSqlSafe(table.unwrap())).execute(&pool).await.unwrap();
    database.ask("ALTER ROLE owner REPLICATION").await;
    let payload = "ALTER TABLE outbox ALTER COLUMN payload TYPE jsonb \
                   USING convert_from(payload, 'UTF8')::jsonb";
    if relay == Relay::Embedded {
        // Bytes it hands over in another form.
        sqlx::raw_sql(payload).execute(&pool).await.unwrap();
    }
    if relay == Relay::Hub("notify") {
        let trigger =
            std::fs::read_to_string(repository("migrations/app-side/postgres/notify.sql"));
        sqlx::raw_sql(sqlx::AssertSqlSafe(trigger.unwrap())).execute(&pool).await.unwrap();
    }
    let waiting = if relay == Relay::Textbook { WAITING_FOR_THE_SLOW } else { WAITING };
    fill(&pool, relay, waiting).await;

    let partner = Partner::start().await;
    let running = relay.start(&database, partner.port).await;
    let came = partner.wait_for(waiting, LIMIT).await;
    let arrivals = partner.take();
    assert!(came, "{}: {} of {waiting} rows came", relay.name(), arrivals.len());
    verify(&arrivals, waiting);
    // Starting up is not part of it.
    let took = arrivals[arrivals.len() - 1].at - arrivals[0].at;

    let committed = commit_singly(&pool, relay, waiting).await;
    assert!(partner.wait_for(SINGLE, LIMIT).await, "{}: single rows", relay.name());
    let arrivals = partner.take();
    let mut first: HashMap<u64, Duration> = HashMap::new();
    for arrival in &arrivals {
        first.entry(arrival.row.number).or_insert(arrival.at);
    }
    // The partner may have a row before the commit has returned.
    let times: Vec<_> = committed.iter().map(|(n, at)| first[n].saturating_sub(*at)).collect();
    drop(running);
    Measured {
        relay,
        rows_a_second: waiting as f64 / took.as_secs_f64(),
        p50: percentile(&times, 0.5),
        p99: percentile(&times, 0.99),
    }
}

fn payload(relay: Relay) -> &'static str {
    match relay {
        Relay::Embedded => "$PAYLOAD",
        _ => "convert_to(($PAYLOAD)::text, 'UTF8')",
    }
}

/// Rows of 1,000 keys, half a kilobyte each.
fn insert(relay: Relay, numbers: &str) -> sqlx::AssertSqlSafe<String> {
    let json = "jsonb_build_object('key', 'k' || (i % 1000), 'n', i, 'pad', repeat('x', 400))";
    let payload = payload(relay).replace("$PAYLOAD", json);
    sqlx::AssertSqlSafe(format!(
        "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) \
         SELECT gen_random_uuid(), 'form', 'k' || (i % 1000), 'form.submitted', {payload} \
         FROM generate_series({numbers}) AS i"
    ))
}

async fn fill(pool: &PgPool, relay: Relay, rows: usize) {
    sqlx::raw_sql(insert(relay, &format!("0, {}", rows - 1))).execute(pool).await.unwrap();
    sqlx::raw_sql("ANALYZE").execute(pool).await.unwrap();
}

/// Commits rows one by one; when each commit had returned.
async fn commit_singly(pool: &PgPool, relay: Relay, from: usize) -> Vec<(u64, Duration)> {
    let mut ticks = tokio::time::interval(BETWEEN);
    let mut committed = Vec::new();
    for n in from..from + SINGLE {
        ticks.tick().await;
        sqlx::raw_sql(insert(relay, &format!("{n}, {n}"))).execute(pool).await.unwrap();
        committed.push((n as u64, crate::now()));
    }
    committed
}
