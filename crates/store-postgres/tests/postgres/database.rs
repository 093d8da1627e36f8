//! What only a database of many sessions can do to a store.

use std::{collections::BTreeSet, time::Duration};

use pabal_conformance::postgres::{Database, Server};
use pabal_core::*;
use sqlx::{Connection, Executor, PgConnection};

use crate::kit::{open, prepared};

pub(crate) fn name(text: &str) -> EndpointName {
    text.parse().unwrap()
}

/// A message of one source to one destination.
pub(crate) fn message(id: &str, key: Option<&str>, body: impl Into<Bytes>) -> NewMessage {
    let mut message = Message::new(name("p/in"), "thing.happened", body.into());
    message.origin.id = Some(id.to_owned());
    message.key = key.map(Into::into);
    message.id = MessageId::of("conformance", &message.source, &message.origin.source, id);
    let fingerprint = Fingerprint::of(message.body.inline().unwrap());
    let destinations = vec![name("q/out")];
    NewMessage { message, fingerprint, destinations, faults: Vec::new(), repeats: 0 }
}

pub(crate) fn delivered(delivery: &Delivery) -> Settlement {
    Settlement {
        number: delivery.number,
        message: delivery.message,
        destination: delivery.destination.clone(),
        round: delivery.round,
        handout: None,
        attempt: Some(Attempt { outcome: "delivered", ..Attempt::default() }),
        fate: Fate::Delivered,
    }
}

pub(crate) async fn accept(store: &dyn Store, new: NewMessage) -> Accepted {
    store.accept(&[Entry::Message(new)]).await.unwrap().remove(0)
}

pub(crate) async fn tail(store: &dyn Store, after: Number) -> Vec<Delivery> {
    store.deliveries(Which::Tail { after }, 1_000).await.unwrap()
}

async fn session(database: &Database<'_>) -> PgConnection {
    PgConnection::connect(&database.url("postgres")).await.unwrap()
}

/// Takes the next number as an accept does, and does not commit.
async fn hold_a_number(session: &mut PgConnection) {
    let mut accept = String::from("BEGIN; ");
    accept.push_str(
        "INSERT INTO pabal.outbox (day, message, destination, slot, key, attempts, round, due, \
         started, accepted, size) SELECT day, id, 'q/out', 0, NULL, 0, 0, pabal.time(), 0, \
         pabal.time(), 1 FROM pabal.message",
    );
    session.execute(sqlx::AssertSqlSafe(accept)).await.unwrap();
}

