//! Destinations whose partner fetches its messages.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use pabal_core::{
    DeadReason, Handout, Mailbox, OnDead, Pickup, PullError, Pulled, ReceiveError, Refusal,
    Settled, Stop,
};
use pabal_engine::{Destination, Engine, HealthStatus, WayOut};
use tokio::sync::watch;

use crate::{
    kit::{Kit, PATIENCE, Partner, act, hand_over, message, name, ok, text},
    wrapped::Wrapped,
};

const LEASE: Duration = Duration::from_secs(60);
const NO_WAIT: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(1_000_000);

/// Lends the mailbox to the test while it runs.
#[derive(Debug, Default)]
struct Counter(watch::Sender<Option<Arc<dyn Mailbox>>>);

#[async_trait]
impl Pickup for Counter {
    fn lease(&self) -> Duration {
        LEASE
    }

    async fn run(&self, mailbox: Arc<dyn Mailbox>, stop: Stop) -> Result<(), ReceiveError> {
        self.0.send_replace(Some(mailbox));
        stop.wait().await;
        self.0.send_replace(None);
        Ok(())
    }
}

impl Counter {
    fn at(kit: &mut Kit, change: impl FnOnce(&mut Destination)) -> Arc<Self> {
        let counter = Arc::new(Self::default());
        let destination = kit.to("tax/all", &Partner::new(|_, _| ok()));
        destination.way = WayOut::Fetched(Arc::clone(&counter) as _);
        change(destination);
        counter
    }

    async fn mailbox(&self) -> Arc<dyn Mailbox> {
        let mut mailbox = self.0.subscribe();
        let open = mailbox.wait_for(Option::is_some);
        tokio::time::timeout(PATIENCE, open).await.unwrap().unwrap().clone().unwrap()
    }
}

fn bodies(pulled: &[Pulled]) -> Vec<String> {
    pulled.iter().map(|it| text(&it.message)).collect()
}

fn handouts(pulled: &[Pulled]) -> Vec<Handout> {
    pulled.iter().map(|it| it.handout).collect()
}

async fn pull(mailbox: &Arc<dyn Mailbox>) -> Vec<Pulled> {
    mailbox.pull(100, NO_WAIT).await.unwrap()
}

/// A pull that waits, in a task of its own.
fn waiting(mailbox: &Arc<dyn Mailbox>) -> tokio::task::JoinHandle<Result<Vec<Pulled>, PullError>> {
    let mailbox = Arc::clone(mailbox);
    tokio::spawn(async move { mailbox.pull(100, LONG).await })
}

async fn end<T>(task: tokio::task::JoinHandle<T>) -> T {
    tokio::time::timeout(PATIENCE, task).await.expect("it ends").unwrap()
}

async fn started(kit: &mut Kit, counter: &Counter) -> (Engine, Arc<dyn Mailbox>) {
    let engine = kit.start().await;
    let mailbox = counter.mailbox().await;
    (engine, mailbox)
}

#[tokio::test]
async fn a_fetched_destination_has_no_lane_and_hands_out_one_of_each_key_at_a_time() {
    let mut kit = Kit::new().await;
    let counter = Counter::at(&mut kit, |_| {});
    let sent = Partner::new(|_, _| ok());
    kit.to("bank/all", &sent);
    let (engine, mailbox) = started(&mut kit, &counter).await;
    let keys = ["a", "a", "b", "a"].map(Some);
    let all = keys.iter().enumerate().map(|(n, key)| message(&n.to_string(), *key, &n.to_string()));
    hand_over(&engine, all).await;
    sent.wait(4).await;
    kit.seen.wait("delivered bank/all", 4).await;

    let first = pull(&mailbox).await;
    assert_eq!(bodies(&first), ["0", "2"]);
    assert!(pull(&mailbox).await.is_empty());
    assert_eq!(mailbox.ack(&handouts(&first)).await.unwrap(), [Settled::Done; 2]);
    assert_eq!(mailbox.ack(&handouts(&first)).await.unwrap(), [Settled::NotThere; 2]);
    let second = pull(&mailbox).await;
    assert_eq!(bodies(&second), ["1"]);
    assert_eq!(mailbox.ack(&handouts(&second)).await.unwrap(), [Settled::Done]);
    assert_eq!(bodies(&pull(&mailbox).await), ["3"]);
    assert_eq!(kit.seen.lines("delivered tax/all 1"), 3);
    let lanes = kit.store.lanes().await.unwrap();
    assert!(lanes.iter().all(|it| it.lane.endpoint == name("bank/all")), "{lanes:?}");
    let status = engine.status();
    assert!(status[0].fetched && !status[1].fetched);
    engine.stop().await;
    assert_eq!(kit.seen.lines("attempt tax/all"), 3, "nothing was sent");
}

