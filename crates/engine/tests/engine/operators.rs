//! Replay, discard, pause.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pabal_core::{
    Clock, DeadKind, LinkChange, Message, Paused, Predicate, Reason, RuleError, SendError, View,
};

use crate::kit::{Kit, Partner, Step, act, hand_over, message, name, ok, text};

fn refusing(open: &Arc<AtomicBool>) -> Arc<Partner> {
    let open = Arc::clone(open);
    let refusal = || Step::Say(Err(SendError::permanent(Reason::Invalid, "HTTP 422")));
    Partner::new(move |m: &Message, _| {
        if text(m).starts_with("bad") && !open.load(Ordering::SeqCst) { refusal() } else { ok() }
    })
}

#[tokio::test]
async fn two_operators_replaying_the_same_queue_each_message_once_at_its_place_in_the_key() {
    let mut kit = Kit::new().await;
    let open = Arc::new(AtomicBool::new(false));
    let partner = refusing(&open);
    kit.to("tax/all", &partner).breaker.refusals = 1_000;
    let engine = kit.start().await;
    let bad =
        (0..100).map(|n| message(&format!("bad{n}"), Some(&n.to_string()), &format!("bad{n}")));
    hand_over(&engine, bad).await;
    let behind =
        (0..100).map(|n| message(&format!("then{n}"), Some(&n.to_string()), &format!("then{n}")));
    hand_over(&engine, behind).await;
    kit.seen.wait("dead", 100).await;
    assert_eq!(kit.seen.lines("delivered"), 0, "the keys are held");
    open.store(true, Ordering::SeqCst);
    let ids: Vec<_> = kit.dead().await.iter().map(|letter| letter.id).collect();
    let (act1, act2) = (act(), act());
    let (one, two) = tokio::join!(engine.replay(&ids, &act1), engine.replay(&ids, &act2));
    assert_eq!(one.unwrap().queued + two.unwrap().queued, 100);
    kit.seen.wait("delivered", 200).await;
    engine.stop().await;
    let counts = partner.counts();
    for n in 0..100 {
        assert_eq!((counts[&format!("bad{n}")], counts[&format!("then{n}")]), (2, 1));
        let taken = partner.taken();
        let place = |body: String| taken.iter().position(|t| *t == body).unwrap();
        assert!(place(format!("bad{n}")) < place(format!("then{n}")));
    }
    // The same id in every round, and the rounds are counted.
    let again: Vec<_> = partner.messages().into_iter().filter(|m| text(m) == "bad7").collect();
    assert_eq!(again[0].id, again[1].id);
    let story = kit.store.message(again[0].id).await.unwrap().unwrap();
    assert_eq!(story.log.last().unwrap().round, 1);
}

#[tokio::test]
async fn a_discarded_dead_letter_frees_its_key() {
    let mut kit = Kit::new().await;
    let partner = refusing(&Arc::default());
    kit.to("tax/all", &partner);
    let engine = kit.start().await;
    hand_over(&engine, [message("b", Some("k"), "bad"), message("t", Some("k"), "then")]).await;
    kit.seen.wait("dead", 1).await;
    let letter = &kit.dead().await[0];
    kit.store.discard(&[letter.id], &act()).await.unwrap();
    engine.wake();
    kit.seen.wait("delivered", 1).await;
    assert_eq!(partner.taken(), ["then"]);
    engine.stop().await;
}

