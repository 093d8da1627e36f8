//! What a claim costs, counted in pages and not in time.

use pabal_conformance::postgres::{Database, Server};
use pabal_core::*;
use sqlx::{Connection, Executor, PgConnection};

use crate::{
    database::{delivered, message, name, tail},
    kit::{open, prepared},
};

/// The pages that the statements with these words touch while something is done, one by one.
async fn pages(database: &Database<'_>, words: &str, act: impl Future) -> Vec<u64> {
    let before = database.plans().len();
    act.await;
    let plans = database.plans();
    let ours = plans[before..].iter().filter(|(statement, _)| statement.contains(words));
    let pages: Vec<_> = ours.map(|(_, pages)| *pages).collect();
    assert!(!pages.is_empty(), "no statement with {words}");
    pages
}

/// The next 500 of all destinations.
async fn next(database: &Database<'_>, store: &dyn Store, after: Number) -> u64 {
    let read = store.deliveries(Which::Tail { after }, 500);
    pages(database, "FROM pabal.outbox", read).await[0]
}

fn fill(database: &Database<'_>, rows: u64, key: &str, slot: u8) {
    database.ask(&format!(
        "INSERT INTO pabal.outbox (day, message, destination, slot, key, attempts, round, due, \
         started, accepted, size) SELECT pabal.today(), md5(n::text)::uuid, 'q/out', {slot}, {key}, 0, 0, \
         pabal.time() + interval '1 hour', 0, pabal.time(), 1 FROM generate_series(1, {rows}) n"
    ));
}

#[tokio::test]
async fn the_next_of_a_backlog_and_of_one_deep_key_cost_the_same_however_much_waits() {
    let database = prepared(Server::shared()).await;
    database.note_plans();
    let store = open(&database).await;
    let destination = name("q/out");
    // Of its key, whose slot the rows have.
    let slot = slot("k");
    let cost = async || {
        let key = Which::Key { destination: &destination, key: "k", after: 250 };
        let all = Which::Destination { destination: &destination, after: 250 };
        [
            next(&database, &*store, 0).await,
            pages(&database, "FROM pabal.outbox", store.deliveries(key, 32)).await[0],
            pages(&database, "FROM pabal.outbox", store.deliveries(all, 250)).await[0],
        ]
    };
    fill(&database, 500, "'k'", slot);
    let few = cost().await;
    fill(&database, 20_000, "'k'", slot);
    fill(&database, 20_000, "'key ' || n", slot);
    // Whether the server has counted the new rows yet or not.
    let uncounted = cost().await;
    database.ask("ANALYZE pabal.outbox");
    for many in [uncounted, cost().await] {
        for (few, many) in few.into_iter().zip(many) {
            // An index may be a level deeper.
            assert!(many <= few + few / 2 + 10, "{few} pages with 500 waiting, {many} with 40,500");
        }
    }
}

/// Deliveries that may go, one after the other.
fn fill_due(database: &Database<'_>, rows: u64, key: &str, slot: u8) {
    fill(database, rows, key, slot);
    database.ask("UPDATE pabal.outbox SET due = pabal.time() WHERE due > pabal.time()");
}

