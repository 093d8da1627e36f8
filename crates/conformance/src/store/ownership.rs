//! Who may write what: values by revision, lanes by epoch.

use std::time::Duration;

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
    let a1 = store.join("a", &plan("1")).await.unwrap();
    let b1 = store.join("b", &plan("1")).await.unwrap();
    let a2 = store.join("a", &plan("2")).await.unwrap();
    assert!(a1 < b1 && b1 < a2, "{a1:?} {b1:?} {a2:?}");
    let of = |beats: &[Beat], epoch| beats.iter().find(|it| it.epoch == epoch).cloned();
    let first = store.beat(a2).await.unwrap();
    bench.pass(3).await;
    let second = store.beat(a2).await.unwrap();
    let (before, after) = (of(&first, a2).unwrap(), of(&second, a2).unwrap());
    assert_eq!((after.node.as_str(), after.plan.as_str()), ("a", "2"));
    assert!(before.beat < after.beat, "a beat grows");
    let (before, after) = (of(&first, b1).unwrap(), of(&second, b1).unwrap());
    assert_eq!(before.beat, after.beat, "a node that does not beat stands still");
    assert!(after.age >= before.age + Duration::from_secs(3), "{before:?} {after:?}");
    let all = store.nodes().await.unwrap();
    assert_eq!(of(&all, a2).map(|it| it.beat), of(&second, a2).map(|it| it.beat));
    assert_eq!(all.len(), second.len());
    assert!(store.leave(a2).await.unwrap());
    let a3 = store.join("a", &plan("2")).await.unwrap();
    assert!(a2 < a3, "an epoch is never given again");
}

pub(super) async fn a_node_that_left_is_gone_and_one_that_holds_lanes_cannot_leave(bench: Bench) {
    let store = bench.store();
    let a = store.join("a", &plan("1")).await.unwrap();
    let lane = bench.lay_out("q/out", 1).await.remove(0);
    assert!(store.take_lane(&lane, None, a).await.unwrap());
    assert!(!store.leave(a).await.unwrap());
    assert!(store.beat(a).await.is_ok());
    assert!(store.release_lane(&lane, a).await.unwrap());
    assert!(store.leave(a).await.unwrap());
    assert!(!store.leave(a).await.unwrap(), "it left");
    assert_eq!(store.beat(a).await, Err(StoreError::Fenced), "a life that is over");
    assert!(store.nodes().await.unwrap().iter().all(|beat| beat.epoch != a));
}

pub(super) async fn a_plan_is_known_while_a_node_runs_it(bench: Bench) {
    let store = bench.store();
    let endpoints = vec![name("p/in"), name("q/out")];
    let plan = NodePlan { hash: "f00d".to_owned(), endpoints: endpoints.clone() };
    let (a, b) = (store.join("a", &plan).await.unwrap(), store.join("b", &plan).await.unwrap());
    assert!(store.leave(a).await.unwrap());
    assert_eq!(store.plan("f00d").await.unwrap(), Some(endpoints));
    assert!(store.leave(b).await.unwrap());
    assert_eq!(store.plan("f00d").await.unwrap(), None);
}

/// What is seen of a life that does not beat.
async fn standing_still(store: &dyn Store, epoch: Epoch) -> StandingStill {
    let nodes = store.nodes().await.unwrap();
    let beat = nodes.iter().find(|it| it.epoch == epoch).unwrap().beat;
    StandingStill { epoch, beat }
}

/// Who holds each lane of a destination in its newest layout.
async fn holders(bench: &Bench) -> Vec<(u16, Option<Epoch>)> {
    let lanes = bench.store().lanes().await.unwrap();
    lanes.into_iter().map(|it| (it.lane.index, it.holder)).collect()
}

