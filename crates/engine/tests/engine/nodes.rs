//! Many nodes on one store, by passed time.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use pabal_core::*;
use pabal_engine::{Destination, Engine, HealthStatus, Setup, Source};

use crate::{
    kit::{Kit, Partner, Step, act, away, failed, hand_over, message, name, ok, text},
    wrapped::Wrapped,
};

const SECOND: Duration = Duration::from_secs(1);

fn to(partner: &Arc<Partner>, lanes: u16) -> Destination {
    let sender = Arc::clone(partner) as Arc<dyn Sender>;
    Destination { lanes, ..Destination::new(name("tax/all"), &["order"], sender) }
}

fn lanes(engine: &Engine) -> u16 {
    engine.status()[0].lanes
}

/// Messages of so many keys in turn: the key and a number that grows in it.
fn numbered(range: std::ops::Range<usize>, keys: usize) -> Vec<Message> {
    let one = |n: usize| {
        let key = format!("key {}", n % keys);
        message(&n.to_string(), Some(&key), &format!("{key}:{n}"))
    };
    range.map(one).collect()
}

/// Each body came so often; the first of each, in the order of its key.
fn first_sends_in_order(partner: &Partner) -> HashMap<String, usize> {
    let mut last: BTreeMap<String, usize> = BTreeMap::new();
    let mut counts = HashMap::new();
    for body in partner.came() {
        let count: &mut usize = counts.entry(body.clone()).or_default();
        *count += 1;
        if *count > 1 {
            continue;
        }
        let (key, number) = body.split_once(':').unwrap();
        let number = number.parse().unwrap();
        let before = last.insert(key.to_owned(), number);
        assert!(before.is_none_or(|before| before < number), "{key}: {number} after {before:?}");
    }
    counts
}

#[tokio::test]
async fn lanes_move_to_a_node_that_comes_and_back_when_it_leaves_and_nothing_is_sent_twice() {
    let kit = Kit::new().await;
    let partner = Partner::new(|_, _| ok());
    let (a, _) = kit.node("a", |setup| setup.destinations.push(to(&partner, 8))).await;
    assert_eq!(lanes(&a), 0, "the status follows");
    hand_over(&a, numbered(0..40, 10)).await;
    kit.seen.wait("a delivered", 40).await;
    assert_eq!(lanes(&a), 8);
    let (b, _) = kit.node("b", |setup| setup.destinations.push(to(&partner, 8))).await;
    hand_over(&a, numbered(40..80, 10)).await;
    kit.pass_until(SECOND, || lanes(&b) > 0 && lanes(&a) + lanes(&b) == 8).await;
    hand_over(&b, numbered(80..200, 10)).await;
    kit.pass_until(SECOND, || partner.taken().len() == 200).await;
    assert!(kit.seen.lines("b delivered") > 0);
    b.stop().await;
    hand_over(&a, numbered(200..240, 10)).await;
    kit.pass_until(SECOND, || partner.taken().len() == 240 && lanes(&a) == 8).await;
    a.stop().await;
    let counts = first_sends_in_order(&partner);
    assert_eq!(counts.len(), 240);
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
    let left = kit.store.lanes().await.unwrap();
    assert!(left.iter().all(|lane| lane.holder.is_none() && lane.clean), "{left:?}");
    assert_eq!(kit.store.nodes().await.unwrap(), []);
}

#[tokio::test]
async fn a_node_cut_off_from_the_store_stops_sending_and_another_goes_on_in_order() {
    let kit = Kit::new().await;
    // The first message hangs at node a; everything else is taken.
    let partner =
        Partner::new(
            |message, before| {
                if text(message) == "key 0:0" && before == 0 { Step::Hold } else { ok() }
            },
        );
    let (a, to_store) = kit.node("a", |setup| setup.destinations.push(to(&partner, 1))).await;
    hand_over(&a, numbered(0..1, 1)).await;
    partner.wait(1).await;
    hand_over(&a, numbered(1..10, 1)).await;
    let (b, _) = kit.node("b", |setup| setup.destinations.push(to(&partner, 1))).await;
    to_store.cut_off.store(true, Ordering::SeqCst);
    kit.pass_until(SECOND, || kit.seen.lines("b lane tax/all true") == 1).await;
    let took = kit.clock.elapsed();
    assert!((15..=25).contains(&took.as_secs()), "the lease, and little more: {took:?}");
    kit.pass_until(SECOND, || kit.seen.lines("b delivered") == 10).await;
    // Its send was cut off; the verdict is of a lane it holds no longer.
    to_store.cut_off.store(false, Ordering::SeqCst);
    kit.pass_until(SECOND, || kit.seen.lines("a before") == 1).await;
    hand_over(&a, numbered(10..20, 1)).await;
    kit.pass_until(SECOND, || partner.taken().len() == 20).await;
    let counts = first_sends_in_order(&partner);
    let twice: Vec<_> = counts.iter().filter(|(_, count)| **count > 1).collect();
    assert_eq!(twice, [(&"key 0:0".to_owned(), &2)]);
    assert!(kit.dead().await.is_empty());
    a.stop().await;
    b.stop().await;
}

