//! The breaker by passed time.

use super::*;
use pabal_core::{Reason, Receipt};

const SECOND: Duration = Duration::from_secs(1);

fn id(n: u128) -> MessageId {
    MessageId(uuid::Uuid::from_u128(n))
}

fn failed() -> Verdict {
    Err(SendError::transient("HTTP 503"))
}

fn health() -> Health {
    Health::new(BreakerPolicy::default(), None)
}

/// Sends one if it may and judges it; whether it spent an attempt.
fn attempt(health: &mut Health, verdict: &Verdict, message: u128, now: Duration) -> Option<Ruling> {
    let probe = match health.permission(now) {
        Permission::Yes => false,
        Permission::Probe => true,
        Permission::NotBefore(_) => return None,
    };
    health.sent(now);
    Some(health.judge(verdict, id(message), probe, now, 1.0))
}

const SPENT: Option<Ruling> = Some(Ruling::Again { spend: true, not_before: None });
const FREE: Option<Ruling> = Some(Ruling::Again { spend: false, not_before: None });

#[test]
fn ten_failures_with_no_success_between_hold_the_destination() {
    let mut health = health();
    for n in 0..10 {
        assert_eq!(attempt(&mut health, &failed(), n, Duration::ZERO), SPENT);
    }
    assert_eq!(attempt(&mut health, &failed(), 10, Duration::ZERO), None);
    assert_eq!(attempt(&mut health, &failed(), 10, SECOND), FREE);
}

#[test]
fn a_minute_of_failures_holds_it_as_well() {
    let mut health = health();
    assert_eq!(attempt(&mut health, &failed(), 1, Duration::ZERO), SPENT);
    assert_eq!(attempt(&mut health, &failed(), 1, SECOND * 59), SPENT);
    assert!(health.held().is_none());
    assert_eq!(attempt(&mut health, &failed(), 1, SECOND * 60), SPENT);
    assert!(health.held().is_some());
}

#[test]
fn a_success_between_lets_failures_go_on_spending() {
    let mut health = health();
    for n in 0..100 {
        let verdict = if n % 9 == 8 { Ok(Receipt::default()) } else { failed() };
        attempt(&mut health, &verdict, n, SECOND * 5 * u32::try_from(n).unwrap());
    }
    assert!(health.held().is_none());
}

#[test]
fn probes_come_at_growing_intervals_up_to_the_longest() {
    let mut health = health();
    let mut now = Duration::ZERO;
    attempt(&mut health, &Err(SendError::unreachable("refused")), 0, now);
    let mut pauses = Vec::new();
    for n in 1..9 {
        let Some((_, _, until)) = health.held() else { panic!("not held") };
        pauses.push((until - now).as_secs());
        now = until;
        assert_eq!(attempt(&mut health, &failed(), n, now), FREE);
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    now += SECOND * 60;
    assert_eq!(attempt(&mut health, &Ok(Receipt::default()), 9, now), Some(Ruling::Delivered));
    assert!(health.held().is_none());
}

#[test]
fn only_one_probe_is_under_way_at_a_time() {
    let mut health = health();
    attempt(&mut health, &Err(SendError::unreachable("refused")), 0, Duration::ZERO);
    assert_eq!(health.permission(SECOND), Permission::Probe);
    health.sent(SECOND);
    assert_eq!(health.permission(SECOND * 9), Permission::NotBefore(None));
    health.not_sent();
    assert_eq!(health.permission(SECOND * 9), Permission::Probe);
}

#[test]
fn the_other_side_is_never_called_earlier_than_it_asked() {
    let mut health = health();
    let busy = |seconds| {
        let retry_after = Some(SECOND * seconds);
        Err(SendError::Unreachable { cause: "HTTP 429".into(), retry_after })
    };
    health.judge(&busy(30), id(1), false, Duration::ZERO, 0.5);
    // Others under way: one was taken, one is asked for more patience.
    health.judge(&Ok(Receipt::default()), id(2), false, SECOND, 0.5);
    health.judge(&busy(40), id(3), false, SECOND, 0.5);
    assert_eq!(health.permission(SECOND * 40), Permission::NotBefore(Some(SECOND * 41)));
    assert_eq!(health.permission(SECOND * 41), Permission::Probe);
}

#[test]
fn twenty_refusals_for_one_cause_hold_it_and_spare_the_rest() {
    let mut health = health();
    let gone = |n: usize| {
        let cause = if n == 5 { "HTTP 410" } else { "HTTP 404" };
        Err(SendError::permanent(Reason::Refused, cause))
    };
    for n in 0..26 {
        // The sixth has another cause, so counting starts again behind it.
        assert_eq!(attempt(&mut health, &gone(n), n as u128, Duration::ZERO), Some(Ruling::Dead));
    }
    assert_eq!(attempt(&mut health, &gone(99), 99, Duration::ZERO), None);
    // Those under way and the probes are spared.
    let late = health.judge(&gone(98), id(98), false, Duration::ZERO, 1.0);
    assert_eq!(Some(late), FREE);
    assert_eq!(attempt(&mut health, &gone(99), 99, SECOND), FREE);
    // A refusal for another cause is about that message: the place works.
    assert_eq!(attempt(&mut health, &gone(5), 5, SECOND * 9), Some(Ruling::Dead));
    assert!(health.held().is_none());
}

#[test]
fn the_same_message_refused_again_and_again_is_no_reason_to_hold() {
    let mut health = health();
    for _ in 0..40 {
        let verdict = Err(SendError::permanent(Reason::Refused, "HTTP 404"));
        attempt(&mut health, &verdict, 1, Duration::ZERO);
    }
    assert!(health.held().is_none());
}

#[test]
fn a_rate_spaces_the_sends() {
    let mut health = Health::new(BreakerPolicy::default(), Some(4.0));
    let (mut now, mut sent) = (Duration::ZERO, 0);
    while now < SECOND * 10 {
        if attempt(&mut health, &Ok(Receipt::default()), 1, now).is_some() {
            sent += 1;
        }
        now += Duration::from_millis(1);
    }
    assert!((39..=41).contains(&sent), "{sent}");
}

#[test]
fn the_sender_finds_the_pace_of_a_busy_partner_and_keeps_to_it() {
    // Takes two a second with a burst of two, and says nothing of when to come back.
    let mut health = health();
    let (mut now, mut tokens, mut filled) = (Duration::ZERO, 2.0_f64, Duration::ZERO);
    let (mut taken, mut refused) = (0, 0);
    while taken < 1_000 {
        let probe = match health.permission(now) {
            Permission::NotBefore(time) => {
                now = time.unwrap();
                continue;
            }
            permission => permission == Permission::Probe,
        };
        // Sixteen side by side while nothing is known yet.
        let side_by_side = if health.pace().is_none() && !probe { 16 } else { 1 };
        (0..side_by_side).for_each(|_| health.sent(now));
        tokens = (tokens + (now - filled).as_secs_f64() * 2.0).min(2.0);
        filled = now;
        for n in 0..side_by_side {
            let verdict = if tokens >= 1.0 {
                (tokens, taken) = (tokens - 1.0, taken + 1);
                Ok(Receipt::default())
            } else {
                refused += 1;
                Err(SendError::unreachable("HTTP 429"))
            };
            health.judge(&verdict, id(n), probe, now, 0.5);
        }
        now += Duration::from_millis(5);
    }
    let attempts = f64::from(taken + refused) / f64::from(taken);
    assert!(attempts < 1.2, "{attempts} attempts a message");
    assert!(now < SECOND * 800, "it took {now:?} where 500 s are possible");
}