#[tokio::test]
async fn a_late_commit_is_found_by_its_number_and_a_rolled_back_one_stalls_nothing() {
    let database = prepared(Server::shared()).await;
    let store = open(&database).await;
    accept(&*store, message("1", Some("k"), "first")).await;
    let first = tail(&*store, 0).await.remove(0);
    let (mut late, mut lost) = (session(&database).await, session(&database).await);
    hold_a_number(&mut late).await;
    hold_a_number(&mut lost).await;
    accept(&*store, message("2", Some("k"), "second")).await;
    // The reader passes both.
    let seen = tail(&*store, first.number).await;
    assert_eq!(seen.len(), 1);
    let skipped: Vec<_> = (first.number + 1..seen[0].number).collect();
    assert_eq!(skipped.len(), 2, "{skipped:?}");
    let probe = async || store.deliveries(Which::Numbers(&skipped), 10).await.unwrap();
    assert_eq!(probe().await, []);
    late.execute("COMMIT").await.unwrap();
    lost.execute("ROLLBACK").await.unwrap();
    let found: Vec<_> = probe().await.iter().map(|delivery| delivery.number).collect();
    assert_eq!(found, [skipped[0]]);
    assert_eq!(tail(&*store, seen[0].number).await, []);
    assert!(store.late_commits_for() >= Duration::from_secs(30));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_copies_at_once_on_two_nodes_are_taken_once_and_the_rest_are_duplicates() {
    let database = prepared(Server::shared()).await;
    let nodes = [open(&database).await, open(&database).await];
    for round in 0..10 {
        let mut copies = tokio::task::JoinSet::new();
        for copy in 0..20 {
            let store = nodes[copy % 2].clone();
            copies.spawn(async move {
                // Beside others, in another order on every node.
                let mut group = vec![
                    message(&format!("{round}"), Some("k"), "the same"),
                    message(&format!("{round} other"), None, "the same"),
                ];
                if copy % 2 == 1 {
                    group.reverse();
                }
                let group: Vec<_> = group.into_iter().map(Entry::Message).collect();
                store.accept(&group).await.unwrap()
            });
        }
        let answers: Vec<_> = copies.join_all().await.into_iter().flatten().collect();
        let stored = answers.iter().filter(|answer| **answer == Accepted::Stored).count();
        let repeats = answers.iter().filter(|answer| **answer == Accepted::Duplicate).count();
        assert_eq!((stored, repeats), (2, 38), "{answers:?}");
    }
    assert_eq!(database.ask("SELECT count(*), count(DISTINCT message) FROM pabal.outbox"), "20|20");
    assert_eq!(database.ask("SELECT sum(duplicates) FROM pabal.inbox"), "380");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_operators_who_route_the_same_messages_at_once_add_each_delivery_once() {
    let database = prepared(Server::shared()).await;
    let nodes = [open(&database).await, open(&database).await];
    let mut routings = Vec::new();
    for n in 0..100 {
        let mut nobodys = message(&n.to_string(), Some("k"), "x");
        nobodys.destinations.clear();
        let (message, destinations) = (nobodys.message.id, vec![name("q/out"), name("r/out")]);
        routings.push(Routing { message, destinations, faults: Vec::new(), dead_letter: None });
        accept(&*nodes[0], nobodys).await;
    }
    let mut operators = tokio::task::JoinSet::new();
    for (operator, store) in nodes.iter().enumerate() {
        let (store, mut routings) = (store.clone(), routings.clone());
        if operator == 1 {
            routings.reverse();
        }
        let words = |text: &str| text.to_owned();
        let act =
            OperatorAct { by: words("kim"), verb: words("route"), subject: words("x"), why: None };
        operators.spawn(async move { store.route(&routings, &act).await.unwrap() });
    }
    assert_eq!(operators.join_all().await.iter().sum::<u64>(), 200);
    let twice = "SELECT count(*), count(DISTINCT (message, destination)) FROM pabal.outbox";
    assert_eq!(database.ask(twice), "200|200");
    assert_eq!(nodes[0].unrouted().await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_follows_the_tail_and_looks_for_what_it_skipped_sees_everything_once() {
    let database = prepared(Server::shared()).await;
    let (store, other) = (open(&database).await, open(&database).await);
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..8 {
        let store = if writer % 2 == 0 { store.clone() } else { other.clone() };
        writers.spawn(async move {
            for n in 0..25 {
                let group: Vec<_> = (0..4)
                    .map(|part| Entry::Message(message(&format!("{writer} {n} {part}"), None, "x")))
                    .collect();
                store.accept(&group).await.unwrap();
            }
        });
    }
    let mut position = 0;
    let (mut skipped, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let mut ended = false;
    loop {
        for delivery in tail(&*store, position).await {
            skipped.extend(position + 1..delivery.number);
            position = delivery.number;
            assert!(seen.insert(position), "{position} twice");
        }
        let missing: Vec<_> = skipped.iter().copied().collect();
        for late in store.deliveries(Which::Numbers(&missing), 10_000).await.unwrap() {
            skipped.remove(&late.number);
            assert!(seen.insert(late.number), "{} twice", late.number);
        }
        if ended {
            break;
        }
        ended = writers.is_empty();
        while writers.try_join_next().is_some_and(|ended| ended.is_ok()) {}
    }
    assert_eq!(seen.len(), 800);
}

#[tokio::test]
async fn what_text_cannot_hold_is_a_body_like_any_other() {
    let database = prepared(Server::shared()).await;
    let store = open(&database).await;
    let bodies: [&[u8]; 4] = [
        br#"{"memo":"a\u0000b","id":9007199254740993,"n":12345678901234567890123}"#,
        b"a\0b",
        b"\xff\xfe\x00\xc3\x28",
        b"",
    ];
    for (n, body) in bodies.iter().enumerate() {
        let new = message(&n.to_string(), None, Bytes::from_static(body));
        assert_eq!(accept(&*store, new.clone()).await, Accepted::Stored);
        assert_eq!(accept(&*store, new).await, Accepted::Duplicate);
    }
    let waiting = tail(&*store, 0).await;
    let which: Vec<_> = waiting.iter().map(|it| (it.number, it.message)).collect();
    for (loaded, body) in store.load(&which).await.unwrap().into_iter().zip(bodies) {
        assert_eq!(loaded.unwrap().message.body.inline().unwrap(), body);
    }
    // In a text field it is refused for good, and nothing of its group is kept.
    let refused = message("with\0nul", None, "x");
    let group = [Entry::Message(message("beside", None, "x")), Entry::Message(refused)];
    let error = store.accept(&group).await.unwrap_err();
    assert!(matches!(error, StoreError::Rejected(_)), "{error:?}");
    assert_eq!(accept(&*store, message("beside", None, "x")).await, Accepted::Stored);
}
