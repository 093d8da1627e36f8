//! What is taken, what is known already, what is refused.

use std::sync::Arc;

use pabal_core::*;

use super::bench::*;

pub(super) async fn a_repeat_is_recognised(bench: Bench) {
    let new = arrival("p/in", "1").to(&["q/out"]);
    assert_eq!(bench.accept(&new).await, Accepted::Stored);
    assert_eq!(bench.accept(&new).await, Accepted::Duplicate);
    let thrice = NewMessage { repeats: 2, ..new.clone() };
    assert_eq!(bench.accept(&thrice).await, Accepted::Duplicate);
    assert_eq!(bench.numbers().await.len(), 1, "deliveries");
    assert_eq!(bench.story(new.message.id).await.duplicates, 4);

    let delivery = bench.waiting().await.remove(0);
    bench.settle(&delivery, Fate::Delivered).await;
    assert_eq!(bench.accept(&new).await, Accepted::Duplicate);
    assert!(bench.numbers().await.is_empty(), "delivered twice");
}

pub(super) async fn a_repeat_is_looked_up_without_being_counted_and_counted_later(bench: Bench) {
    let taken = arrival("p/in", "1").to(&["q/out"]);
    bench.accept(&taken).await;
    let who = |new: &NewMessage| Identity::of(&new.message).unwrap();
    let mut elsewhere = arrival("p/in", "1").message;
    elsewhere.origin.source = "/somewhere/else".to_owned();
    let unknown = [arrival("p/in", "2"), arrival("p/other", "1"), identified(elsewhere)];
    let mut which: Vec<_> = unknown.iter().map(who).collect();
    which.insert(1, who(&taken));
    which.push(who(&taken));
    let held = bench.store().fingerprints(&which).await.unwrap();
    let known = Some(taken.fingerprint);
    assert_eq!(held, [None, known, None, None, known]);
    assert_eq!(bench.store().fingerprints(&[]).await.unwrap(), []);
    assert_eq!(bench.story(taken.message.id).await.duplicates, 0, "looking counts nothing");

    let repeats = [(who(&taken), 3), (who(&unknown[0]), 1)];
    bench.store().count_repeats(&repeats).await.unwrap();
    bench.store().count_repeats(&[]).await.unwrap();
    assert_eq!(bench.story(taken.message.id).await.duplicates, 3);
    // Counting took nothing in.
    assert_eq!(bench.accept(&unknown[0]).await, Accepted::Stored);
}

pub(super) async fn the_same_id_with_other_content_is_a_conflict_and_keeps_both_fingerprints(
    bench: Bench,
) {
    let first = arrival("p/in", "1").to(&["q/out"]).body("one");
    let other = first.clone().body("two");
    bench.accept(&first).await;
    let held = first.fingerprint;
    assert_eq!(bench.accept(&other).await, Accepted::Conflict { held });

    let letters = bench.dead_letters().await;
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!(letter.kind, DeadKind::Source);
    assert_eq!(letter.reason, DeadReason::Conflict);
    assert_eq!(letter.endpoint, name("p/in"));
    assert_eq!(letter.origin_id.as_deref(), Some("1"));
    assert_eq!(letter.message, None);
    let detail = letter.detail.clone().unwrap_or_default();
    for fingerprint in [first.fingerprint, other.fingerprint] {
        assert!(detail.contains(&fingerprint.to_string()), "{detail}");
    }
    let kept = bench.store().dead_message(letter.id).await.unwrap();
    assert_same(&kept.unwrap(), &other.message);
    let stored = bench.store().message_content(first.message.id).await;
    assert_same(&stored.unwrap().unwrap(), &first.message);
    assert_eq!(bench.numbers().await.len(), 1, "deliveries");
}

pub(super) async fn ids_are_scoped_by_source(bench: Bench) {
    let mut from_elsewhere = arrival("p/in", "1").message;
    from_elsewhere.origin.source = "/somewhere/else".to_owned();
    let all = [
        arrival("p/in", "1"),
        arrival("p/other", "1"),
        arrival("q/in", "1"),
        identified(from_elsewhere),
    ];
    for new in &all {
        let new = new.clone().to(&["z/out"]);
        assert_eq!(bench.accept(&new).await, Accepted::Stored, "{new:?}");
    }
    assert_eq!(bench.numbers().await.len(), 4);
}

