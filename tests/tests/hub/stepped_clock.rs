//! A node's wall clock is stepped while it runs, an hour ahead and an hour behind, and nothing comes of
//! it. The clock of each send is seen at the partner, in the signature's timestamp.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use pabal_tests::{Answer, Gate, Nodes, Partner, Postgres, Request, until, within};
use tokio::{sync::watch, task::JoinSet};

use crate::{
    failover::{ORDERS, hand_over, holder, numbers_of},
    killing::{Acknowledged, compare, keep_sending},
    support::{FAST, TOWN, dead_letters, drained, takes_all},
};

const KEYS: usize = 12;
/// A heartbeat is a fifth of it; others wait for a tenth more before they take over.
const LEASE: &str = "lease = \"3s\"";
/// So many heartbeats take longer than that.
const BEATS: i64 = 6;
const HOUR: i64 = 3_600;
/// From right to an hour ahead, two hours back, and right again.
const STEPS: [i64; 3] = [1, -1, 0];

/// Two nodes, each with a wall clock of its own, from `town/orders` to `welfare/orders`.
async fn two(welfare: &Partner, lanes: u16) -> Nodes {
    let signed = "sign = { standard_webhooks = [{ env = \"HOOK\" }] }";
    let file = takes_all(welfare, &format!("lanes = {lanes}\n{FAST}"), signed);
    let configure = |hub: pabal_tests::HubSetup| {
        hub.partner("town", TOWN)
            .partner("welfare", &file)
            .hub_toml(LEASE)
            .variable("HOOK", "whsec_c2VjcmV0IG9mIG5vIG9uZSBhdCBhbGwgMDEyMzQ1")
            .own_wall_clock()
    };
    let mut nodes = Nodes::prepare(Postgres::shared().await, 2, configure).await;
    for number in 0..2 {
        nodes.node_mut(number).start().await;
    }
    nodes
}

/// How many hours ahead the clock of its sender was; a test takes far less than half of one.
fn hours_ahead(request: &Request) -> i64 {
    let sent: i64 = request.header("webhook-timestamp").unwrap().parse().unwrap();
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs().cast_signed();
    (sent - now + HOUR / 2).div_euclid(HOUR)
}

/// Who holds what since when: a lane that moves meanwhile is another node's, or has a holder anew.
async fn held(nodes: &Nodes) -> String {
    let lanes = "SELECT string_agg(concat_ws(' ', lane, holder, xmin), ', ' ORDER BY lane) \
                 FROM pabal.lane WHERE holder IS NOT NULL";
    nodes.postgres.ask(lanes).await
}

/// Waits until both nodes have been alive for longer than a lease from now.
async fn outlive_a_lease(nodes: &Nodes) {
    let least = "SELECT min(beat) FROM pabal.node";
    let begin: i64 = nodes.postgres.ask(least).await.parse().unwrap();
    until("further heartbeats of both nodes", async || {
        let beat: i64 = nodes.postgres.ask(least).await.parse().unwrap();
        (beat >= begin + BEATS).then_some(())
    })
    .await;
}

/// Nothing in the logs of either says that a lease lapsed or a lane changed hands.
fn nothing_lapsed(nodes: &Nodes) {
    for part in [
        "cannot be preloaded",
        "the heartbeat came too late",
        "took this one for dead",
        "taken over from a node",
        "another node has taken",
        "it was settled before",
    ] {
        for (number, node) in nodes.iter().enumerate() {
            assert!(!node.log().contains(part), "node {number}: {part}");
        }
    }
}

#[tokio::test]
async fn a_wall_clock_that_is_stepped_moves_no_lane_and_sends_nothing_twice() {
    let welfare = Partner::start().await;
    // Some have to be tried again: no wait for that is made longer or shorter by a step.
    let mut count = 0;
    welfare.decide(move |_| {
        count += 1;
        (count % 37 == 0).then(|| Answer::status(503))
    });
    let nodes = two(&welfare, 4).await;
    nodes.wait_for_lanes(ORDERS, 4, true).await;
    let held_before = held(&nodes).await;
    let acknowledged = watch::Sender::<Vec<Acknowledged>>::default();
    let enough = Arc::new(AtomicBool::new(false));
    let mut senders = JoinSet::new();
    for key in 0..KEYS {
        let (way_in, enough) = (nodes.node(key % 2).way_in(), enough.clone());
        senders.spawn(keep_sending(way_in, key, enough, acknowledged.clone()));
    }
    for step in STEPS {
        nodes.node(0).set_wall_clock(step * HOUR);
        let before = welfare.requests().len();
        let sends = |book: &[Request], hours: i64| {
            book[before..].iter().filter(|request| hours_ahead(request) == hours).count()
        };
        let what = format!("sends of both nodes, {step} hours apart");
        welfare.wait_until(&what, |book| sends(book, step) >= 20 && sends(book, 0) >= 20).await;
        outlive_a_lease(&nodes).await;
        welfare.wait_for(welfare.requests().len() + 20).await;
        assert_eq!(held(&nodes).await, held_before, "{step} hours");
    }
    enough.store(true, Ordering::Relaxed);
    within("the senders' end", senders.join_all()).await;
    drained(nodes.node(1), &[ORDERS]).await;
    nothing_lapsed(&nodes);
    assert!(dead_letters(nodes.node(0)).await.is_empty());
    let (acknowledged, book) = (acknowledged.borrow().clone(), welfare.requests());
    let repeats = compare(&acknowledged, &book);
    let refused = book.iter().filter(|request| !request.taken).count();
    assert!(refused > 0);
    assert_eq!(repeats, refused, "nothing that was taken came again");
}

#[tokio::test]
async fn a_wall_clock_that_is_stepped_in_mid_send_cuts_nothing_off_and_lets_nothing_pass() {
    let welfare = Partner::start().await;
    let nodes = two(&welfare, 1).await;
    let (holds, other) = holder(&nodes).await;
    let gate = Gate::new();
    welfare.next([Answer::status(200).behind(&gate)]);
    hand_over(nodes.node(other), "0", "k").await;
    welfare.wait_for(1).await;
    let held_before = held(&nodes).await;
    for id in 1..10 {
        hand_over(nodes.node(id % 2), &id.to_string(), "k").await;
    }
    for (step, id) in STEPS.into_iter().zip(90..) {
        nodes.node(holds).set_wall_clock(step * HOUR);
        outlive_a_lease(&nodes).await;
        // Another key is sent under that clock; the one that hangs hangs.
        hand_over(nodes.node(other), &id.to_string(), "another").await;
        let book = welfare.wait_for(2 + id - 90).await;
        assert_eq!(hours_ahead(book.last().unwrap()), step);
        assert_eq!(held(&nodes).await, held_before, "{step} hours");
    }
    gate.open();
    let book = welfare.wait_for_taken(10 + STEPS.len()).await;
    assert_eq!(numbers_of(&book, "k"), (0..10).collect::<Vec<_>>());
    drained(nodes.node(other), &[ORDERS]).await;
    assert_eq!(welfare.requests().len(), 10 + STEPS.len(), "nothing came twice");
    nothing_lapsed(&nodes);
    assert!(dead_letters(nodes.node(holds)).await.is_empty());
}