#[tokio::test]
async fn what_commits_while_the_tail_is_read_is_sent_at_its_place_in_the_key() {
    for late in 0..4 {
        let mut kit = Kit::new().await;
        Wrapped::under(&mut kit, |store| *store.late.lock().unwrap() = Some(late));
        let partner = Partner::new(|_, _| ok());
        kit.to("tax/all", &partner);
        let engine = kit.start().await;
        // One transaction, of which one delivery is seen a moment later than those around it.
        hand_over(&engine, numbered(0..5, 1)).await;
        partner.wait(5).await;
        engine.stop().await;
        assert_eq!(first_sends_in_order(&partner).len(), 5, "late: {late}");
    }
}

#[tokio::test]
async fn a_receipt_that_lies_unread_when_the_lease_has_lapsed_counts_and_of_a_batch_nothing_more_is_sent()
 {
    for (batch_max, counts) in [(1, true), (10, false)] {
        let kit = Kit::new().await;
        let limits = Limits { batch_max, ..Limits::one_by_one(1 << 20) };
        let partner =
            Partner::with(limits, |_, before| if before == 0 { Step::Hold } else { ok() });
        let (a, _) = kit
            .node("a", |setup| {
                let mut destination = to(&partner, 1);
                destination.concurrency = 1;
                setup.destinations.push(destination);
            })
            .await;
        hand_over(&a, [message("1", None, "first"), message("2", None, "second")]).await;
        partner.wait(1).await;
        // The process stands still for longer than its lease; the answers are there when it wakes up.
        partner.gate.add_permits(2);
        kit.clock.advance(SECOND * 20);
        kit.pass_until(SECOND, || kit.seen.lines("a delivered") == 2).await;
        let cut = kit.seen.lines("a attempt tax/all transient spent");
        let came = partner.counts();
        if counts {
            assert_eq!((cut, came["first"], came["second"]), (0, 1, 1));
        } else {
            assert_eq!(
                (cut, came["first"], came["second"]),
                (2, 2, 1),
                "the second was not written"
            );
        }
        a.stop().await;
    }
}

#[tokio::test]
async fn a_late_success_is_recorded_and_a_late_failure_is_fenced() {
    let kit = Kit::new().await;
    let partner = Partner::new(|message, _| match text(message).as_str() {
        "bad" => failed(),
        _ => ok(),
    });
    let (a, to_store) = kit
        .node("a", |setup| {
            let mut destination = to(&partner, 1);
            destination.retry.attempts = 1;
            setup.destinations.push(destination);
        })
        .await;
    // What node a learned it cannot write any more.
    to_store
        .settles
        .lock()
        .unwrap()
        .extend(std::iter::repeat_with(|| StoreError::Unavailable("no route".into())).take(1_000));
    hand_over(&a, [message("1", None, "good"), message("2", None, "bad")]).await;
    partner.wait(2).await;
    let (b, b_store) = kit.node("b", |setup| setup.destinations.push(to(&partner, 1))).await;
    // Node b is to take over, and to send nothing: it only holds.
    let pause =
        LinkChange::Paused(Some(Paused { by: "kim".into(), why: None, at: Timestamp::UNIX_EPOCH }));
    kit.store.set_link_state(&name("tax/all"), pause, Some(&act())).await.unwrap();
    b.wake();
    to_store.cut_off.store(true, Ordering::SeqCst);
    kit.pass_until(SECOND, || lanes(&b) == 1).await;
    to_store.settles.lock().unwrap().clear();
    to_store.cut_off.store(false, Ordering::SeqCst);
    kit.pass_until(SECOND, || {
        kit.seen.lines("a delivered") == 1 && kit.seen.lines("a before") == 1
    })
    .await;
    // The failure would have been a dead letter.
    assert!(kit.dead().await.is_empty());
    let waiting = kit.store.deliveries(Which::Tail { after: 0 }, 10).await.unwrap();
    assert_eq!(waiting.len(), 1, "the good one has left, the bad one waits for node b");
    drop(b_store);
    a.stop().await;
    b.stop().await;
}

