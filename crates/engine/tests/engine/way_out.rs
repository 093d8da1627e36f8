//! Order, retries, panics, limits.

use std::{sync::Arc, time::Duration};

use pabal_core::{DeadReason, Limits, OnDead, Order, Reason, Receipt, SendError, Writer, Written};

use crate::kit::{Kit, Partner, Step, failed, hand_over, message, ok, text};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_message_waits_for_the_one_ahead_of_its_key_and_other_keys_pass() {
    let mut kit = Kit::new().await;
    let partner =
        Partner::new(|m, before| if text(m) == "1" && before == 0 { failed() } else { ok() });
    kit.to("tax/all", &partner);
    let engine = kit.start().await;
    let messages = [("1", "a"), ("2", "a"), ("3", "a"), ("4", "b")];
    hand_over(&engine, messages.map(|(n, key)| message(n, Some(key), n))).await;
    kit.seen.wait("attempt", 2).await;
    let mut came = partner.came();
    came.sort();
    assert_eq!(came, ["1", "4"]);
    kit.pass_until(SECOND, || kit.seen.lines("delivered") == 4).await;
    assert_eq!(partner.taken().iter().filter(|n| *n != "4").collect::<Vec<_>>(), ["1", "2", "3"]);
}

#[tokio::test]
async fn what_the_other_side_drops_as_stale_is_over_and_told_as_such() {
    let mut kit = Kit::new().await;
    let stale = Receipt { stale: true, duplicate: true, ..Receipt::default() };
    let partner = Partner::new(move |_, _| Step::Say(Ok(stale.clone())));
    kit.to("tax/all", &partner);
    let engine = kit.start().await;
    hand_over(&engine, [message("1", Some("a"), "1"), message("2", Some("a"), "2")]).await;
    kit.seen.wait("delivered", 2).await;
    assert_eq!(kit.seen.lines("attempt tax/all stale"), 2);
    assert_eq!(partner.came(), ["1", "2"]);
}

#[tokio::test]
async fn a_slow_message_delays_no_other_key() {
    let mut kit = Kit::new().await;
    let partner = Partner::new(|m, _| if text(m) == "slow" { Step::Hold } else { ok() });
    kit.to("tax/all", &partner).concurrency = 2;
    let engine = kit.start().await;
    hand_over(&engine, [message("s", Some("s"), "slow")]).await;
    partner.wait(1).await;
    hand_over(&engine, (0..50).map(|n| message(&n.to_string(), Some(&n.to_string()), "quick")))
        .await;
    kit.seen.wait("delivered", 50).await;
    assert_eq!(partner.taken().len(), 50);
    partner.gate.add_permits(1);
    kit.seen.wait("delivered", 51).await;
}

#[tokio::test]
async fn no_more_calls_are_under_way_than_allowed_and_never_two_of_a_key() {
    let mut kit = Kit::new().await;
    let partner = Partner::new(|_, _| Step::Hold);
    kit.to("tax/all", &partner).concurrency = 3;
    let engine = kit.start().await;
    hand_over(&engine, (0..10).map(|n| message(&n.to_string(), Some(["a", "b"][n % 2]), "x")))
        .await;
    partner.wait(2).await;
    hand_over(&engine, (10..20).map(|n| message(&n.to_string(), None, "y"))).await;
    partner.wait(3).await;
    assert_eq!(engine.status()[0].in_flight, 3);
    partner.gate.add_permits(20);
    kit.seen.wait("delivered", 20).await;
    assert_eq!(partner.came().len(), 20);
}

#[tokio::test]
async fn failing_messages_back_off_and_die_at_the_limit_while_healthy_ones_pass() {
    let mut kit = Kit::new().await;
    let partner = Partner::new(|m, _| if text(m) == "bad" { failed() } else { ok() });
    kit.to("tax/all", &partner);
    let engine = kit.start().await;
    hand_over(&engine, (0..10).map(|n| message(&format!("b{n}"), Some(&format!("b{n}")), "bad")))
        .await;
    hand_over(&engine, (0..100).map(|n| message(&n.to_string(), Some(&n.to_string()), "good")))
        .await;
    kit.pass_until(SECOND, || kit.seen.lines("delivered") == 100).await;
    assert!(kit.seen.lines("attempt tax/all transient spent") < 10 * 12, "they were served first");
    // Others get through now and then, so the failures are their own.
    let mut n = 100;
    while kit.seen.lines("dead") < 10 {
        n += 1;
        assert!(n < 5_000, "{:?}", partner.counts());
        hand_over(&engine, [message(&n.to_string(), None, "good")]).await;
        kit.pass_until(SECOND * 20, || kit.seen.lines("delivered") >= n).await;
    }
    let dead = kit.dead().await;
    assert!(dead.iter().all(|letter| letter.reason == DeadReason::Exhausted), "{dead:?}");
    assert_eq!(kit.seen.lines("attempt tax/all transient spent"), 10 * 12);
}

