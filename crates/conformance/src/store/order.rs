//! Order: of one key nothing is read before the oldest that waits, whatever happens to it.

use std::collections::BTreeSet;

use pabal_core::*;

use super::bench::*;

fn of_key(n: usize, key: &str) -> NewMessage {
    arrival("p/in", &format!("{key} {n}")).to(&["q/out"]).key(key)
}

/// What a holder of the lane reads of a key.
async fn read(bench: &Bench, key: &str, after: Number, limit: usize) -> Vec<Number> {
    let which = Which::Key { destination: &name("q/out"), key, after };
    let found = bench.store().deliveries(which, limit).await.unwrap();
    found.iter().map(|delivery| delivery.number).collect()
}

pub(super) async fn a_key_keeps_its_order_through_retries_death_and_replay_and_others_pass(
    bench: Bench,
) {
    let all: Vec<_> = (0..4).flat_map(|n| [of_key(n, "a"), of_key(n, "b")]).collect();
    bench.accept_all(&all).await;
    let (a, b) = (read(&bench, "a", 0, 10).await, read(&bench, "b", 0, 10).await);
    assert!((a.len(), b.len()) == (4, 4) && a.is_sorted() && b.is_sorted());
    let first = bench.waiting().await.remove(0);
    assert_eq!(first.number, a[0]);

    // A retry moves its time and not its place, ...
    bench.settle(&first, retry(3600, true)).await;
    assert_eq!(read(&bench, "a", 0, 10).await, a);
    // ... a death leaves those behind it where they are, and says that it holds them, ...
    assert_eq!(bench.settle(&first, dead(Holds::Key)).await, Settled::Done);
    assert_eq!(read(&bench, "a", 0, 10).await, a[1..]);
    let held = bench.store().held(&name("q/out")).await.unwrap();
    assert_eq!(held, [(Some("a".to_owned()), first.number)]);
    // ... the other key is none of its business, ...
    let others = bench.waiting().await;
    for delivery in others.iter().filter(|it| it.key.as_deref() == Some("b")) {
        assert_eq!(bench.settle(delivery, Fate::Delivered).await, Settled::Done);
    }
    assert!(read(&bench, "b", 0, 10).await.is_empty());
    // ... and a replay comes back in front of what was handed over after it.
    bench.accept(&of_key(9, "a")).await;
    let letter = bench.dead_letters().await.remove(0);
    bench.store().replay(&[letter.id], &act("replay")).await.unwrap();
    let again = read(&bench, "a", 0, 10).await;
    assert_eq!((again.len(), &again[..4]), (5, &a[..]));
    assert!(bench.store().held(&name("q/out")).await.unwrap().is_empty());
}

pub(super) async fn a_key_that_passes_its_dead_holds_nothing_back(bench: Bench) {
    bench.accept_all(&[of_key(0, "a"), of_key(1, "a"), of_key(2, "a")]).await;
    let waiting = bench.waiting().await;
    bench.settle(&waiting[0], dead(Holds::Nothing)).await;
    assert!(bench.store().held(&name("q/out")).await.unwrap().is_empty());
    assert_eq!(read(&bench, "a", 0, 10).await, [waiting[1].number, waiting[2].number]);
    let counts = bench.store().counts().await.unwrap();
    let count = counts.iter().find(|count| count.endpoint == name("q/out")).unwrap();
    assert_eq!((count.waiting, count.held, count.keys_held, count.dead), (2, 0, 0, 1));
}

