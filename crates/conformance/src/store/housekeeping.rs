//! What goes when its time is over, and what stays whatever its age.

use std::time::Duration;

use pabal_core::*;

use super::bench::*;

const DAY: u64 = 24 * 3600;

/// Days for bodies, history, inbox and dead letters.
fn keep(bodies: u64, history: u64, inbox: u64, dead_letters: u64) -> Retention {
    let days = |days| Duration::from_secs(days * DAY);
    Retention {
        bodies: days(bodies),
        history: days(history),
        inbox: days(inbox),
        dead_letters: days(dead_letters),
    }
}

async fn housekeep(bench: &Bench, keep: &Retention) -> Housekeeping {
    let mut done = Housekeeping::default();
    loop {
        let step = bench.store().housekeep(keep).await.unwrap();
        done = Housekeeping { more: false, ..done }.and(step);
        if !step.more {
            return done;
        }
    }
}

pub(super) async fn what_is_over_goes_after_its_time_and_what_is_needed_stays(bench: Bench) {
    let store = bench.store();
    let over = arrival("p/in", "over").to(&["q/out"]);
    let waits = arrival("p/in", "waits").to(&["q/out"]).key("k");
    let dies = arrival("p/in", "dies").to(&["q/out"]);
    let lost = arrival("p/in", "lost");
    let forgotten = arrival("p/in", "forgotten").to(&["q/out"]);
    for new in [&over, &forgotten] {
        let delivery = bench.deliver(new).await;
        assert_eq!(bench.settle(&delivery, Fate::Delivered).await, Settled::Done);
    }
    let waiting = bench.deliver(&waits).await;
    bench.bury(&dies, Holds::Nothing).await;
    bench.accept(&lost).await;

    bench.pass(20 * DAY).await;
    let done = housekeep(&bench, &keep(30, 30, 30, 30)).await;
    assert_eq!(done, Housekeeping::default(), "everything is younger");
    assert!(store.message(over.message.id).await.unwrap().is_some());

    housekeep(&bench, &keep(10, 30, 30, 30)).await;
    assert_eq!(store.message(over.message.id).await.unwrap(), None, "its body's time is over");
    for needed in [&waits, &dies, &lost] {
        let content = store.message_content(needed.message.id).await.unwrap();
        assert_same(&content.unwrap(), &needed.message);
    }
    let loaded = store.load(&[(waiting.number, waiting.message)]).await.unwrap().remove(0);
    assert_same(&loaded.unwrap().message, &waits.message);
    assert_eq!(bench.accept(&over).await, Accepted::Duplicate, "its id is remembered");
    assert_eq!(bench.story(dies.message.id).await.log.len(), 1);

    bench.pass(20 * DAY).await;
    // The repeat was seen half-way.
    housekeep(&bench, &keep(100, 30, 30, 100)).await;
    assert_eq!(bench.accept(&over).await, Accepted::Duplicate, "seen not long ago");
    assert_eq!(bench.accept(&forgotten).await, Accepted::Stored);
    assert_eq!(bench.accept(&waits).await, Accepted::Duplicate, "as long as it is needed itself");
    assert_eq!(bench.story(dies.message.id).await.log, [], "history is over");
}

pub(super) async fn an_expired_dead_letter_is_logged_and_one_that_holds_a_key_stays(bench: Bench) {
    let free = arrival("p/in", "1").to(&["q/out"]).key("a");
    let holding = arrival("p/in", "2").to(&["q/out"]).key("b");
    bench.bury(&free, Holds::Nothing).await;
    let (_, held) = bench.bury(&holding, Holds::Key).await;
    bench.set_aside(&arrival("p/in", "3"), DeadReason::Unreadable).await;
    bench.pass(40 * DAY).await;
    let done = housekeep(&bench, &keep(100, 100, 100, 30)).await;
    assert_eq!(done.dead_letters, 2);
    let left: Vec<_> = bench.dead_letters().await.iter().map(|letter| letter.id).collect();
    assert_eq!(left, [held]);
    let log = bench.story(free.message.id).await.log;
    assert_eq!(log.last().map(|line| line.outcome.as_str()), Some("discarded"));
    assert_eq!(bench.states(free.message.id).await["q/out"], DeliveryState::Discarded);
}

pub(super) async fn what_came_again_is_not_forgotten_as_old(bench: Bench) {
    let new = arrival("p/in", "1").to(&["q/out"]);
    let delivery = bench.deliver(&new).await;
    bench.settle(&delivery, Fate::Delivered).await;
    bench.pass(20 * DAY).await;
    let who = Identity::of(&new.message).unwrap();
    bench.store().count_repeats(&[(who.clone(), 1)]).await.unwrap();
    bench.pass(5 * DAY).await;
    housekeep(&bench, &keep(10, 10, 10, 10)).await;
    assert_eq!(bench.store().message(new.message.id).await.unwrap(), None);
    let known = bench.store().fingerprints(std::slice::from_ref(&who)).await.unwrap();
    assert_eq!(known, [Some(new.fingerprint)], "it came again five days ago");
    bench.pass(10 * DAY).await;
    housekeep(&bench, &keep(10, 10, 10, 10)).await;
    assert_eq!(bench.store().fingerprints(&[who]).await.unwrap(), [None]);
}