#[tokio::test]
async fn another_number_of_lanes_keeps_the_order_of_keys_with_rows_waiting() {
    let kit = Kit::new().await;
    let partner = Partner::new(|_, _| ok());
    let slow = |setup: &mut Setup, lanes: u16| {
        setup.destinations.push(Destination { concurrency: 4, ..to(&partner, lanes) });
    };
    let (a, _) = kit.node("a", |setup| slow(setup, 1)).await;
    hand_over(&a, numbered(0..2_000, 50)).await;
    let (b, _) = kit.node("b", |setup| slow(setup, 6)).await;
    hand_over(&b, numbered(2_000..3_000, 50)).await;
    kit.pass_until(SECOND, || partner.taken().len() == 3_000).await;
    let layouts = kit.store.layouts().await.unwrap();
    assert_eq!((layouts[0].number, layouts[0].lanes), (2, 6));
    a.stop().await;
    let (c, _) = kit.node("c", |setup| slow(setup, 3)).await;
    hand_over(&b, numbered(3_000..4_000, 50)).await;
    kit.pass_until(SECOND, || partner.taken().len() == 4_000).await;
    b.stop().await;
    c.stop().await;
    let counts = first_sends_in_order(&partner);
    assert!(counts.len() == 4_000 && counts.values().all(|count| *count == 1));
}

#[tokio::test]
async fn a_held_destination_is_held_on_every_node_and_opens_on_every_node() {
    let kit = Kit::new().await;
    let open = Arc::new(AtomicUsize::new(0));
    let answers = Arc::clone(&open);
    let partner = Partner::new(move |_, _| match answers.load(Ordering::SeqCst) {
        0 => away(),
        _ => ok(),
    });
    let (a, _) = kit.node("a", |setup| setup.destinations.push(to(&partner, 8))).await;
    let (b, _) = kit.node("b", |setup| setup.destinations.push(to(&partner, 8))).await;
    kit.pass_until(SECOND, || lanes(&b) > 0 && lanes(&a) + lanes(&b) == 8).await;
    let is_held = |engine: &Engine| matches!(engine.status()[0].health, HealthStatus::Held { .. });
    // One key, so one node alone finds out.
    hand_over(&a, numbered(0..1, 1)).await;
    kit.pass_until(SECOND, || is_held(&a) && is_held(&b)).await;
    let (seen_a, seen_b) = (kit.seen.lines("a attempt"), kit.seen.lines("b attempt"));
    assert!(seen_a == 0 || seen_b == 0, "one node alone sends: {seen_a} and {seen_b}");
    open.store(1, Ordering::SeqCst);
    kit.pass_until(SECOND, || !is_held(&a) && !is_held(&b)).await;
    assert_eq!(partner.taken(), ["key 0:0"]);
    a.stop().await;
    b.stop().await;
    assert_eq!(kit.store.link_states().await.unwrap(), []);
}

#[tokio::test]
async fn a_partners_pace_is_shared_out_and_outlives_a_restart() {
    let kit = Kit::new().await;
    let pace = LinkChange::Pace(Some(8.0));
    kit.store.set_link_state(&name("tax/all"), pace, None).await.unwrap();
    let partner = Partner::new(|_, _| ok());
    let (a, _) = kit.node("a", |setup| setup.destinations.push(to(&partner, 4))).await;
    kit.pass_until(SECOND, || lanes(&a) == 4).await;
    assert_eq!(a.status()[0].pace, Some(8.0));
    let (b, _) = kit.node("b", |setup| setup.destinations.push(to(&partner, 4))).await;
    kit.pass_until(SECOND, || lanes(&b) > 0 && lanes(&a) + lanes(&b) == 4).await;
    kit.pass_until(SECOND, || a.status()[0].pace != Some(8.0)).await;
    let share = |engine: &Engine| engine.status()[0].pace.unwrap() / f64::from(lanes(engine));
    assert_eq!((share(&a), share(&b)), (2.0, 2.0));
    a.stop().await;
    b.stop().await;
}

