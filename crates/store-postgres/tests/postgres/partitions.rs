//! Days are made ahead and dropped; what is needed survives, and nobody waits for it.

use std::time::Duration;

use pabal_conformance::postgres::{Database, Server};
use pabal_core::*;
use sqlx::{Connection, Executor, PgConnection};

use crate::{
    database::{accept, delivered, message, tail},
    kit::{open, prepared},
};

const DAY: i64 = 86_400_000_000;

fn keep(days: u64) -> Retention {
    let time = Duration::from_secs(days * 86_400);
    Retention { bodies: time, history: time, inbox: time, dead_letters: time }
}

fn partitions(database: &Database<'_>, of: &str) -> i64 {
    let count = format!("SELECT count(*) FROM pabal.partition WHERE of = '{of}'");
    database.ask(&count).parse().unwrap()
}

/// Until there is nothing more to do.
async fn housekeep(store: &dyn Store, keep: &Retention) -> Housekeeping {
    let mut done = Housekeeping::default();
    loop {
        let step = store.housekeep(keep).await.unwrap();
        done = Housekeeping { more: false, ..done }.and(step);
        if !step.more {
            return done;
        }
    }
}

#[tokio::test]
async fn days_are_made_ahead_and_a_day_nobody_made_is_made_on_the_spot() {
    let database = prepared(Server::shared()).await;
    database.stop_clock(0);
    let store = open(&database).await;
    assert_eq!(partitions(&database, "message"), 9, "yesterday, today and a week");
    database.stop_clock(3 * DAY);
    assert_eq!(store.vitals().await.unwrap().days_ahead, Some(4));
    store.housekeep(&keep(30)).await.unwrap();
    assert_eq!(store.vitals().await.unwrap().days_ahead, Some(7));
    // The hub stood still for two weeks: the first message after that is taken all the same.
    database.stop_clock(20 * DAY);
    assert_eq!(accept(&*store, message("1", None, "x")).await, Accepted::Stored);
    let delivery = tail(&*store, 0).await.remove(0);
    database.stop_clock(40 * DAY);
    let epoch =
        store.join("n", &NodePlan { hash: "h".into(), endpoints: Vec::new() }).await.unwrap();
    let settled = store.settle(epoch, &[delivered(&delivery)]).await.unwrap();
    assert_eq!(settled, [Settled::Done]);
}

#[tokio::test]
async fn dropped_days_leave_what_waits_holds_is_dead_or_unrouted() {
    let database = prepared(Server::shared()).await;
    database.stop_clock(0);
    let store = open(&database).await;
    let plan = NodePlan { hash: "h".into(), endpoints: Vec::new() };
    let epoch = store.join("n", &plan).await.unwrap();
    let layout = store.lay_out(&"q/out".parse().unwrap(), 1, Order::Key).await.unwrap();
    let lane = Lane { endpoint: layout.destination.clone(), layout: layout.number, index: 0 };
    assert!(store.take_lane(&lane, None, epoch).await.unwrap());
    let body = |n: usize| Bytes::from(vec![n as u8; 100_000 * (n + 1)]);
    for n in 0..5 {
        let mut new = message(&n.to_string(), Some(&n.to_string()), body(n));
        if n == 4 {
            new.destinations.clear();
        }
        assert_eq!(accept(&*store, new).await, Accepted::Stored);
    }
    let rows = tail(&*store, 0).await;
    let dead = |delivery: &Delivery, holds| Settlement {
        fate: Fate::Dead { reason: DeadReason::Refused, cause: "no".into(), holds, pin: None },
        ..delivered(delivery)
    };
    let group = [delivered(&rows[0]), dead(&rows[1], Holds::Nothing), dead(&rows[2], Holds::Key)];
    assert_eq!(store.settle(epoch, &group).await.unwrap(), [Settled::Done; 3]);

    database.stop_clock(20 * DAY);
    let done =
        housekeep(&*store, &Retention { dead_letters: keep(100).dead_letters, ..keep(7) }).await;
    assert_eq!((done.messages, done.log), (1, 3), "the one that nobody needs");
    let kept = database.ask("SELECT count(*) FROM pabal.message_kept");
    assert_eq!(kept, "4");
    assert_eq!(partitions(&database, "message"), 9, "from yesterday on");
    // Byte for byte, and as if nothing had happened.
    let loaded = store.load(&[(rows[3].number, rows[3].message)]).await.unwrap().remove(0);
    assert_eq!(loaded.unwrap().message.body.inline().unwrap(), &body(3));
    let letters = store.dead_letters(&DeadLetterQuery::default()).await.unwrap();
    for (letter, n) in letters.iter().zip([1, 2]) {
        let message = store.dead_message(letter.id).await.unwrap().unwrap();
        assert_eq!(message.body.inline().unwrap(), &body(n));
    }
    let act =
        OperatorAct { by: "kim".into(), verb: "replay".into(), subject: "x".into(), why: None };
    let ids: Vec<_> = letters.iter().map(|letter| letter.id).collect();
    assert_eq!(store.replay(&ids, &act).await.unwrap().len(), 2);
    let back = tail(&*store, 0).await;
    let which: Vec<_> = back.iter().map(|it| (it.number, it.message)).collect();
    let sizes: Vec<_> = back.iter().map(|it| it.size).collect();
    assert_eq!(sizes, [200_000, 300_000, 400_000]);
    assert!(store.load(&which).await.unwrap().iter().all(Option::is_some));
    let group: Vec<_> = back.iter().map(delivered).collect();
    assert_eq!(store.settle(epoch, &group).await.unwrap(), [Settled::Done; 3]);
    housekeep(&*store, &keep(7)).await;
    assert_eq!(database.ask("SELECT count(*) FROM pabal.message_kept"), "1", "the unrouted one");
}

#[tokio::test]
async fn a_drop_behind_an_open_reader_gives_up_and_holds_up_nobody() {
    let database = prepared(Server::shared()).await;
    database.stop_clock(0);
    let store = open(&database).await;
    for n in 0..10 {
        accept(&*store, message(&n.to_string(), None, "x")).await;
    }
    let plan = NodePlan { hash: "h".into(), endpoints: Vec::new() };
    let epoch = store.join("n", &plan).await.unwrap();
    database.stop_clock(20 * DAY);
    let mut reader = PgConnection::connect(&database.url("postgres")).await.unwrap();
    reader
        .execute(
            "BEGIN; SELECT count(*) FROM pabal.delivery_log; SELECT count(*) FROM pabal.message",
        )
        .await
        .unwrap();
    let before = (partitions(&database, "message"), partitions(&database, "delivery_log"));
    // Housekeeping returns though the reader stays, and settles go on beside it.
    let settles = async {
        for delivery in tail(&*store, 0).await {
            let settled = store.settle(epoch, &[delivered(&delivery)]).await.unwrap();
            assert_eq!(settled, [Settled::Done]);
        }
    };
    let retention = keep(7);
    let (done, ()) = tokio::join!(store.housekeep(&retention), settles);
    assert_eq!(done.unwrap().messages, 0);
    let now = (partitions(&database, "message"), partitions(&database, "delivery_log"));
    assert!(now.0 >= before.0 && now.1 >= before.1, "{before:?} {now:?}");
    reader.execute("COMMIT").await.unwrap();
    let done = housekeep(&*store, &keep(7)).await;
    assert_eq!(done.messages, 10);
}