pub(super) async fn rows_that_wait_keep_slot_and_order_under_another_layout(bench: Bench) {
    let keys: Vec<String> = (0..40).map(|n| format!("key {n}")).collect();
    let all: Vec<_> = (0..3).flat_map(|n| keys.iter().map(move |key| of_key(n, key))).collect();
    bench.accept_all(&all).await;
    let before = bench.waiting().await;
    let store = bench.store();
    let old = store.lanes().await.unwrap().remove(0).lane;
    let new = bench.lay_out("q/out", 5).await;
    assert!(store.release_lane(&old, bench.epoch).await.unwrap());
    let node = store.join("b", &plan("b")).await.unwrap();
    for (lane, holder) in new.iter().zip([bench.epoch, node].into_iter().cycle()) {
        assert!(store.take_lane(lane, None, holder).await.unwrap());
    }
    assert_eq!(bench.waiting().await, before);
    // Each key is in one lane as a whole, so one node alone settles it.
    for delivery in &before {
        let owner = if (delivery.slot % 5).is_multiple_of(2) { bench.epoch } else { node };
        let other = if owner == node { bench.epoch } else { node };
        let failed = [settlement(delivery, retry(0, true))];
        assert_eq!(store.settle(other, &failed).await.unwrap(), [Settled::NotThere]);
        assert_eq!(store.settle(owner, &failed).await.unwrap(), [Settled::Done]);
    }
}

pub(super) async fn lanes_that_change_hands_spend_no_attempt(bench: Bench) {
    let delivery = bench.deliver(&of_key(0, "a")).await;
    bench.settle(&delivery, retry(5, true)).await;
    let before = bench.waiting().await;
    let store = bench.store();
    let lane = store.lanes().await.unwrap().remove(0).lane;
    let mut holder = bench.epoch;
    for round in 0..3 {
        let next = store.join("next", &plan("n")).await.unwrap();
        if round == 1 {
            let nodes = store.nodes().await.unwrap();
            let beat = nodes.iter().find(|it| it.epoch == holder).unwrap().beat;
            let from = Some(StandingStill { epoch: holder, beat });
            assert!(store.take_lane(&lane, from, next).await.unwrap());
        } else {
            assert!(store.release_lane(&lane, holder).await.unwrap());
            assert!(store.take_lane(&lane, None, next).await.unwrap());
        }
        holder = next;
    }
    assert_eq!(bench.waiting().await, before);
}

pub(super) async fn what_the_tail_skipped_is_found_later_and_nothing_is_seen_twice(bench: Bench) {
    let nodes = [bench.store(), bench.another().await];
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..6 {
        let store = nodes[writer % 2].clone();
        writers.spawn(async move {
            for n in 0..10 {
                let id = |part| format!("{writer} {n} {part}");
                let new = |part| Entry::Message(arrival("p/in", &id(part)).to(&["q/a", "q/b"]));
                store.accept(&[new(0), new(1)]).await.unwrap();
            }
        });
    }
    let (mut position, mut ended) = (0, false);
    let (mut skipped, mut seen) = (BTreeSet::new(), BTreeSet::new());
    loop {
        let tail = Which::Tail { after: position };
        for delivery in nodes[0].deliveries(tail, 1_000).await.unwrap() {
            skipped.extend(position + 1..delivery.number);
            position = delivery.number;
            assert!(seen.insert(position), "{position} twice");
        }
        let missing: Vec<_> = skipped.iter().copied().collect();
        for late in nodes[0].deliveries(Which::Numbers(&missing), 1_000).await.unwrap() {
            assert!(skipped.remove(&late.number) && seen.insert(late.number));
        }
        if ended {
            break;
        }
        while let Some(writer) = writers.try_join_next() {
            writer.unwrap();
        }
        ended = writers.is_empty();
    }
    assert_eq!(seen.len(), 240);
    assert!(!nodes[0].late_commits_for().is_zero() || skipped.is_empty(), "{skipped:?}");
}

pub(super) async fn the_next_of_a_deep_key_are_read_in_pages_past_what_is_in_front(bench: Bench) {
    let deep: Vec<_> = (0..600).map(|n| of_key(n, "deep")).collect();
    bench.accept_all(&deep).await;
    bench.accept_all(&[of_key(0, "other")]).await;
    let all = bench.numbers().await;
    let mut read_so_far = Vec::new();
    loop {
        let after = read_so_far.last().copied().unwrap_or(0);
        let page = read(&bench, "deep", after, 64).await;
        if page.is_empty() {
            break;
        }
        read_so_far.extend(page);
    }
    assert_eq!(read_so_far, all[..600]);
    assert_eq!(read(&bench, "other", 0, 64).await, all[600..]);
}
