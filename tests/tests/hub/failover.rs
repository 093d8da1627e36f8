//! Nodes that die, stand still or are laid out anew, and a database that crashes, while messages flow.

use std::{
    collections::BTreeSet,
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use pabal_tests::{Answer, Gate, Hub, Nodes, Partner, Postgres, Request, until, within};
use tokio::{sync::watch, task::JoinSet};

use crate::{
    killing::{Acknowledged, compare, keep_sending, partner},
    support::{FAST, TOWN, dead_letters, drained, takes_all},
};

const LEASE: &str = "lease = \"2s\"";
const KEYS: usize = 12;
pub(crate) const ORDERS: &str = "welfare/orders";

/// Two nodes, from `town/orders` to `welfare/orders`.
async fn two(postgres: Postgres, welfare: &Partner, lanes: u16) -> Nodes {
    let file = takes_all(welfare, &format!("lanes = {lanes}\n{FAST}"), "");
    let configure = |hub: pabal_tests::HubSetup| {
        hub.partner("town", TOWN).partner("welfare", &file).hub_toml(LEASE)
    };
    let mut nodes = Nodes::prepare(postgres, 2, configure).await;
    for number in 0..2 {
        nodes.node_mut(number).start().await;
    }
    nodes
}

pub(crate) async fn hand_over(node: &Hub, id: &str, key: &str) {
    let reply = node.hand_over("town/orders", id, &[("ce-partitionkey", key)], "{}").await;
    assert_eq!(reply.status, 202, "{}", reply.text());
}

/// The numbers of a key in the order of their first sends.
pub(crate) fn numbers_of(requests: &[Request], key: &str) -> Vec<u32> {
    let of_key = requests.iter().filter(|it| it.header("ce-partitionkey") == Some(key));
    let mut seen = BTreeSet::new();
    of_key
        .map(|it| it.header("ce-originid").unwrap().parse().unwrap())
        .filter(|number| seen.insert(*number))
        .collect()
}

/// The node that holds the only lane, and the other one.
pub(crate) async fn holder(nodes: &Nodes) -> (usize, usize) {
    let labels = [("destination", ORDERS)];
    until("a node that holds the lane", async || {
        for number in 0..2 {
            let metrics = nodes.node(number).try_metrics().await.ok()?;
            if metrics.value("pabal_lease_held", &labels) == Some(1.0) {
                return Some((number, 1 - number));
            }
        }
        None
    })
    .await
}

#[tokio::test]
async fn a_node_that_is_killed_in_mid_send_is_replaced_and_its_keys_go_on_in_order() {
    let welfare = Partner::start().await;
    let mut nodes = two(Postgres::shared().await, &welfare, 1).await;
    let (holds, other) = holder(&nodes).await;
    // The first one hangs at the partner; those behind it wait.
    let gate = Gate::new();
    welfare.next([Answer::status(503).behind(&gate)]);
    hand_over(nodes.node(other), "0", "k").await;
    welfare.wait_for(1).await;
    for id in 1..10 {
        hand_over(nodes.node(id % 2), &id.to_string(), "k").await;
    }
    nodes.node_mut(holds).kill9().await;
    welfare.wait_for(11).await;
    drained(nodes.node(other), &[ORDERS]).await;
    let all = welfare.requests();
    assert_eq!(numbers_of(&all, "k"), (0..10).collect::<Vec<_>>());
    assert_eq!(all.len(), 11, "the one in flight once more, under the same id");
    assert_eq!((all[0].message_id(), &all[0].body), (all[1].message_id(), &all[1].body));
    nodes.node(other).wait_for_log("taken over from a node that did not let go").await;
    // It comes back, and the lanes are shared again.
    nodes.node_mut(holds).start().await;
    hand_over(nodes.node(holds), "10", "k").await;
    welfare.wait_for(12).await;
    assert!(dead_letters(nodes.node(other)).await.is_empty());
}

#[tokio::test]
async fn a_node_that_stood_still_past_its_lease_finds_its_lanes_taken_and_its_late_failure_fenced()
{
    let welfare = Partner::start().await;
    let mut nodes = two(Postgres::shared().await, &welfare, 1).await;
    let (holds, other) = holder(&nodes).await;
    let gate = Gate::new();
    welfare.next([Answer::status(503).behind(&gate)]);
    hand_over(nodes.node(other), "0", "k").await;
    welfare.wait_for(1).await;
    for id in 1..10 {
        hand_over(nodes.node(other), &id.to_string(), "k").await;
    }
    nodes.node(holds).freeze();
    // The other one goes on, beginning with what hung; the failure is there when the first wakes up.
    welfare.wait_for(11).await;
    gate.open();
    nodes.node(holds).thaw();
    nodes.node(holds).wait_for_log("it was settled before").await;
    for id in 10..20 {
        hand_over(nodes.node(id % 2), &id.to_string(), "k").await;
    }
    let requests = welfare.wait_for(21).await;
    assert_eq!(numbers_of(&requests, "k"), (0..20).collect::<Vec<_>>());
    assert_eq!(welfare.requests().len(), 21, "only what was in flight came twice");
    drained(nodes.node(other), &[ORDERS]).await;
    assert!(dead_letters(nodes.node(other)).await.is_empty());
    // Both end cleanly: nobody thinks to hold what the other one has.
    for number in 0..2 {
        assert!(nodes.node_mut(number).terminate().await.success());
    }
    let held = nodes.postgres.ask("SELECT count(*) FROM pabal.lane WHERE holder IS NOT NULL").await;
    assert_eq!(held, "0");
}

/// How many sends were written down as delivered.
async fn delivered(nodes: &Nodes) -> String {
    let log = "SELECT count(*) FROM pabal.delivery_log WHERE outcome = 'delivered'";
    nodes.postgres.ask(log).await
}

#[tokio::test]
async fn a_receipt_that_came_while_a_node_stood_still_past_its_lease_counts_when_it_wakes_up() {
    let welfare = Partner::start().await;
    let nodes = two(Postgres::shared().await, &welfare, 1).await;
    let (holds, other) = holder(&nodes).await;
    let (first, repeat) = (Gate::new(), Gate::new());
    welfare.next([&first, &repeat].map(|gate| Answer::status(200).behind(gate)));
    for id in 0..10 {
        hand_over(nodes.node(other), &id.to_string(), "k").await;
    }
    welfare.wait_for(1).await;
    nodes.node(holds).freeze();
    // The other one took over and sends it again, which takes long.
    welfare.wait_for(2).await;
    assert_eq!(delivered(&nodes).await, "0");
    first.open();
    welfare.wait_for_taken(1).await;
    nodes.node(holds).thaw();
    until("the late receipt", async || (delivered(&nodes).await == "1").then_some(())).await;
    assert_eq!(welfare.requests().len(), 2, "the repeat is still under way");
    repeat.open();
    nodes.node(other).wait_for_log("it was settled before").await;
    let requests = welfare.wait_for_taken(11).await;
    assert_eq!(numbers_of(&requests, "k"), (0..10).collect::<Vec<_>>());
    drained(nodes.node(other), &[ORDERS]).await;
    assert_eq!((welfare.requests().len(), &*delivered(&nodes).await), (11, "10"));
    assert!(dead_letters(nodes.node(other)).await.is_empty());
}

#[tokio::test]
async fn what_was_received_while_a_node_stood_still_is_not_sent_again_by_one_that_was_slower() {
    let welfare = Partner::start().await;
    let nodes = two(Postgres::shared().await, &welfare, 1).await;
    let (holds, other) = holder(&nodes).await;
    let gate = Gate::new();
    welfare.next([Answer::status(200).behind(&gate)]);
    for id in 0..10 {
        hand_over(nodes.node(other), &id.to_string(), "k").await;
    }
    welfare.wait_for(1).await;
    // The other one is to take over and not to send yet.
    nodes.node(other).cli(&["pause", ORDERS]).await.ok();
    nodes.node(holds).freeze();
    nodes.node(other).wait_for_log("taken over from a node that did not let go").await;
    gate.open();
    welfare.wait_for_taken(1).await;
    nodes.node(holds).thaw();
    until("the late receipt", async || (delivered(&nodes).await == "1").then_some(())).await;
    nodes.node(other).cli(&["resume", ORDERS]).await.ok();
    let requests = welfare.wait_for_taken(10).await;
    assert_eq!(numbers_of(&requests, "k"), (0..10).collect::<Vec<_>>());
    drained(nodes.node(other), &[ORDERS]).await;
    assert_eq!(welfare.requests().len(), 10, "nothing came twice");
}

/// A rolling restart under another number of lanes, with this many messages waiting.
async fn lanes_are_changed(waiting: usize) {
    const SENT_BY: usize = 50;
    // Every wait is for so many: its limit does not depend on how many there are.
    const STEP: usize = 1_000;
    let welfare = Partner::start().await;
    let mut nodes = two(Postgres::shared().await, &welfare, 1).await;
    nodes.node(0).cli(&["pause", ORDERS]).await.ok();
    for begin in (0..waiting).step_by(STEP) {
        let mut sending = JoinSet::new();
        for key in 0..SENT_BY {
            let way_in = nodes.node(key % 2).way_in();
            sending.spawn(async move {
                let of_key = format!("k{key}");
                let headers = [("ce-partitionkey", of_key.as_str())];
                for number in (begin..begin + STEP).skip(key).step_by(SENT_BY) {
                    let id = number.to_string();
                    way_in.hand_over_until_taken("town/orders", &id, &headers, "{}").await;
                }
            });
        }
        within(&format!("the hand-overs from {begin}"), sending.join_all()).await;
    }
    nodes.node(1).cli(&["resume", ORDERS]).await.ok();
    welfare.wait_for_taken(waiting / 20).await;
    let file = takes_all(&welfare, &format!("lanes = 5\n{FAST}"), "");
    for number in 0..2 {
        fs::write(nodes.node(number).config().join("partners/welfare.toml"), &file).unwrap();
        assert!(nodes.node_mut(number).terminate().await.success());
        nodes.node_mut(number).start().await;
    }
    for taken in (STEP..=waiting).step_by(STEP) {
        welfare.wait_for_taken(taken).await;
    }
    drained(nodes.node(0), &[ORDERS]).await;
    let requests = welfare.requests();
    assert_eq!(requests.len(), waiting, "nothing was sent twice");
    for key in 0..SENT_BY {
        let numbers = numbers_of(&requests, &format!("k{key}"));
        assert!(numbers.len() == waiting / SENT_BY && numbers.is_sorted(), "k{key}: {numbers:?}");
    }
    nodes.wait_for_lanes(ORDERS, 5, true).await;
}

#[tokio::test]
async fn another_number_of_lanes_in_a_rolling_restart_keeps_the_order_of_what_waits() {
    lanes_are_changed(1_000).await;
}

#[tokio::test]
#[ignore = "the full size: `cargo xtask soak lanes`"]
async fn soak_lanes() {
    lanes_are_changed(10_000).await;
}

/// Kills of nodes and crashes of the database in turn, while messages flow.
async fn deaths_and_crashes(deaths: usize) {
    let seed = std::env::var_os("PABAL_TEST_SEED")
        .map_or_else(|| fastrand::u64(..), |seed| seed.to_str().unwrap().parse().unwrap());
    eprintln!("PABAL_TEST_SEED={seed}");
    let mut draw = fastrand::Rng::with_seed(seed);
    let welfare = partner().await;
    let mut nodes = two(Postgres::durable().await, &welfare, 4).await;
    let acknowledged = watch::Sender::<Vec<Acknowledged>>::default();
    let enough = Arc::new(AtomicBool::new(false));
    let mut senders = JoinSet::new();
    for key in 0..KEYS {
        let (way_in, enough) = (nodes.node(key % 2).way_in(), enough.clone());
        senders.spawn(keep_sending(way_in, key, enough, acknowledged.clone()));
    }
    let more = async |into: usize, out: usize| {
        let (had_in, had_out) = (acknowledged.borrow().len(), welfare.requests().len());
        let mut coming = acknowledged.subscribe();
        let enough_in = coming.wait_for(|all| all.len() >= had_in + into);
        within(&format!("{into} more acknowledged"), enough_in).await.unwrap();
        welfare.wait_for(had_out + out).await;
    };
    for death in 0..deaths {
        more(draw.usize(1..40), draw.usize(8..40)).await;
        let number = draw.usize(0..2);
        nodes.node_mut(number).kill9().await;
        eprintln!("kill {death} of node {number}");
        nodes.node_mut(number).start().await;
        more(draw.usize(1..40), draw.usize(8..40)).await;
        nodes.postgres.restart_immediately().await;
        eprintln!("crash {death} of the database");
    }
    more(1, 1).await;
    enough.store(true, Ordering::Relaxed);
    within("the senders' end", senders.join_all()).await;
    drained(nodes.node(0), &[ORDERS]).await;
    assert!(dead_letters(nodes.node(0)).await.is_empty());
    let acknowledged = acknowledged.borrow().clone();
    let repeats = compare(&acknowledged, &welfare.requests());
    eprintln!("{} messages, {repeats} repeats", acknowledged.len());
    // Every node is still there, and the books agree with the partner's.
    let ids: BTreeSet<_> = acknowledged.iter().map(|one| one.message_id.clone()).collect();
    let settled = nodes
        .postgres
        .ask(
            "SELECT count(DISTINCT message) FROM pabal.delivery_log WHERE outcome IN \
              ('delivered', 'duplicate')",
        )
        .await;
    assert_eq!(settled, ids.len().to_string());
}

#[tokio::test]
async fn kills_of_nodes_and_crashes_of_the_database_lose_nothing_and_keep_the_order() {
    deaths_and_crashes(4).await;
}

#[tokio::test]
#[ignore = "the full size: `cargo xtask soak nodes`"]
async fn soak_nodes() {
    deaths_and_crashes(20).await;
}

#[tokio::test]
async fn a_slow_first_send_is_not_overtaken_however_many_nodes_there_are() {
    let welfare = Partner::start().await;
    let nodes = two(Postgres::shared().await, &welfare, 4).await;
    nodes.wait_for_lanes(ORDERS, 4, true).await;
    let gate = Gate::new();
    welfare.next([Answer::status(200).behind(&gate)]);
    hand_over(nodes.node(0), "0", "k").await;
    welfare.wait_for(1).await;
    for id in 1..10 {
        hand_over(nodes.node(id % 2), &id.to_string(), "k").await;
    }
    // Another key is not held back, and by the time it is there the others could have been.
    for id in 90..100 {
        hand_over(nodes.node(id % 2), &id.to_string(), &format!("other {id}")).await;
    }
    welfare.wait_for_taken(10).await;
    assert_eq!(welfare.requests().len(), 11);
    gate.open();
    let requests = welfare.wait_for_taken(20).await;
    assert_eq!(numbers_of(&requests, "k"), (0..10).collect::<Vec<_>>());
}