#[tokio::test]
async fn a_paused_destination_sends_nothing_until_it_is_resumed_and_a_paused_source_takes_nothing()
{
    let mut kit = Kit::new().await;
    let partner = Partner::new(|_, _| ok());
    kit.to("tax/all", &partner);
    let engine = kit.start().await;
    let clock = kit.clock.clone();
    let pause = |why: Option<&str>| {
        let why = why.map(Into::into);
        LinkChange::Paused(why.map(|why| Paused {
            by: "kim".into(),
            why: Some(why),
            at: clock.now(),
        }))
    };
    let destination = name("tax/all");
    kit.store.set_link_state(&destination, pause(Some("holiday")), Some(&act())).await.unwrap();
    engine.stop().await;
    // The pause outlives a restart.
    kit.to("tax/all", &partner);
    let engine = kit.start().await;
    hand_over(&engine, [message("1", None, "x")]).await;
    kit.clock.advance(Duration::from_secs(60));
    hand_over(&engine, [message("2", None, "x")]).await;
    assert!(partner.came().is_empty());
    kit.store.set_link_state(&destination, pause(None), Some(&act())).await.unwrap();
    engine.wake();
    kit.seen.wait("delivered", 2).await;

    let source = name("city/orders");
    kit.store.set_link_state(&source, pause(Some("audit")), Some(&act())).await.unwrap();
    engine.wake();
    let inbox = engine.inbox(&source).unwrap();
    let mut n = 10;
    loop {
        n += 1;
        match inbox.send(&[message(&n.to_string(), None, "x")]).await.remove(0) {
            Ok(_) => tokio::task::yield_now().await,
            Err(SendError::Unreachable { .. }) => break,
            Err(error) => panic!("{error}"),
        }
        assert!(n < 10_000);
    }
    engine.stop().await;
}

#[derive(Debug)]
struct Broken(Arc<AtomicBool>);

impl Predicate for Broken {
    fn test(&self, _: &View<'_>) -> Result<bool, RuleError> {
        if self.0.load(Ordering::SeqCst) {
            Ok(true)
        } else {
            Err(RuleError::Fault("yields a string".into()))
        }
    }
}

#[tokio::test]
async fn a_condition_that_fails_is_a_dead_letter_of_routing_and_its_replay_asks_again() {
    let mut kit = Kit::new().await;
    let mended = Arc::new(AtomicBool::new(false));
    let (partner, healthy) = (Partner::new(|_, _| ok()), Partner::new(|_, _| ok()));
    kit.to("tax/all", &partner).when = Some(Arc::new(Broken(Arc::clone(&mended))));
    kit.to("city2/all", &healthy);
    let engine = kit.start().await;
    hand_over(&engine, [message("1", None, "x")]).await;
    healthy.wait(1).await;
    let dead = kit.dead().await;
    assert_eq!((dead[0].kind, dead[0].endpoint.as_str()), (DeadKind::Routing, "tax/all"));
    let report = engine.replay(&[dead[0].id], &act()).await.unwrap();
    assert_eq!((report.routed, report.refused.len()), (0, 1));
    mended.store(true, Ordering::SeqCst);
    let report = engine.replay(&[dead[0].id], &act()).await.unwrap();
    assert_eq!(report.routed, 1);
    partner.wait(1).await;
    assert!(kit.dead().await.is_empty());
    engine.stop().await;
    assert_eq!(healthy.came().len(), 1);
}

#[tokio::test]
async fn resuming_a_destination_tries_what_waits_there_at_once() {
    let mut kit = Kit::new().await;
    let partner = Partner::new(|m: &Message, before| match (text(m).as_str(), before) {
        (_, 1..) => ok(),
        // Asked to be left alone for a year: a mistake, but its own.
        (_, 0) => Step::Say(Err(SendError::Transient {
            cause: "HTTP 503".into(),
            retry_after: Some(Duration::from_secs(365 * 86_400)),
        })),
    });
    kit.to("tax/all", &partner);
    let engine = kit.start().await;
    hand_over(&engine, [message("1", Some("k"), "x"), message("2", Some("k"), "y")]).await;
    kit.seen.wait("attempt", 1).await;
    // It is taken for a day at the most, ...
    let story = kit.store.message(partner.messages()[0].id).await.unwrap().unwrap();
    let due = story.summary.deliveries[0].due.unwrap();
    assert!(due.duration_since(kit.clock.now()).as_secs() <= 86_400);
    // ... and an operator need not wait for it.
    let change = LinkChange::Paused(None);
    kit.store.set_link_state(&name("tax/all"), change, Some(&act())).await.unwrap();
    engine.wake();
    kit.seen.wait("delivered", 1).await;
    engine.stop().await;
}
