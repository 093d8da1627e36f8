//! An application's outbox table as a source of a hub that is killed while rows are written.

use std::collections::{BTreeMap, BTreeSet};

use pabal_tests::{Nodes, Partner, Postgres, Request, until};

use crate::support::{FAST, takes_all};

const OUTBOX: &str = include_str!("../../../migrations/app-side/postgres/outbox.sql");
const NOTIFY: &str = include_str!("../../../migrations/app-side/postgres/notify.sql");

const DEATHS: usize = 6;
const KEYS: usize = 5;
/// Rows between two deaths.
const ROWS: usize = 200;

/// The source `town/orders` on the application's table.
fn town(more: &str) -> String {
    format!(
        "name = \"Town\"\n[source.orders.database]\nurl = {{ env = \"APPLICATION\" }}\n\
         interval = \"50ms\"\nidle_interval = \"200ms\"\nbatch = 20\n{more}\n"
    )
}

/// Rows of several keys, each with its number in the order of its key.
async fn write(postgres: &Postgres, from: usize) {
    let sql = format!(
        "SET ROLE owner; INSERT INTO outbox \
         (id, aggregate_type, aggregate_id, event_type, payload, version) \
         SELECT gen_random_uuid(), 'order', 'key-' || n % {KEYS}, 'order.placed', \
         convert_to(json_build_object('n', n)::text, 'UTF8'), n \
         FROM generate_series({from}, {}) n",
        from + ROWS - 1
    );
    postgres.ask(&sql).await;
}

/// Of each key the numbers that arrived, each when it did so first.
fn by_key(requests: &[Request]) -> BTreeMap<String, Vec<u64>> {
    let (mut seen, mut keys) = (BTreeSet::new(), BTreeMap::<String, Vec<u64>>::new());
    for request in requests {
        let number = request.json()["n"].as_u64().unwrap();
        if seen.insert(number) {
            let key = request.header("ce-partitionkey").unwrap().to_owned();
            keys.entry(key).or_default().push(number);
        }
    }
    keys
}

/// Kills the hub again and again while rows are written; `holds` is asked each time nothing runs.
async fn kill_while_rows_are_written(more: &str, holds: impl AsyncFn(&Postgres)) {
    let (postgres, partner) = (Postgres::shared().await, Partner::start().await);
    let (application, town) = (postgres.runtime(), town(more));
    let welfare = takes_all(&partner, FAST, "");
    let mut nodes = Nodes::prepare(postgres, 1, |hub| {
        let hub = hub.partner("town", &town).partner("welfare", &welfare);
        hub.hub_toml("lease = \"3s\"").variable("APPLICATION", &application)
    })
    .await;
    let postgres = nodes.postgres.clone();
    postgres
        .ask(&format!(
            "GRANT CREATE ON SCHEMA public TO owner; SET ROLE owner; {OUTBOX} {NOTIFY} \
             GRANT SELECT, UPDATE (status, retry_count, last_error, sent_at) ON outbox TO runtime"
        ))
        .await;
    nodes.node_mut(0).start().await;
    for death in 0..DEATHS {
        write(&postgres, death * ROWS).await;
        // In the middle of it.
        let enough = death * ROWS + 20 + death * 25;
        partner.wait_until("some rows of these", |requests| requests.len() > enough).await;
        nodes.node_mut(0).kill9().await;
        holds(&postgres).await;
        nodes.node_mut(0).start().await;
    }
    until("all rows to be sent", async || {
        let left = postgres.ask("SELECT count(*) FROM outbox WHERE status <> 'SENT'").await;
        (left == "0").then_some(())
    })
    .await;
    let all = DEATHS * ROWS;
    let requests = partner
        .wait_until("all rows", |requests| by_key(requests).values().flatten().count() == all)
        .await;
    for (key, numbers) in by_key(&requests) {
        assert!(numbers.is_sorted(), "{key} out of order: {numbers:?}");
    }
    let messages = postgres.ask("SELECT count(*) FROM pabal.message").await;
    assert_eq!(messages, all.to_string(), "each row is one message, however often it was offered");
    let ids: BTreeSet<_> = requests.iter().filter_map(Request::message_id).collect();
    assert_eq!(ids.len(), all, "and has one id for the partner");
    holds(&postgres).await;
}

#[tokio::test]
async fn rows_are_sent_once_in_effect_and_in_order_however_often_the_hub_is_killed() {
    kill_while_rows_are_written("", async |_| {}).await;
}

#[tokio::test]
async fn in_one_database_a_row_is_marked_exactly_if_its_message_is_there() {
    let more = "one_transaction = true\nrelay = \"notify\"";
    kill_while_rows_are_written(more, async |postgres| {
        let apart = "SELECT count(*) FROM outbox o FULL JOIN pabal.message m \
                     ON m.origin_id = o.id::text \
                     WHERE (o.status = 'SENT') IS DISTINCT FROM (m.id IS NOT NULL)";
        assert_eq!(postgres.ask(apart).await, "0", "rows marked without a message, or not marked");
    })
    .await;
}
