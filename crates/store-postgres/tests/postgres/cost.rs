//! What a claim costs, counted in pages and not in time.

use pabal_conformance::postgres::{Database, Server};
use pabal_core::*;
use sqlx::{Connection, Executor, PgConnection};

use crate::{
    database::{delivered, message, tail},
    kit::{open, prepared},
};

/// Pages that a statement touches, in memory or on disk.
fn pages(database: &Database<'_>, sql: &str) -> u64 {
    let plan = database.ask(&format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}"));
    let first = |what: &str| -> u64 {
        let (_, rest) = plan.split_once(&format!("\"{what}\": ")).unwrap();
        rest.split(|letter: char| !letter.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    first("Shared Hit Blocks") + first("Shared Read Blocks")
}

/// The next 500 of all destinations, as the tail read asks for them.
fn next(database: &Database<'_>, after: Number) -> u64 {
    pages(
        database,
        &format!("SELECT * FROM pabal.outbox WHERE number > {after} ORDER BY number LIMIT 500"),
    )
}

fn fill(database: &Database<'_>, rows: u64, key: &str) {
    database.ask(&format!(
        "INSERT INTO pabal.outbox (day, message, destination, slot, key, attempts, round, due, \
         started, accepted, size) SELECT pabal.today(), md5(n::text)::uuid, 'q/out', 7, {key}, 0, 0, \
         pabal.time() + interval '1 hour', 0, pabal.time(), 1 FROM generate_series(1, {rows}) n"
    ));
}

#[tokio::test]
async fn the_next_of_a_backlog_and_of_one_deep_key_cost_the_same_however_much_waits() {
    let database = prepared(Server::shared()).await;
    fill(&database, 500, "'k'");
    let of_key = "SELECT * FROM pabal.outbox WHERE key IS NOT NULL \
                  AND (destination, slot, key, number) > ('q/out', 7, 'k', 250) \
                  AND (destination, slot, key) <= ('q/out', 7, 'k') \
                  ORDER BY destination, slot, key, number LIMIT 32";
    let of_destination = "SELECT * FROM pabal.outbox \
                          WHERE (destination, number) > ('q/out', 250) \
                          AND destination <= 'q/out' ORDER BY destination, number LIMIT 250";
    let few = [next(&database, 0), pages(&database, of_key), pages(&database, of_destination)];
    fill(&database, 20_000, "'k'");
    fill(&database, 20_000, "'key ' || n");
    // As the server does by itself after so many new rows.
    database.ask("ANALYZE pabal.outbox");
    let many = [next(&database, 0), pages(&database, of_key), pages(&database, of_destination)];
    for (few, many) in few.into_iter().zip(many) {
        // An index may be a level deeper.
        assert!(many <= few + few / 2 + 10, "{few} pages with 500 waiting, {many} with 40,500");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_transaction_makes_neither_the_tail_read_nor_a_heartbeat_dearer() {
    let database = prepared(Server::shared()).await;
    let store = open(&database).await;
    let plan = NodePlan { hash: "h".into(), endpoints: Vec::new() };
    let epoch = store.join("n", &plan).await.unwrap();
    let mut forgotten = PgConnection::connect(&database.url("runtime")).await.unwrap();
    let snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pabal.outbox";
    forgotten.execute(snapshot).await.unwrap();

    let mut position = 0;
    let mut costs = Vec::new();
    for round in 0..40 {
        let id = |n: usize| format!("{round} {n}");
        let group: Vec<_> =
            (0..500).map(|n| Entry::Message(message(&id(n), Some("k"), "x"))).collect();
        store.accept(&group).await.unwrap();
        costs.push(next(&database, position));
        let rows = tail(&*store, position).await;
        assert_eq!(rows.len(), 500);
        position = rows.last().unwrap().number;
        let group: Vec<_> = rows.iter().map(delivered).collect();
        assert_eq!(store.settle(epoch, &group).await.unwrap(), vec![Settled::Done; 500]);
        store.beat(epoch).await.unwrap();
    }
    // A table of few pages is read whole, which costs less than its index.
    let (early, late) = (costs[..20].iter().max().unwrap(), costs[20..].iter().max().unwrap());
    assert!(late <= &(early + early / 2), "no flatter than {costs:?}");
    // Settled rows have left, though the snapshot keeps them from being cleaned up.
    assert_eq!(database.ask("SELECT count(*) FROM pabal.outbox"), "0");
    let front = next(&database, 0);
    assert!(front > 2 * late, "from the front it would be {front} pages: the snapshot was there");
    let heartbeat = pages(&database, "SELECT * FROM pabal.node ORDER BY epoch");
    assert!(heartbeat <= 10, "{heartbeat} pages for one node");
    assert!(store.vitals().await.unwrap().oldest_transaction.unwrap() > 0.0);
    forgotten.execute("ROLLBACK").await.unwrap();
}