#[tokio::test]
async fn after_a_dead_letter_the_key_is_held_or_passes_as_the_destination_says() {
    for (order, on_dead, expected) in [
        (Order::Key, OnDead::Hold, vec!["other"]),
        (Order::Key, OnDead::Pass, vec!["behind", "other"]),
        (Order::All, OnDead::Hold, vec![]),
        (Order::None, OnDead::Pass, vec!["behind", "other"]),
    ] {
        let mut kit = Kit::new().await;
        let refusal = || Step::Say(Err(SendError::permanent(Reason::Invalid, "HTTP 422")));
        let partner = Partner::new(move |m, _| if text(m) == "bad" { refusal() } else { ok() });
        let destination = kit.to("tax/all", &partner);
        (destination.order, destination.on_dead) = (order, on_dead);
        let engine = kit.start().await;
        let messages = [("bad", "k"), ("behind", "k"), ("other", "o")];
        hand_over(&engine, messages.map(|(body, key)| message(body, Some(key), body))).await;
        kit.seen.wait("dead", 1).await;
        kit.seen.wait("delivered", expected.len()).await;
        engine.stop().await;
        let mut taken = partner.taken();
        taken.sort();
        assert_eq!(taken, expected, "{order:?} {on_dead:?}");
        let counts = kit.store.counts().await.unwrap();
        let counts = counts.iter().find(|c| c.endpoint.partner() == "tax").unwrap();
        assert_eq!(
            (counts.dead, counts.held),
            (1, 2 - expected.len() as u64),
            "{order:?} {on_dead:?}"
        );
    }
}

#[tokio::test]
async fn a_panic_becomes_that_messages_dead_letter_and_its_neighbours_go_on() {
    let mut kit = Kit::new().await;
    let limits = Limits { batch_max: 10, batch_bytes_max: 1 << 20, message_bytes_max: 1 << 20 };
    let partner =
        Partner::with(limits, |m, _| if text(m) == "poison" { Step::Panic } else { ok() });
    kit.to("tax/all", &partner);
    let engine = kit.start().await;
    let bodies = ["a", "b", "poison", "c", "d"];
    hand_over(&engine, bodies.map(|body| message(body, Some(body), body))).await;
    hand_over(&engine, [message("after", Some("poison"), "after")]).await;
    kit.pass_until(SECOND, || kit.seen.lines("dead") == 1 && kit.seen.lines("delivered") == 4)
        .await;
    let dead = kit.dead().await;
    assert_eq!(dead[0].reason, DeadReason::Panic);
    assert!(dead[0].detail.as_ref().unwrap().contains("this message is poison"));
    // Once with the others, then three times alone.
    assert_eq!(partner.counts()["poison"], 4);
}

#[tokio::test]
async fn an_answer_of_the_wrong_length_settles_nothing_as_delivered() {
    let mut kit = Kit::new().await;
    let partner = Partner::new(|_, before| if before == 0 { Step::Babble } else { ok() });
    kit.to("tax/all", &partner);
    let engine = kit.start().await;
    hand_over(&engine, [message("1", None, "x")]).await;
    kit.seen.wait("attempt tax/all transient", 1).await;
    assert_eq!(kit.seen.lines("delivered"), 0);
    kit.pass_until(SECOND, || kit.seen.lines("delivered") == 1).await;
}

#[tokio::test]
async fn what_is_too_large_for_the_transport_is_never_put_into_a_batch() {
    let mut kit = Kit::new().await;
    let limits = Limits { batch_max: 10, batch_bytes_max: 50, message_bytes_max: 20 };
    let partner = Partner::with(limits, |_, _| ok());
    kit.to("tax/all", &partner);
    let engine = kit.start().await;
    let bodies = ["x".repeat(21), "y".repeat(20), "z".repeat(20), "w".repeat(20)];
    hand_over(&engine, bodies.iter().map(|body| message(body, None, body))).await;
    kit.seen.wait("delivered", 3).await;
    kit.seen.wait("dead tax/all TooLarge", 1).await;
    assert_eq!(partner.came().len(), 3);
}

#[derive(Debug)]
struct Stamped(std::sync::atomic::AtomicUsize);

impl Writer for Stamped {
    fn write(&self, message: &pabal_core::Message) -> Result<Written, SendError> {
        let n = self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let body = format!("{}#{n}", text(message)).into();
        Ok(Written { body, content_type: Some("text/plain".into()) })
    }
}

#[tokio::test]
async fn what_may_have_reached_the_partner_is_sent_the_same_for_ever() {
    let mut kit = Kit::new().await;
    let partner = Partner::new(|_, before| if before < 3 { failed() } else { ok() });
    kit.to("tax/all", &partner).writer = Some(Arc::new(Stamped(0.into())));
    let engine = kit.start().await;
    hand_over(&engine, [message("1", None, "x")]).await;
    kit.pass_until(SECOND, || partner.came().len() == 2).await;
    engine.stop().await;
    // The map has changed before the restart.
    let mut kit = kit.again().await;
    kit.to("tax/all", &partner).writer = Some(Arc::new(Stamped(7.into())));
    let engine = kit.start().await;
    kit.pass_until(SECOND, || kit.seen.lines("delivered") == 1).await;
    assert_eq!(partner.came(), ["x#0", "x#0", "x#0", "x#0"]);
    let ids: std::collections::HashSet<_> = partner.messages().iter().map(|m| m.id).collect();
    assert_eq!(ids.len(), 1);
    engine.stop().await;
}