#[tokio::test]
async fn a_pull_costs_the_same_however_deep_the_key_in_front_and_however_many_wait() {
    let database = prepared(Server::shared()).await;
    database.note_plans();
    let store = open(&database).await;
    let destination = name("q/out");
    let ask = |scan| PullAsk {
        order: Order::Key,
        scan,
        max: 10,
        bytes_max: 1_000_000,
        lease: std::time::Duration::from_secs(60),
        attempts_max: 12,
        unsuspected: false,
    };
    let cost = async || {
        let mut costs = Vec::new();
        for scan in [Scan::Numbers(0), Scan::Numbers(400), Scan::Keys(None)] {
            let ask = ask(scan);
            let pull = store.pull(&destination, &ask);
            costs.push(pages(&database, "pabal.outbox", pull).await.iter().sum::<u64>());
            database
                .ask("UPDATE pabal.outbox SET due = pabal.time() - interval '1 s', started = 0");
        }
        costs
    };
    fill_due(&database, 500, "'k'", slot("k"));
    fill_due(&database, 500, "'key ' || n", 7);
    database.ask("VACUUM pabal.outbox");
    let few = cost().await;
    fill_due(&database, 20_000, "'k'", slot("k"));
    fill_due(&database, 20_000, "'further ' || n", 9);
    database.ask("VACUUM pabal.outbox");
    // Whether the server has counted the new rows yet or not.
    let uncounted = cost().await;
    database.ask("VACUUM ANALYZE pabal.outbox");
    for many in [uncounted, cost().await] {
        for (few, many) in few.iter().zip(&many) {
            // An index may be a level deeper, for each key that is looked at.
            assert!(
                *many <= few + few / 2 + 50,
                "{few} pages with 1,000 waiting, {many} with 41,000"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_transaction_makes_neither_the_tail_read_nor_a_heartbeat_dearer() {
    let database = prepared(Server::shared()).await;
    database.note_plans();
    let store = open(&database).await;
    let plan = NodePlan { hash: "h".into(), endpoints: Vec::new() };
    let epoch = store.join("n", &plan).await.unwrap();
    let mut forgotten = PgConnection::connect(&database.url("runtime")).await.unwrap();
    let snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pabal.outbox";
    forgotten.execute(snapshot).await.unwrap();

    let mut position = 0;
    let (mut costs, mut heartbeats) = (Vec::new(), Vec::new());
    for round in 0..40 {
        let id = |n: usize| format!("{round} {n}");
        let group: Vec<_> =
            (0..500).map(|n| Entry::Message(message(&id(n), Some("k"), "x"))).collect();
        store.accept(&group).await.unwrap();
        costs.push(next(&database, &*store, position).await);
        let rows = tail(&*store, position).await;
        assert_eq!(rows.len(), 500);
        position = rows.last().unwrap().number;
        let group: Vec<_> = rows.iter().map(delivered).collect();
        assert_eq!(store.settle(epoch, &group).await.unwrap(), vec![Settled::Done; 500]);
        heartbeats.extend(pages(&database, "FROM pabal.node", store.beat(epoch)).await);
    }
    let (early, late) = (costs[..20].iter().max().unwrap(), costs[20..].iter().max().unwrap());
    assert!(late <= &(early + early / 2), "no flatter than {costs:?}");
    // Settled rows have left, though the snapshot keeps them from being cleaned up.
    assert_eq!(database.ask("SELECT count(*) FROM pabal.outbox"), "0");
    let front = next(&database, &*store, 0).await;
    assert!(front > 2 * late, "from the front it would be {front} pages: the snapshot was there");
    assert!(heartbeats.iter().all(|pages| *pages <= 10), "{heartbeats:?} pages for one node");
    assert!(store.vitals().await.unwrap().oldest_transaction.unwrap() > 0.0);
    forgotten.execute("ROLLBACK").await.unwrap();
}

#[tokio::test]
async fn pruning_touches_what_it_removes_and_not_what_stays() {
    let database = prepared(Server::shared()).await;
    database.note_plans();
    let store = open(&database).await;
    // The message of every third is still needed.
    database.ask(
        "INSERT INTO pabal.inbox SELECT md5(n::text)::uuid, 'p/in', '', n::text, \
         md5('m' || n)::uuid, pabal.today() - 200, '', pabal.time(), \
         pabal.time() - interval '91 days' * (n <= 900)::integer, 0 \
         FROM generate_series(1, 20000) n; \
         INSERT INTO pabal.message_kept (day, id, received, numbers, source, origin_source, type, size) \
         SELECT day, message, pabal.time(), ARRAY[n], source, '', 't', 0 FROM pabal.inbox, \
         LATERAL (SELECT origin_id::bigint AS n) it WHERE n <= 900 AND n % 3 = 0; \
         INSERT INTO pabal.outbox (number, day, message, destination, slot, key, attempts, round, \
         due, started, accepted, size) SELECT numbers[1], day, id, 'q/out', 0, NULL, 0, 0, \
         pabal.time(), 0, pabal.time(), 0 FROM pabal.message_kept",
    );
    let keep = Retention::default();
    let step = async || {
        let mut done = Housekeeping::default();
        let act = async { done = store.housekeep(&keep).await.unwrap() };
        let pages = pages(&database, "DELETE FROM pabal.inbox", act).await[0];
        (done, pages)
    };
    let mut removed = 0;
    loop {
        let (done, pages) = step().await;
        removed += done.inbox;
        // Per row that is over: its place in each part's index, and the question whether it is needed.
        assert!(pages < 50_000, "{pages} pages for {} rows", done.inbox);
        if !done.more {
            break;
        }
    }
    assert_eq!(removed, 600);
    assert_eq!(database.ask("SELECT count(*) FROM pabal.inbox"), "19400");
    assert_eq!(database.ask("SELECT count(*) FROM pabal.message_kept"), "300");
    // Of the 300 that may not go each is looked at, and none of the 19,100 whose time is to come.
    let (_, uncounted) = step().await;
    database.ask("ANALYZE pabal.inbox, pabal.message_kept");
    let (_, counted) = step().await;
    assert!(uncounted.max(counted) < 6_000, "{uncounted} or {counted} pages for nothing");
}