#[tokio::test]
async fn who_waits_is_woken_by_a_commit_by_an_ack_by_a_replay_and_by_time() {
    let mut kit = Kit::new().await;
    let counter = Counter::at(&mut kit, |_| {});
    let (engine, mailbox) = started(&mut kit, &counter).await;
    let first = waiting(&mailbox);
    tokio::task::yield_now().await;
    hand_over(&engine, [message("1", Some("k"), "1"), message("2", Some("k"), "2")]).await;
    let one = end(first).await.unwrap();
    assert_eq!(bodies(&one), ["1"]);

    let second = waiting(&mailbox);
    tokio::task::yield_now().await;
    mailbox.ack(&handouts(&one)).await.unwrap();
    let two = end(second).await.unwrap();
    assert_eq!(bodies(&two), ["2"]);

    // Nothing is heard of it: it comes again by itself.
    let third = waiting(&mailbox);
    kit.pass_until(Duration::from_secs(1), || third.is_finished()).await;
    let again = end(third).await.unwrap();
    assert_eq!((bodies(&again), again[0].handout.attempt), (vec!["2".to_owned()], 2));
    assert_eq!(kit.seen.lines("attempt tax/all transient spent"), 1);

    let refusal = Refusal { permanent: true, ..Refusal::default() };
    assert_eq!(mailbox.nack(&handouts(&again), &refusal).await.unwrap(), [Settled::Done]);
    let fourth = waiting(&mailbox);
    tokio::task::yield_now().await;
    let letter = kit.dead().await.remove(0);
    assert_eq!(letter.reason, DeadReason::Refused);
    engine.replay(&[letter.id], &act()).await.unwrap();
    let replayed = end(fourth).await.unwrap();
    assert_eq!((replayed[0].handout.round, replayed[0].handout.attempt), (1, 1));
    assert_eq!(replayed[0].message.id, two[0].message.id);
    engine.stop().await;
}

#[tokio::test]
async fn of_many_who_wait_for_one_message_one_gets_it() {
    let mut kit = Kit::new().await;
    let counter = Counter::at(&mut kit, |_| {});
    let (engine, mailbox) = started(&mut kit, &counter).await;
    let waiters: Vec<_> = (0..50).map(|_| waiting(&mailbox)).collect();
    tokio::task::yield_now().await;
    for n in 0..3 {
        hand_over(&engine, [message(&n.to_string(), None, &n.to_string())]).await;
    }
    let got = || waiters.iter().filter(|it| it.is_finished()).count();
    let three = async {
        while got() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, three).await.unwrap();
    engine.stop().await;
    // Those who got nothing are let go at once.
    let mut all = Vec::new();
    for waiter in waiters {
        all.extend(bodies(&end(waiter).await.unwrap()));
    }
    all.sort();
    all.dedup();
    assert!(!all.is_empty() && all.len() <= 3);
    let waiting = kit.store.deliveries(pabal_core::Which::Tail { after: 0 }, 9).await.unwrap();
    let out: u32 = waiting.iter().map(|it| it.started + it.attempts).sum();
    assert_eq!(out as usize, all.len(), "nobody had what another one had");
}

#[tokio::test]
async fn whoever_goes_away_takes_nothing_and_spends_nothing() {
    let mut kit = Kit::new().await;
    let counter = Counter::at(&mut kit, |_| {});
    let (engine, mailbox) = started(&mut kit, &counter).await;
    hand_over(&engine, [message("1", Some("k"), "1")]).await;
    for _ in 0..5 {
        // Dropped in the middle.
        let gone = tokio::time::timeout(NO_WAIT, mailbox.pull(9, LONG)).await;
        assert!(gone.is_err());
        let there = end(waiting(&mailbox)).await.unwrap();
        assert_eq!((there.len(), there[0].handout.attempt), (1, 1));
        let later = Refusal { delay: Some(NO_WAIT), ..Refusal::default() };
        // As if it had gone away as well, but said so.
        mailbox.nack(&handouts(&there), &later).await.unwrap();
        let again = end(waiting(&mailbox)).await.unwrap();
        assert_eq!(again[0].handout.attempt, 2);
        mailbox.ack(&handouts(&again)).await.unwrap();
        let id = again[0].handout.number + 1;
        hand_over(&engine, [message(&id.to_string(), Some("k"), "1")]).await;
    }
    engine.stop().await;
    assert!(kit.dead().await.is_empty());
}