pub(super) async fn a_lane_is_taken_only_from_who_holds_it(bench: Bench) {
    let store = bench.store();
    let a = store.join("a", &plan("1")).await.unwrap();
    let b = store.join("b", &plan("1")).await.unwrap();
    let lanes = bench.lay_out("q/out", 2).await;
    let [lane, other] = &lanes[..] else { panic!("{lanes:?}") };
    let take = async |lane: &Lane, from, to| store.take_lane(lane, from, to).await.unwrap();
    let release = async |lane: &Lane, from| store.release_lane(lane, from).await.unwrap();
    let still = async |epoch| standing_still(&*store, epoch).await;
    assert!(!take(lane, Some(still(b).await), a).await, "nobody holds it");
    assert!(!release(lane, a).await, "nobody holds it");
    assert!(take(lane, None, a).await);
    assert!(!take(lane, None, b).await);
    assert!(!take(lane, Some(still(b).await), b).await, "a holds it");
    let before = still(a).await;
    store.beat(a).await.unwrap();
    assert!(!take(lane, Some(before), b).await, "it beat again");
    assert!(!store.give_up_lane(lane, before).await.unwrap(), "it beat again");
    assert!(take(lane, Some(still(a).await), b).await);
    assert!(!store.give_up_lane(lane, still(a).await).await.unwrap(), "b holds it");
    assert!(take(other, None, a).await);
    assert_eq!(holders(&bench).await, [(0, Some(b)), (1, Some(a))]);
    assert!(!release(lane, a).await, "b holds it");
    assert!(release(lane, b).await);
    assert_eq!(holders(&bench).await, [(0, None), (1, Some(a))]);
    assert!(take(lane, None, a).await);
    // The right to run a receiver is of no layout, and nothing to a destination of the same name.
    let receiver = Lane::receiver(name("q/out"));
    assert!(take(&receiver, None, b).await);
    assert!(!take(&receiver, None, a).await);
}

pub(super) async fn eight_racing_nodes_never_hold_one_lane_twice(bench: Bench) {
    let store = bench.store();
    let lanes = bench.lay_out("q/out", 16).await;
    let mut nodes = Vec::new();
    for index in 0..8 {
        nodes.push(store.join(&format!("node {index}"), &plan("1")).await.unwrap());
    }
    let stores = [bench.store(), bench.another().await];
    for round in 0..5 {
        let mut races = tokio::task::JoinSet::new();
        for (at, node) in nodes.iter().copied().enumerate() {
            for lane in lanes.iter().cloned() {
                let store = stores[at % 2].clone();
                races.spawn(async move {
                    let taken = store.take_lane(&lane, None, node).await.unwrap();
                    taken.then_some((lane, node))
                });
            }
        }
        let taken: Vec<_> = races.join_all().await.into_iter().flatten().collect();
        let indices: std::collections::BTreeSet<_> =
            taken.iter().map(|(lane, _)| lane.index).collect();
        assert_eq!((taken.len(), indices.len()), (16, 16), "round {round}: {taken:?}");
        let mut expected: Vec<_> =
            taken.iter().map(|(lane, node)| (lane.index, Some(*node))).collect();
        expected.sort_unstable();
        assert_eq!(holders(&bench).await, expected);
        for (lane, node) in &taken {
            assert!(store.release_lane(lane, *node).await.unwrap());
        }
    }
}

pub(super) async fn nothing_of_a_new_layout_is_taken_while_an_old_lane_is_held(bench: Bench) {
    let store = bench.store();
    let a = store.join("a", &plan("1")).await.unwrap();
    let old = bench.lay_out("q/out", 2).await;
    assert!(store.take_lane(&old[1], None, a).await.unwrap());
    let same = bench.lay_out("q/out", 2).await;
    assert_eq!(same, old, "the same layout keeps its number");
    let new = bench.lay_out("q/out", 3).await;
    assert!(new[0].layout > old[0].layout && new.len() == 3, "{new:?}");
    assert!(!store.take_lane(&old[0], None, a).await.unwrap(), "its layout is over");
    assert!(!store.take_lane(&new[0], None, a).await.unwrap(), "an old lane is held");
    // What the old lane's holder still has to write counts.
    let delivery =
        bench.deliver_to_others(&arrival("p/in", "1").key(&key_of_lane(1, 2)).to(&["q/out"])).await;
    let group = [settlement(&delivery, retry(1, true))];
    assert_eq!(store.settle(a, &group).await.unwrap(), [Settled::Done]);
    assert!(store.release_lane(&old[1], a).await.unwrap());
    assert!(store.take_lane(&new[0], None, a).await.unwrap());
    let other = store.lay_out(&name("q/out"), 3, Order::None).await.unwrap();
    assert!(other.number > new[0].layout, "another order is another layout");
    assert_eq!(store.layouts().await.unwrap(), [other]);
}