pub(super) async fn a_message_and_its_deliveries_appear_together_or_not_at_all(bench: Bench) {
    let group: Vec<_> = (0..300)
        .map(|n| Entry::Message(arrival("p/in", &n.to_string()).to(&["q/a", "q/b"])))
        .collect();
    let store = bench.store();
    let taking = tokio::spawn(async move { store.accept(&group).await });
    let whole = async {
        let mut last = false;
        loop {
            // Once more after the end, so that the whole group is seen at least once.
            let done = taking.is_finished();
            let query = MessageQuery { limit: 300, ..MessageQuery::default() };
            let seen = bench.store().messages(&query).await.unwrap();
            assert!(seen.is_empty() || seen.len() == 300, "a part of the group");
            for summary in &seen {
                assert_eq!(summary.deliveries.len(), 2, "{summary:?}");
            }
            if last {
                assert_eq!(seen.len(), 300);
                return;
            }
            last = done;
            tokio::task::yield_now().await;
        }
    };
    // A look at all of them takes long; these are many.
    let glances = async {
        let one = MessageQuery { limit: 1, ..MessageQuery::default() };
        let store = bench.store();
        let message = async || !store.messages(&one).await.unwrap().is_empty();
        let delivery = async || {
            let first = store.deliveries(Which::Tail { after: 0 }, 1).await;
            !first.unwrap().is_empty()
        };
        while !taking.is_finished() {
            let (before, waiting) = (message().await, delivery().await);
            assert!(waiting || !before, "a message without its deliveries");
            assert!(!waiting || message().await, "deliveries without their message");
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(whole, glances);
    taking.await.unwrap().unwrap();
}

pub(super) async fn a_failed_group_leaves_nothing(bench: Bench) {
    let mut with_state = arrival("p/in", "2").to(&["q/out"]);
    with_state.message.arrival.state =
        Some(StateWrite { name: "place".to_owned(), value: Bytes::from_static(b"far") });
    let twice = arrival("p/in", "1").to(&["q/out"]);
    let aside = SetAside {
        message: arrival("p/in", "3").message,
        fingerprint: Fingerprint::of(b""),
        reason: DeadReason::Unreadable,
        cause: "cannot be read".into(),
    };
    let group = [
        Entry::Message(twice.clone()),
        Entry::Message(with_state.clone()),
        Entry::SetAside(aside),
        Entry::Message(twice.clone()),
    ];
    let refused = bench.store().accept(&group).await;
    assert!(
        matches!(refused, Err(StoreError::Rejected(_))),
        "an identity twice in a group: {refused:?}"
    );
    assert!(bench.numbers().await.is_empty(), "deliveries");
    assert!(bench.dead_letters().await.is_empty(), "dead letters");
    let state = bench.store().state(&name("p/in"), "place").await;
    assert_eq!(state.unwrap(), None);
    let query = MessageQuery::default();
    assert!(bench.store().messages(&query).await.unwrap().is_empty());
    // Nothing is remembered of them either.
    bench.accept_all(&[twice, with_state]).await;
}

pub(super) async fn order_numbers_follow_the_hand_over(bench: Bench) {
    // Ids that sort the other way round than they come.
    let group = |from: u32| -> Vec<_> {
        (0..250)
            .map(|n| arrival("p/in", &format!("{:05}", 99_999 - from - n)).to(&["q/a", "q/b"]))
            .collect()
    };
    let (first, second) = (group(0), group(1000));
    bench.accept_all(&first).await;
    bench.accept_all(&second).await;
    let expected: Vec<_> = first
        .iter()
        .chain(&second)
        .flat_map(|new| new.destinations.iter().map(|to| (new.message.id, to.clone())))
        .collect();
    let waiting = bench.waiting().await;
    assert!(waiting.is_sorted_by(|a, b| a.number < b.number));
    let got: Vec<_> = waiting.into_iter().map(|it| (it.message, it.destination)).collect();
    assert!(got == expected, "the order of the hand-over is lost");
}

pub(super) async fn order_numbers_are_never_reused_after_the_newest_row_is_deleted(bench: Bench) {
    let mut highest = 0;
    for n in 0..3 {
        let delivery = bench.deliver(&arrival("p/in", &n.to_string()).to(&["q/out"])).await;
        assert!(delivery.number > highest, "{} again", delivery.number);
        highest = delivery.number;
        bench.settle(&delivery, Fate::Delivered).await;
        assert!(bench.numbers().await.is_empty());
    }
}

pub(super) async fn twenty_copies_at_once_on_two_nodes_are_taken_once(bench: Bench) {
    let new = arrival("p/in", "1").to(&["q/out"]);
    let barrier = Arc::new(tokio::sync::Barrier::new(20));
    let nodes = [bench.store(), bench.another().await];
    let copies: Vec<_> = (0..20)
        .map(|copy| {
            let (store, barrier) = (nodes[copy % 2].clone(), barrier.clone());
            let group = [Entry::Message(new.clone())];
            tokio::spawn(async move {
                barrier.wait().await;
                store.accept(&group).await.unwrap().remove(0)
            })
        })
        .collect();
    let mut stored = 0;
    for copy in copies {
        match copy.await.unwrap() {
            Accepted::Stored => stored += 1,
            other => assert_eq!(other, Accepted::Duplicate),
        }
    }
    assert_eq!(stored, 1);
    assert_eq!(bench.numbers().await.len(), 1);
    assert_eq!(bench.story(new.message.id).await.duplicates, 19);
}

pub(super) async fn state_writes_commit_with_their_messages(bench: Bench) {
    let with = |id: &str, value: &'static [u8]| {
        let mut new = arrival("p/in", id).to(&["q/out"]);
        new.message.arrival.state =
            Some(StateWrite { name: "place".to_owned(), value: Bytes::from_static(value) });
        new
    };
    let state = async || {
        let state = bench.store().state(&name("p/in"), "place").await;
        state.unwrap().unwrap()
    };
    bench.accept_all(&[with("1", b"a"), with("2", b"b\0c")]).await;
    let first = state().await;
    assert_eq!(first.value, Bytes::from_static(b"b\0c"), "the last one wins");
    assert!(first.revision > 0);

    // A repeat and a refused arrival move the place on as well.
    assert_eq!(bench.accept(&with("1", b"d")).await, Accepted::Duplicate);
    let second = state().await;
    assert_eq!(second.value, Bytes::from_static(b"d"));
    assert!(second.revision > first.revision);
    bench.set_aside(&with("3", b"e"), DeadReason::Invalid).await;
    assert_eq!(state().await.value, Bytes::from_static(b"e"));
    let other = bench.store().state(&name("p/other"), "place").await;
    assert_eq!(other.unwrap(), None);
}

pub(super) async fn a_refused_arrival_holds_no_claim_on_its_id(bench: Bench) {
    let bad = arrival("p/in", "1").body("not readable");
    bench.set_aside(&bad, DeadReason::Unreadable).await;
    bench.set_aside(&arrival("p/in", "2"), DeadReason::Invalid).await;
    bench.set_aside(&arrival("q/in", "1"), DeadReason::Invalid).await;
    assert_eq!(bench.dead_letters().await.len(), 3);

    let good = bad.clone().to(&["q/out"]).body("readable");
    assert_eq!(bench.accept(&good).await, Accepted::Stored);
    let left: Vec<_> = bench
        .dead_letters()
        .await
        .into_iter()
        .map(|letter| (letter.endpoint.to_string(), letter.origin_id.unwrap()))
        .collect();
    let expected = [("p/in", "2"), ("q/in", "1")];
    let expected = expected.map(|(source, id)| (source.to_owned(), id.to_owned()));
    assert_eq!(left, expected, "the successor closes its own one only");
}

pub(super) async fn an_arrival_refused_again_is_kept_once(bench: Bench) {
    let bad = arrival("p/in", "1");
    bench.set_aside(&bad, DeadReason::Invalid).await;
    bench.set_aside(&bad, DeadReason::Invalid).await;
    assert_eq!(bench.dead_letters().await.len(), 1, "the same bytes");
    bench.set_aside(&bad.clone().body("others"), DeadReason::Invalid).await;
    assert_eq!(bench.dead_letters().await.len(), 2, "other bytes");

    // Without an id nothing says that it is the same one.
    let mut nameless = bad;
    nameless.message.origin.id = None;
    nameless.message.id = MessageId::UNASSIGNED;
    bench.set_aside(&nameless, DeadReason::Invalid).await;
    bench.set_aside(&nameless, DeadReason::Invalid).await;
    assert_eq!(bench.dead_letters().await.len(), 4);
}

pub(super) async fn a_message_nobody_takes_is_counted(bench: Bench) {
    let lost = arrival("p/in", "1");
    bench.accept(&lost).await;
    bench.accept(&arrival("p/in", "2").to(&["q/out"])).await;
    assert_eq!(bench.store().unrouted().await.unwrap(), 1);
    let query = MessageQuery { unrouted: true, ..MessageQuery::default() };
    let found = bench.store().messages(&query).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].id, lost.message.id);
    assert!(found[0].deliveries.is_empty());
}

pub(super) async fn a_fault_of_routing_is_a_dead_letter_and_not_a_no(bench: Bench) {
    let mut new = arrival("p/in", "1").key("k");
    new.faults = vec![(name("q/out"), "yielded nothing".to_owned())];
    bench.accept(&new).await;
    assert_eq!(bench.store().unrouted().await.unwrap(), 0);
    let letters = bench.dead_letters().await;
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!(letter.kind, DeadKind::Routing);
    assert_eq!(letter.reason, DeadReason::Routing);
    assert_eq!(letter.endpoint, name("q/out"));
    assert_eq!(letter.message, Some(new.message.id));
    assert_eq!(letter.holds, Holds::Nothing);
    let detail = letter.detail.clone().unwrap_or_default();
    assert!(detail.contains("yielded nothing"), "{detail}");
    let message = bench.store().dead_message(letter.id).await.unwrap();
    assert_same(&message.unwrap(), &new.message);
}