#[tokio::test]
async fn a_message_that_kills_its_puller_each_time_ends_as_a_dead_letter_and_takes_no_other_along()
{
    let mut kit = Kit::new().await;
    let counter = Counter::at(&mut kit, |it| it.retry.attempts = 4);
    let (engine, mailbox) = started(&mut kit, &counter).await;
    let all = (0..20).map(|n| {
        let body = if n == 7 { "poison".to_owned() } else { n.to_string() };
        message(&n.to_string(), Some(&format!("k{}", n % 10)), &body)
    });
    hand_over(&engine, all).await;
    let mut crashes = 0;
    while kit.seen.lines("delivered") < 18 {
        let batch = pull(&mailbox).await;
        if batch.is_empty() {
            kit.clock.advance(Duration::from_secs(10));
        } else if batch.iter().any(|it| text(&it.message) == "poison") {
            crashes += 1;
        } else {
            mailbox.ack(&handouts(&batch)).await.unwrap();
        }
        assert!(crashes <= 4);
    }
    while kit.dead().await.is_empty() {
        assert!(pull(&mailbox).await.len() <= 1);
        kit.clock.advance(Duration::from_secs(10));
    }
    let dead = kit.dead().await;
    assert_eq!(
        (dead.len(), dead[0].reason, dead[0].origin_id.as_deref()),
        (1, DeadReason::Exhausted, Some("7"))
    );
    assert_eq!(kit.seen.lines("dead tax/all Exhausted"), 1);
    // It holds what stands behind it, until an operator decides.
    assert!(pull(&mailbox).await.is_empty());
    let freed = waiting(&mailbox);
    kit.store.discard(&[dead[0].id], &act()).await.unwrap();
    engine.wake();
    assert_eq!(bodies(&end(freed).await.unwrap()), ["17"]);
    engine.stop().await;
}

#[tokio::test]
async fn a_refusal_waits_as_long_as_it_says_and_the_last_one_is_a_dead_letter() {
    let mut kit = Kit::new().await;
    let counter = Counter::at(&mut kit, |it| {
        it.retry.attempts = 3;
        it.on_dead = OnDead::Pass;
    });
    let (engine, mailbox) = started(&mut kit, &counter).await;
    hand_over(&engine, [message("1", Some("k"), "1"), message("2", Some("k"), "2")]).await;
    let reason = Some("no such applicant".to_owned());
    let delay = Some(Duration::from_secs(30));
    let refusal = Refusal { delay, reason: reason.clone(), permanent: false };
    for attempt in 1..=3 {
        let batch = pull(&mailbox).await;
        assert_eq!((bodies(&batch), batch[0].handout.attempt), (vec!["1".to_owned()], attempt));
        assert_eq!(mailbox.nack(&handouts(&batch), &refusal).await.unwrap(), [Settled::Done]);
        if attempt < 3 {
            kit.clock.advance(Duration::from_secs(29));
            assert!(pull(&mailbox).await.is_empty());
            kit.clock.advance(Duration::from_secs(1));
        }
    }
    let dead = kit.dead().await.remove(0);
    assert_eq!((dead.reason, &dead.cause[..]), (DeadReason::Exhausted, "not taken by the partner"));
    assert_eq!(dead.detail, reason);
    let two = pull(&mailbox).await;
    assert_eq!(bodies(&two), ["2"], "it was let pass");
    // Without a delay the destination's own policy says when.
    mailbox.nack(&handouts(&two), &Refusal::default()).await.unwrap();
    kit.clock.advance(Duration::from_secs(1));
    assert_eq!(bodies(&pull(&mailbox).await), ["2"]);
    engine.stop().await;
}