pub(super) async fn how_a_lane_ended_is_known_until_the_next_layout_is_taken_whole(bench: Bench) {
    let store = bench.store();
    let a = store.join("a", &plan("1")).await.unwrap();
    let b = store.join("b", &plan("1")).await.unwrap();
    let old = bench.lay_out("q/out", 1).await.remove(0);
    let ends = async || {
        let lanes = store.lanes().await.unwrap();
        lanes.into_iter().map(|it| (it.lane.layout, it.holder, it.clean)).collect::<Vec<_>>()
    };
    assert!(store.take_lane(&old, None, a).await.unwrap());
    assert!(store.release_lane(&old, a).await.unwrap());
    assert_eq!(ends().await, [(old.layout, None, true)]);
    assert!(store.take_lane(&old, None, a).await.unwrap());
    let new = bench.lay_out("q/out", 2).await;
    let next = new[0].layout;
    // Another node gives it up in the name of one that stood still.
    assert!(store.give_up_lane(&old, standing_still(&*store, a).await).await.unwrap());
    assert!(store.take_lane(&new[0], None, b).await.unwrap());
    assert_eq!(ends().await, [(old.layout, None, false), (next, Some(b), true)]);
    assert!(store.take_lane(&new[1], None, b).await.unwrap());
    assert_eq!(ends().await, [(next, Some(b), true), (next, Some(b), true)]);
}

pub(super) async fn a_failure_counts_only_from_who_holds_the_lane(bench: Bench) {
    let store = bench.store();
    let a = store.join("a", &plan("1")).await.unwrap();
    let b = store.join("b", &plan("1")).await.unwrap();
    let lanes = bench.lay_out("q/out", 2).await;
    // One lane each: it is the delivery's own lane that counts.
    assert!(store.take_lane(&lanes[0], None, a).await.unwrap());
    assert!(store.take_lane(&lanes[1], None, b).await.unwrap());
    let new = arrival("p/in", "1").key(&key_of_lane(1, 2)).to(&["q/out"]);
    let delivery = bench.deliver_to_others(&new).await;
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
    assert_eq!(store.mark_started(b, &[(delivery.number, 1)]).await, Ok(()));
    assert_eq!(settle(b, retry(60, true)).await, Settled::Done);
    assert_eq!(settle(a, Fate::Delivered).await, Settled::Done, "a receipt is true");
}

pub(super) async fn a_lapsed_lane_is_taken_over_and_the_late_failure_is_fenced(bench: Bench) {
    let store = bench.store();
    let a = store.join("a", &plan("1")).await.unwrap();
    let b = store.join("b", &plan("1")).await.unwrap();
    let lane = bench.lay_out("q/out", 1).await.remove(0);
    assert!(store.take_lane(&lane, None, a).await.unwrap());
    let failed = bench.deliver_to_others(&arrival("p/in", "1").to(&["q/out"])).await;
    let reached = bench.deliver_to_others(&arrival("p/in", "2").to(&["q/out"])).await;
    // Only the holder renews; whoever saw it stand still takes its lanes.
    assert!(store.take_lane(&lane, Some(standing_still(&*store, a).await), b).await.unwrap());
    let late = [settlement(&failed, dead(Holds::Key)), settlement(&reached, Fate::Delivered)];
    let answers = store.settle(a, &late).await.unwrap();
    assert_eq!(answers, [Settled::NotThere, Settled::Done]);
    assert_eq!(bench.waiting().await, std::slice::from_ref(&failed));
    assert!(!store.release_lane(&lane, a).await.unwrap());
    assert!(store.leave(a).await.unwrap());
    let group = [settlement(&failed, Fate::Delivered)];
    assert_eq!(store.settle(b, &group).await.unwrap(), [Settled::Done]);
}
