//! Who may write what: values by revision, lanes by epoch.

use pabal_core::*;

use super::bench::*;

pub(super) async fn a_value_is_written_only_over_the_revision_that_was_read(bench: Bench) {
    let (store, endpoint) = (bench.store(), name("p/in"));
    let set = async |revision, value: &'static [u8]| {
        let value = Bytes::from_static(value);
        let done = store.set_state(&endpoint, "place", revision, value).await;
        done.unwrap()
    };
    let get = async || store.state(&endpoint, "place").await.unwrap();
    assert_eq!(get().await, None);
    assert_eq!(set(1, b"x").await, Err(StateConflict), "not there yet");
    assert_eq!(set(0, b"a\0").await, Ok(()));
    assert_eq!(set(0, b"b").await, Err(StateConflict));
    let first = get().await.unwrap();
    assert_eq!((first.revision, &first.value[..]), (1, &b"a\0"[..]));
    assert_eq!(set(1, b"").await, Ok(()));
    assert_eq!(set(1, b"d").await, Err(StateConflict));
    let second = get().await.unwrap();
    assert_eq!((second.revision, &second.value[..]), (2, &b""[..]));
    let other = store.state(&name("p/other"), "place").await.unwrap();
    assert_eq!(other, None);
}

pub(super) async fn every_life_of_a_node_has_a_higher_epoch(bench: Bench) {
    let store = bench.store();
    let a1 = store.join("a").await.unwrap();
    let b1 = store.join("b").await.unwrap();
    let a2 = store.join("a").await.unwrap();
    assert!(a1 < b1 && b1 < a2, "{a1:?} {b1:?} {a2:?}");
    let of = |beats: &[Beat], epoch| beats.iter().find(|it| it.epoch == epoch).cloned();
    let first = store.beat(a2).await.unwrap();
    let second = store.beat(a2).await.unwrap();
    let (before, after) = (of(&first, a2).unwrap(), of(&second, a2).unwrap());
    assert_eq!(after.node, "a");
    assert!(before.beat < after.beat, "a beat grows");
    assert_eq!(of(&first, b1), of(&second, b1), "a node that does not beat stands still");
    assert_eq!(store.beat(a1).await, Err(StoreError::Fenced), "a life that is over");
}

pub(super) async fn a_lane_is_handed_over_only_by_who_holds_it(bench: Bench) {
    let store = bench.store();
    let a = store.join("a").await.unwrap();
    let b = store.join("b").await.unwrap();
    let lane = Lane { destination: name("q/out"), layout: 1, index: 0 };
    let other = Lane { index: 1, ..lane.clone() };
    let hand = async |lane: &Lane, from, to| store.hand_lane(lane, from, to).await.unwrap();
    assert!(!hand(&lane, Some(b), Some(a)).await, "nobody holds it");
    assert!(hand(&lane, None, Some(a)).await);
    assert!(!hand(&lane, None, Some(b)).await);
    assert!(!hand(&lane, Some(b), Some(b)).await);
    assert!(hand(&lane, Some(a), Some(b)).await);
    assert!(hand(&other, None, Some(a)).await);
    let holders = async || {
        let lanes = store.lanes().await.unwrap();
        lanes.into_iter().map(|it| (it.lane.index, it.holder)).collect::<Vec<_>>()
    };
    assert_eq!(holders().await, [(0, Some(b)), (1, Some(a))]);
    assert!(hand(&lane, Some(b), None).await);
    assert_eq!(holders().await, [(0, None), (1, Some(a))]);
    assert!(hand(&lane, None, Some(a)).await);
}

pub(super) async fn a_failure_counts_only_from_who_holds_the_lane(bench: Bench) {
    let store = bench.store();
    let a = store.join("a").await.unwrap();
    let b = store.join("b").await.unwrap();
    let lane = Lane { destination: name("q/out"), layout: 1, index: 0 };
    let hand = async |from, to| store.hand_lane(&lane, from, to).await.unwrap();
    let delivery = bench.deliver(&arrival("p/in", "1").to(&["q/out"])).await;
    assert!(hand(None, Some(b)).await);
    let settle = async |epoch, fate| {
        let group = [settlement(&delivery, fate)];
        store.settle(epoch, &group).await.unwrap().remove(0)
    };
    for fate in [retry(60, true), dead(Holds::Key)] {
        assert_eq!(settle(a, fate).await, Settled::NotThere, "it is with another node");
    }
    let started = store.mark_started(a, &[(delivery.number, 1)]).await;
    assert_eq!(started, Err(StoreError::Fenced));
    assert_eq!(bench.waiting().await, std::slice::from_ref(&delivery));
    assert_eq!(settle(b, retry(60, true)).await, Settled::Done);
    assert_eq!(settle(a, Fate::Delivered).await, Settled::Done, "a receipt is true");
}
