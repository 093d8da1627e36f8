//! Nights and holidays, by passed time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pabal_core::{Clock, Reason, SendError};
use pabal_engine::HealthStatus;

use crate::kit::{Kit, Partner, Step, away, failed, hand_over, message, ok, text};

const SECOND: Duration = Duration::from_secs(1);
const NIGHT: Duration = Duration::from_secs(12 * 3600);

async fn a_night_of_503(keys: usize) {
    let mut kit = Kit::new().await;
    let open = Arc::new(AtomicBool::new(false));
    let script = Arc::clone(&open);
    let partner =
        Partner::new(move |_, _| if script.load(Ordering::SeqCst) { ok() } else { failed() });
    kit.to("tax/all", &partner);
    let engine = kit.start().await;
    hand_over(&engine, (0..keys).map(|n| message(&n.to_string(), Some(&n.to_string()), "x"))).await;
    let mut probes = 0;
    while kit.clock.elapsed() < NIGHT {
        match &engine.status()[0].health {
            // Exactly to the next probe, and until its failure is written.
            HealthStatus::Held { probe_in_ms, .. } if *probe_in_ms > 0 => {
                let seen = kit.seen.lines("attempt");
                kit.clock.advance(Duration::from_millis(*probe_in_ms + 1));
                kit.seen.wait("attempt", seen + 1).await;
                probes += 1;
            }
            HealthStatus::Held { .. } => tokio::task::yield_now().await,
            _ => {
                let attempts = partner.came().len() + 1;
                kit.pass_until(SECOND, || partner.came().len() >= attempts).await;
            }
        }
    }
    assert!(probes > 500, "only {probes} probes in a night");
    assert!(kit.dead().await.is_empty());
    assert_eq!(kit.seen.lines("breaker tax/all HTTP 503"), 1);
    open.store(true, Ordering::SeqCst);
    kit.pass_until(SECOND * 10, || kit.seen.lines("delivered") == keys).await;
    let spent = kit.seen.lines("attempt tax/all transient spent");
    assert!(spent < keys.max(20) + 20, "{spent} attempts were spent on {keys} keys");
    engine.stop().await;
}

#[tokio::test]
async fn a_night_of_503_kills_nothing_with_one_key_waiting() {
    a_night_of_503(1).await;
}

#[tokio::test]
async fn a_night_of_503_kills_nothing_with_a_thousand_keys_waiting() {
    a_night_of_503(1_000).await;
}

#[tokio::test]
async fn an_answer_about_the_place_pauses_the_destination_and_spends_no_attempt() {
    let mut kit = Kit::new().await;
    let open = Arc::new(AtomicBool::new(false));
    let script = Arc::clone(&open);
    let refused = || Step::Say(Err(SendError::unreachable("HTTP 401")));
    let partner =
        Partner::new(move |_, _| if script.load(Ordering::SeqCst) { ok() } else { refused() });
    kit.to("tax/all", &partner);
    let engine = kit.start().await;
    hand_over(&engine, (0..50).map(|n| message(&n.to_string(), None, "x"))).await;
    kit.pass_until(SECOND * 10, || kit.clock.elapsed() > SECOND * 3600).await;
    assert!(partner.came().len() < 16 + 100, "{} calls in an hour", partner.came().len());
    assert_eq!(kit.seen.lines("attempt tax/all unreachable spent"), 0);
    assert!(kit.dead().await.is_empty());
    open.store(true, Ordering::SeqCst);
    kit.pass_until(SECOND * 10, || kit.seen.lines("delivered") == 50).await;
    engine.stop().await;
}

#[tokio::test]
async fn refusals_for_one_cause_hold_the_destination_before_they_kill_a_days_work() {
    let mut kit = Kit::new().await;
    let moved = || Step::Say(Err(SendError::permanent(Reason::Refused, "HTTP 404")));
    let fixed = Arc::new(AtomicBool::new(false));
    let script = Arc::clone(&fixed);
    let partner =
        Partner::new(move |_, _| if script.load(Ordering::SeqCst) { ok() } else { moved() });
    kit.to("tax/all", &partner);
    let engine = kit.start().await;
    hand_over(&engine, (0..200).map(|n| message(&n.to_string(), None, "x"))).await;
    kit.seen.wait("breaker tax/all HTTP 404", 1).await;
    kit.pass_until(SECOND * 30, || kit.clock.elapsed() > SECOND * 3600).await;
    assert_eq!(kit.dead().await.len(), 20);
    fixed.store(true, Ordering::SeqCst);
    kit.pass_until(SECOND * 30, || kit.seen.lines("delivered") == 180).await;
    engine.stop().await;
}

#[tokio::test]
async fn a_message_that_always_fails_does_not_keep_the_destination_held() {
    let mut kit = Kit::new().await;
    let partner = Partner::new(|m, _| if text(m) == "bad" { failed() } else { ok() });
    kit.to("tax/all", &partner);
    let engine = kit.start().await;
    hand_over(&engine, [message("bad", Some("bad"), "bad")]).await;
    kit.pass_until(SECOND, || kit.seen.lines("breaker tax/all HTTP 503") == 1).await;
    // The others need no longer than the longest pause, and then the bad one spends again.
    let mut good = 0;
    while kit.seen.lines("dead") == 0 {
        good += 1;
        assert!(good < 400);
        hand_over(&engine, [message(&good.to_string(), Some("good"), "good")]).await;
        let before = kit.clock.elapsed();
        kit.pass_until(SECOND, || kit.seen.lines("delivered") == good).await;
        let waited = kit.clock.elapsed() - before;
        assert!(waited <= SECOND * 90, "good message {good} waited {waited:?}");
        kit.clock.advance(SECOND * 100);
    }
    engine.stop().await;
}

#[tokio::test]
async fn one_partner_away_slows_no_other() {
    let mut kit = Kit::new().await;
    let (gone, there) = (Partner::new(|_, _| away()), Partner::new(|_, _| ok()));
    kit.to("gone/all", &gone);
    kit.to("there/all", &there);
    let engine = kit.start().await;
    hand_over(&engine, (0..300).map(|n| message(&n.to_string(), Some(&n.to_string()), "x"))).await;
    // No time passes at all.
    kit.seen.wait("delivered there/all", 300).await;
    assert_eq!(kit.seen.lines("delivered gone/all"), 0);
    engine.stop().await;
}

#[tokio::test]
async fn the_held_state_outlives_a_restart() {
    let mut kit = Kit::new().await;
    kit.to("tax/all", &Partner::new(|_, _| away()));
    let engine = kit.start().await;
    hand_over(&engine, [message("1", None, "x")]).await;
    kit.seen.wait("breaker", 1).await;
    engine.stop().await;
    let state = || async {
        let states = kit.store.link_states().await.unwrap();
        states.into_iter().find_map(|state| state.tripped)
    };
    assert_eq!(state().await.unwrap().cause, "connection refused");
    kit.to("tax/all", &Partner::new(|_, _| ok()));
    let engine = kit.start().await;
    assert!(matches!(engine.status()[0].health, HealthStatus::Held { .. } | HealthStatus::Open));
    kit.pass_until(SECOND, || kit.seen.lines("delivered") == 1).await;
    assert_eq!(kit.seen.lines("breaker tax/all -"), 1);
    engine.stop().await;
}