#[tokio::test]
async fn a_paused_destination_hands_out_nothing_takes_acks_and_goes_on_when_it_is_let_go() {
    let mut kit = Kit::new().await;
    let counter = Counter::at(&mut kit, |_| {});
    let (engine, mailbox) = started(&mut kit, &counter).await;
    hand_over(&engine, [message("1", None, "1"), message("2", None, "2")]).await;
    let one = mailbox.pull(1, NO_WAIT).await.unwrap();
    let pause = async |paused: bool| {
        let by = pabal_core::Paused {
            by: "kim".into(),
            why: None,
            at: pabal_core::Timestamp::UNIX_EPOCH,
        };
        let change = pabal_core::LinkChange::Paused(paused.then_some(by));
        kit.store.set_link_state(&name("tax/all"), change, Some(&act())).await.unwrap();
        engine.wake();
        while (engine.status()[0].health == HealthStatus::Paused) != paused {
            tokio::task::yield_now().await;
        }
    };
    let waiter = waiting(&mailbox);
    assert_eq!(bodies(&end(waiter).await.unwrap()), ["2"]);
    let waiter = waiting(&mailbox);
    tokio::time::timeout(PATIENCE, pause(true)).await.unwrap();
    assert_eq!(end(waiter).await.unwrap_err(), PullError::Paused, "told at once");
    assert_eq!(mailbox.pull(9, LONG).await.unwrap_err(), PullError::Paused);
    assert_eq!(mailbox.ack(&handouts(&one)).await.unwrap(), [Settled::Done]);
    tokio::time::timeout(PATIENCE, pause(false)).await.unwrap();
    assert!(pull(&mailbox).await.is_empty());
    engine.stop().await;
    // A restart knows.
    let change = pabal_core::LinkChange::Paused(Some(pabal_core::Paused {
        by: "kim".into(),
        why: None,
        at: pabal_core::Timestamp::UNIX_EPOCH,
    }));
    kit.store.set_link_state(&name("tax/all"), change, Some(&act())).await.unwrap();
    let counter = Counter::at(&mut kit, |_| {});
    let (engine, mailbox) = started(&mut kit, &counter).await;
    assert_eq!(mailbox.pull(9, LONG).await.unwrap_err(), PullError::Paused);
    engine.stop().await;
}

#[tokio::test]
async fn what_stands_behind_a_deep_held_key_is_found_in_few_pages_with_and_without_a_key() {
    let mut kit = Kit::new().await;
    let pages = Arc::new(AtomicUsize::new(0));
    Wrapped::under(&mut kit, |wrapped| wrapped.pulls = Arc::clone(&pages));
    let counter = Counter::at(&mut kit, |_| {});
    let (engine, mailbox) = started(&mut kit, &counter).await;
    let deep = (0..1_300).map(|n| message(&format!("deep {n}"), Some("deep"), "deep"));
    hand_over(&engine, deep).await;
    let first = pull(&mailbox).await;
    let refusal = Refusal { permanent: true, ..Refusal::default() };
    mailbox.nack(&handouts(&first), &refusal).await.unwrap();
    // The first look of all sees all of it, ...
    assert!(pull(&mailbox).await.is_empty(), "its key is held");
    // ... and the next ones what is needed.
    let few = async |count: usize| {
        let before = pages.load(Ordering::SeqCst);
        let batch = pull(&mailbox).await;
        let seen = pages.load(Ordering::SeqCst) - before;
        assert!(seen <= 3, "{seen} pages for {count}");
        batch
    };
    for count in 0..5 {
        assert!(few(count).await.is_empty());
    }
    let behind = (0..30).map(|n| {
        let key = (n % 3 > 0).then(|| format!("k{}", n % 5));
        message(&n.to_string(), key.as_deref(), &n.to_string())
    });
    hand_over(&engine, behind).await;
    let mut taken = Vec::new();
    while taken.len() < 30 {
        let batch = few(taken.len()).await;
        assert!(!batch.is_empty(), "{taken:?}");
        mailbox.ack(&handouts(&batch)).await.unwrap();
        taken.extend(bodies(&batch).iter().map(|body| body.parse::<u32>().unwrap()));
    }
    for key in 0..5 {
        let of_key = taken.iter().filter(|n| *n % 3 > 0 && *n % 5 == key);
        assert!(of_key.is_sorted(), "{taken:?}");
    }
    // What comes back in the middle of it is found in the next lap.
    let late = (0..1_300).map(|n| message(&format!("late {n}"), Some("deep"), "deep"));
    hand_over(&engine, [message("back", None, "back")].into_iter().chain(late)).await;
    let back = few(30).await;
    assert_eq!(bodies(&back), ["back"]);
    assert!(pull(&mailbox).await.is_empty());
    mailbox
        .nack(&handouts(&back), &Refusal { delay: Some(NO_WAIT), ..Refusal::default() })
        .await
        .unwrap();
    let waiter = waiting(&mailbox);
    kit.pass_until(Duration::from_secs(1), || waiter.is_finished()).await;
    assert_eq!(bodies(&end(waiter).await.unwrap()), ["back"]);
    engine.stop().await;
}