#[tokio::test]
async fn a_destination_with_a_rate_keeps_all_its_lanes_on_one_node() {
    let kit = Kit::new().await;
    let partner = Partner::new(|_, _| ok());
    let limited = |setup: &mut Setup| {
        for n in 0..6 {
            let sender = Arc::clone(&partner) as Arc<dyn Sender>;
            let destination = Destination::new(name(&format!("tax/d{n}")), &["order"], sender);
            let rate = Some(5.0);
            setup.destinations.push(Destination { lanes: 4, rate, ..destination });
        }
    };
    let (a, _) = kit.node("a", limited).await;
    let (b, _) = kit.node("b", limited).await;
    let held = |engine: &Engine| -> Vec<u16> {
        engine.status().iter().map(|status| status.lanes).collect()
    };
    kit.pass_until(SECOND, || {
        let (a, b) = (held(&a), held(&b));
        b.contains(&4) && a.iter().zip(&b).all(|(a, b)| a + b == 4)
    })
    .await;
    let (a_held, b_held) = (held(&a), held(&b));
    assert!(a_held.iter().chain(&b_held).all(|lanes| [0, 4].contains(lanes)), "{a_held:?}");
    a.stop().await;
    b.stop().await;
}

/// Runs until it is stopped, and notes on which node and that it is the only one.
#[derive(Debug)]
struct Exclusive {
    running: Arc<AtomicUsize>,
    starts: Arc<AtomicUsize>,
    id: &'static str,
}

#[async_trait]
impl Receiver for Exclusive {
    fn exclusive(&self) -> bool {
        true
    }
    async fn run(&self, inbox: Arc<dyn Sender>, stop: Stop) -> Result<(), ReceiveError> {
        struct Left(Arc<AtomicUsize>);
        impl Drop for Left {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        assert_eq!(self.running.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
        let _left = Left(Arc::clone(&self.running));
        let start = self.starts.fetch_add(1, Ordering::SeqCst);
        let id = format!("{} {start}", self.id);
        let verdicts = inbox.send(&[message(&id, None, &id)]).await;
        verdicts[0].as_ref().unwrap();
        stop.wait().await;
        Ok(())
    }
}

#[tokio::test]
async fn an_exclusive_receiver_runs_on_one_node_and_goes_on_elsewhere_when_that_one_is_gone() {
    let kit = Kit::new().await;
    let (running, starts) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let with = |id: &'static str| {
        let receiver = Exclusive { running: Arc::clone(&running), starts: Arc::clone(&starts), id };
        move |setup: &mut Setup| {
            setup.sources = vec![Source::new(name("city/orders"), Some(Arc::new(receiver)))];
        }
    };
    let (a, a_store) = kit.node("a", with("a")).await;
    kit.seen.wait("a accepted", 1).await;
    let (b, _) = kit.node("b", with("b")).await;
    let (c, _) = kit.node("c", with("c")).await;
    kit.clock.advance(SECOND * 4);
    // Node a is cut off: what it runs ends with its lease, before anybody else begins.
    a_store.cut_off.store(true, Ordering::SeqCst);
    let accepted = || kit.seen.lines("b accepted") + kit.seen.lines("c accepted");
    kit.pass_until(SECOND, || accepted() > 0 && running.load(Ordering::SeqCst) == 1).await;
    a_store.cut_off.store(false, Ordering::SeqCst);
    b.stop().await;
    c.stop().await;
    let before = kit.seen.lines("a accepted");
    kit.pass_until(SECOND, || kit.seen.lines("a accepted") > before).await;
    a.stop().await;
    assert_eq!(running.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn nodes_that_run_different_plans_are_told_and_a_destination_one_knows_is_served_by_it() {
    let kit = Kit::new().await;
    let partner = Partner::new(|_, _| ok());
    let (a, _) = kit.node("a", |_| {}).await;
    let (b, _) = kit
        .node("b", |setup| {
            setup.plan = "another".into();
            setup.destinations.push(to(&partner, 8));
        })
        .await;
    kit.pass_until(SECOND, || {
        kit.seen.lines("a plans differ 1") == 1 && kit.seen.lines("b plans differ 1") == 1
    })
    .await;
    // Node a does not know the destination, so all its lanes are node b's.
    hand_over(&b, numbered(0..40, 20)).await;
    kit.pass_until(SECOND, || partner.taken().len() == 40).await;
    assert_eq!(lanes(&b), 8);
    b.stop().await;
    kit.pass_until(SECOND, || kit.seen.lines("a plans differ 0") == 1).await;
    a.stop().await;
}
