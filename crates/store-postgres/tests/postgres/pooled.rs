//! Behind a transaction pooler, and over a network that breaks.

use std::sync::Arc;

use pabal_conformance::{
    pooler::Pooler,
    postgres::{Database, OWNER, RUNTIME, Server},
};
use pabal_core::*;
use pabal_store_postgres::{Options, PostgresStore};

use crate::{
    database::{accept, delivered, message, tail},
    kit::{options, prepared},
};

fn through(pooler: &Pooler, database: &Database<'_>, role: &str) -> Options {
    Options { url: Secret::new(pooler.url(&database.url(role))), ..options(database, role) }
}

async fn open(options: Options) -> Arc<PostgresStore> {
    Arc::new(PostgresStore::open(options, Arc::new(SystemClock)).await.unwrap())
}

/// All that a node does, again and again, beside others.
async fn work(store: Arc<PostgresStore>, node: usize) {
    let plan = NodePlan { hash: "h".into(), endpoints: Vec::new() };
    let epoch = store.join("n", &plan).await.unwrap();
    for n in 0..10 {
        let id = format!("{node} {n}");
        assert_eq!(accept(&*store, message(&id, Some("k"), "x")).await, Accepted::Stored);
        assert_eq!(accept(&*store, message(&id, Some("k"), "x")).await, Accepted::Duplicate);
        store.beat(epoch).await.unwrap();
        store.lanes().await.unwrap();
        store.counts().await.unwrap();
        store.housekeep(&Retention::default()).await.unwrap();
        store.vitals().await.unwrap();
        assert!(!store.messages(&MessageQuery::default()).await.unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_but_listening_goes_through_a_transaction_pooler() {
    let database = prepared(Server::shared()).await;
    let pooler = Pooler::start(Server::shared().port());
    let deaf = open(through(&pooler, &database, RUNTIME)).await;
    let listen_url = Some(Secret::new(database.url(RUNTIME)));
    let hears = open(Options { listen_url, ..through(&pooler, &database, RUNTIME) }).await;
    let mut nodes = tokio::task::JoinSet::new();
    for node in 0..4 {
        nodes.spawn(work([&deaf, &hears][node % 2].clone(), node));
    }
    nodes.join_all().await;
    assert_eq!(tail(&*deaf, 0).await.len(), 40);

    // Who cannot hear says so and looks, and listens to nothing that others would be told.
    assert_eq!(deaf.vitals().await.unwrap().listening, Some(false));
    assert_eq!(hears.vitals().await.unwrap().listening, Some(true));
    let listening = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                     AND query ILIKE 'LISTEN%'";
    assert_eq!(database.ask(listening), "1");
    deaf.changed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_schema_is_brought_up_to_date_through_a_pooler_and_no_lock_is_left_there() {
    let database = Server::shared().database();
    let pooler = Pooler::start(Server::shared().port());
    let mut starts = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let options = through(&pooler, &database, OWNER);
        starts.spawn(async move { PostgresStore::migrate(&options).await.unwrap() });
    }
    let applied: usize = starts.join_all().await.iter().map(Vec::len).sum();
    assert_eq!(applied, 1, "by one of them");
    assert_eq!(database.ask("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), "0");
}

/// As a statement of its own; the level of isolation begins alike.
const COMMIT: &str = "COMMIT\0";

/// Runs something that gets no answer to a statement with these words; from then on time passes until
/// it is given up.
async fn given_up<T>(
    pooler: &Pooler,
    words: &'static str,
    clock: &ManualClock,
    act: impl Future<Output = T>,
) -> T {
    pooler.cut_after(words);
    let passing = async {
        loop {
            if pooler.has_cut() {
                clock.advance(std::time::Duration::from_secs(1));
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        result = act => result,
        () = passing => unreachable!(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_never_comes_is_given_up_and_only_that_of_a_commit_is_unknown() {
    let database = prepared(Server::shared()).await;
    let pooler = Pooler::start(Server::shared().port());
    let clock = ManualClock::default();
    let listen_url = Some(Secret::new(database.url(RUNTIME)));
    let options = Options { listen_url, ..through(&pooler, &database, RUNTIME) };
    let store = PostgresStore::open(options, Arc::new(clock.clone())).await.unwrap();
    let group = |id: &str| [Entry::Message(message(id, None, "x"))];

    let error = given_up(&pooler, "INSERT INTO pabal.outbox", &clock, store.accept(&group("1")))
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert_eq!(store.accept(&group("1")).await.unwrap(), [Accepted::Stored]);

    let error = given_up(&pooler, COMMIT, &clock, store.accept(&group("2"))).await.unwrap_err();
    assert!(matches!(error, StoreError::Unknown(_)), "{error:?}");
    assert_eq!(store.accept(&group("2")).await.unwrap(), [Accepted::Duplicate]);

    let plan = NodePlan { hash: "h".into(), endpoints: Vec::new() };
    let epoch = store.join("n", &plan).await.unwrap();
    let waiting = tail(&store, 0).await;
    assert_eq!(waiting.len(), 2);
    let settlements: Vec<_> = waiting.iter().map(delivered).collect();
    let error =
        given_up(&pooler, COMMIT, &clock, store.settle(epoch, &settlements)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unknown(_)), "{error:?}");
    let again = store.settle(epoch, &settlements).await.unwrap();
    assert_eq!(again, [Settled::NotThere; 2], "it was written");

    let error = given_up(
        &pooler,
        "FROM pabal.outbox",
        &clock,
        store.deliveries(Which::Tail { after: 0 }, 10),
    )
    .await
    .unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert_eq!(tail(&store, 0).await, []);
}
