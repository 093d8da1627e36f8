//! The end of an engine: graceful, cut off, and what the next start finds.

use std::time::Duration;

use crate::kit::{Kit, Partner, Step, hand_over, message, ok};

#[tokio::test]
async fn sends_in_hand_end_within_the_grace_and_nothing_new_begins() {
    let mut kit = Kit::new().await;
    let partner = Partner::new(|_, _| Step::Hold);
    kit.to("tax/all", &partner).concurrency = 20;
    let engine = std::sync::Arc::new(kit.start().await);
    hand_over(&engine, (0..50).map(|n| message(&n.to_string(), None, "x"))).await;
    partner.wait(20).await;
    let stopping = tokio::spawn({
        let engine = std::sync::Arc::clone(&engine);
        async move { engine.stop().await }
    });
    while engine.inbox(&crate::kit::name("city/orders")).is_some() {
        tokio::task::yield_now().await;
    }
    partner.gate.add_permits(50);
    stopping.await.unwrap();
    assert_eq!((partner.came().len(), kit.seen.lines("delivered")), (20, 20));
    assert_eq!(kit.seen.lines("lane tax/all false"), 1);
    // The rest goes after the next start, each once.
    kit.to("tax/all", &partner);
    let engine = kit.start().await;
    kit.seen.wait("delivered", 50).await;
    engine.stop().await;
    assert_eq!(partner.taken().len(), 50);
}

#[tokio::test]
async fn what_does_not_end_within_the_grace_is_cut_off_and_handed_back_at_once() {
    let mut kit = Kit::new().await;
    let partner = Partner::new(|_, before| if before == 0 { Step::Hold } else { ok() });
    kit.to("tax/all", &partner);
    let engine = std::sync::Arc::new(kit.start().await);
    hand_over(&engine, (0..5).map(|n| message(&n.to_string(), None, "x"))).await;
    partner.wait(5).await;
    let stopping = tokio::spawn({
        let engine = std::sync::Arc::clone(&engine);
        async move { engine.stop().await }
    });
    while engine.inbox(&crate::kit::name("city/orders")).is_some() {
        tokio::task::yield_now().await;
    }
    // Exactly the grace: no more time passes while what was cut off is written.
    kit.clock.advance(Duration::from_secs(10));
    stopping.await.unwrap();
    // Written: the attempt counts, and the lane is free.
    assert_eq!(kit.seen.lines("attempt tax/all transient spent"), 5);
    assert_eq!(kit.seen.lines("lane tax/all false"), 1);
    kit.to("tax/all", &partner);
    let engine = kit.start().await;
    kit.pass_until(Duration::from_secs(1), || kit.seen.lines("delivered") == 5).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clock_of_the_machine_cuts_a_send_off_as_well() {
    let mut kit = Kit::new().await;
    let partner = Partner::new(|_, _| Step::Hold);
    kit.to("tax/all", &partner);
    kit.setup.clock = std::sync::Arc::new(pabal_core::SystemClock);
    kit.setup.grace = Duration::from_millis(50);
    let engine = kit.start().await;
    hand_over(&engine, (0..5).map(|n| message(&n.to_string(), None, "x"))).await;
    partner.wait(5).await;
    tokio::time::timeout(crate::kit::PATIENCE, engine.stop()).await.unwrap();
    assert_eq!(kit.seen.lines("attempt tax/all transient spent"), 5);
    assert_eq!(kit.seen.lines("lane tax/all false"), 1);
}
