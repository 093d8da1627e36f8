//! Whether anything may go to one destination now: breaker, pause and pace, as a pure state
//! machine. It also decides what an attempt costs.
//!
//! A failure of the place costs no attempt: the destination is held and probed at growing
//! intervals, and so it is when failures go on with no success between, whatever the keys. The
//! first success lets everything go again.

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use pabal_core::{BreakerPolicy, Cause, MessageId, SendError, Verdict};

/// Successes are counted over this time to find a partner's pace.
const PACE_WINDOW: Duration = Duration::from_secs(1);
/// After a refusal for now the pace falls to this share of what went through, ...
const PACE_CUT: f64 = 0.7;
/// ... and grows by this share with every success.
const PACE_GROWTH: f64 = 0.02;
/// The slowest pace, in messages a second.
const PACE_MIN: f64 = 0.1;
/// So much of a pace may be made up for after a wait.
const PACE_SLACK: Duration = Duration::from_millis(100);
/// A wish to be left alone is kept for so long at the most: beyond it, it is taken for a mistake.
const WISH_MAX: Duration = Duration::from_secs(24 * 3600);
/// A pace is forgotten after this long without a refusal for now.
const PACE_MEMORY: Duration = Duration::from_secs(300);

/// Whether one may go now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Permission {
    /// Go.
    Yes,
    /// Exactly one may go, to find out.
    Probe,
    /// Not before this time; `None`: not before something else has happened.
    NotBefore(Option<Duration>),
}

/// What an attempt means for its message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ruling {
    /// The other side holds it.
    Delivered,
    /// Again later; `not_before` is what the other side asked for.
    Again { spend: bool, not_before: Option<Duration> },
    /// Set aside.
    Dead,
}

#[derive(Debug)]
struct Held {
    cause: String,
    /// Refusals for this cause keep it held.
    refused_for: Option<String>,
    probes: u32,
    until: Duration,
    probing: bool,
}

#[derive(Debug)]
pub(crate) struct Health {
    policy: BreakerPolicy,
    rate_max: Option<f64>,
    held: Option<Held>,
    failures: u32,
    failing_since: Option<Duration>,
    refusals: Option<(String, HashSet<MessageId>)>,
    successes: VecDeque<Duration>,
    /// What this node may send of it.
    pace: Option<f64>,
    /// This node's share of what the partner takes.
    share: f64,
    throttled_at: Duration,
    next_at: Duration,
}

impl Health {
    pub(crate) fn new(policy: BreakerPolicy, rate_max: Option<f64>) -> Self {
        Self {
            policy,
            rate_max,
            held: None,
            failures: 0,
            failing_since: None,
            refusals: None,
            successes: VecDeque::new(),
            pace: None,
            share: 1.0,
            throttled_at: Duration::ZERO,
            next_at: Duration::ZERO,
        }
    }

    /// It was held when the hub ended, or another node holds it: a message is a probe from `until`
    /// on.
    pub(crate) fn resume_held(&mut self, cause: String, probes: u32, until: Duration) {
        self.held = Some(Held { cause, refused_for: None, probes, until, probing: false });
    }

    /// When a probe would follow after so many failed ones.
    pub(crate) fn probe_after(&self, probes: u32, now: Duration, jitter: f64) -> Duration {
        now.saturating_add(self.policy.pause(probes + 1, jitter))
    }

    /// Another node found it open.
    pub(crate) fn resume_open(&mut self) {
        self.let_go();
        self.refusals = None;
    }

    /// The partner's pace over all nodes, as far as it was found.
    pub(crate) fn found_pace(&self) -> Option<f64> {
        self.pace.map(|pace| pace / self.share)
    }

    /// It was found by another node, or before a restart.
    pub(crate) fn resume_pace(&mut self, found: Option<f64>, now: Duration) {
        self.pace = found.map(|pace| (pace * self.share).max(PACE_MIN));
        self.throttled_at = now;
    }

    /// This node has this share of the destination's lanes from now on.
    pub(crate) fn share(&mut self, share: f64) {
        self.pace = self.pace.map(|pace| pace / self.share * share);
        self.share = share;
    }

    /// An operator wants it tried now.
    pub(crate) fn hasten(&mut self, now: Duration) {
        if let Some(held) = &mut self.held {
            held.until = held.until.min(now);
        }
    }

    /// Why it is held, after how many failed probes, until when.
    pub(crate) fn held(&self) -> Option<(&str, u32, Duration)> {
        self.held.as_ref().map(|held| (held.cause.as_str(), held.probes, held.until))
    }

    /// The pace it keeps, in messages a second.
    pub(crate) fn pace(&self) -> Option<f64> {
        match (self.pace, self.rate_max) {
            (Some(pace), Some(rate)) => Some(pace.min(rate)),
            (pace, rate) => pace.or(rate),
        }
    }

    /// Whether one may go now; [`Health::sent`] follows if it does.
    pub(crate) fn permission(&self, now: Duration) -> Permission {
        if let Some(held) = &self.held {
            return match held {
                held if held.probing => Permission::NotBefore(None),
                held if held.until > now => Permission::NotBefore(Some(held.until)),
                _ => Permission::Probe,
            };
        }
        if self.pace().is_some() && self.next_at > now {
            return Permission::NotBefore(Some(self.next_at));
        }
        Permission::Yes
    }

    /// One goes.
    pub(crate) fn sent(&mut self, now: Duration) {
        if let Some(held) = &mut self.held {
            held.probing = true;
        }
        if let Some(pace) = self.pace() {
            // A timer that came a little late is made up for.
            let from = self.next_at.max(now.saturating_sub(PACE_SLACK));
            let interval = Duration::try_from_secs_f64(1.0 / pace).unwrap_or(Duration::MAX);
            self.next_at = from.saturating_add(interval);
        }
    }

    /// The one that went came back untried.
    pub(crate) fn not_sent(&mut self) {
        if let Some(held) = &mut self.held {
            held.probing = false;
        }
    }

    /// Judges an attempt. `probe`: it was sent as one. `jitter`: a random number from 0 to 1.
    pub(crate) fn judge(
        &mut self,
        verdict: &Verdict,
        message: MessageId,
        probe: bool,
        now: Duration,
        jitter: f64,
    ) -> Ruling {
        match verdict {
            Ok(_) => {
                self.success(probe, now);
                Ruling::Delivered
            }
            Err(SendError::Unreachable { cause, retry_after }) => {
                self.throttle(now);
                self.hold(cause, None, probe, *retry_after, now, jitter);
                Ruling::Again { spend: false, not_before: None }
            }
            Err(SendError::Transient { cause, retry_after }) => {
                self.refusals = None;
                let not_before = retry_after.map(|wish| wish.min(WISH_MAX));
                if self.held.is_some() {
                    self.hold(cause, None, probe, *retry_after, now, jitter);
                    return Ruling::Again { spend: false, not_before };
                }
                self.failures = self.failures.saturating_add(1);
                let since = *self.failing_since.get_or_insert(now);
                if self.failures >= self.policy.failures
                    || now.saturating_sub(since) >= self.policy.after
                {
                    self.hold(cause, None, probe, *retry_after, now, jitter);
                }
                Ruling::Again { spend: true, not_before }
            }
            Err(SendError::Permanent { cause, .. }) => {
                self.refused(cause, message, probe, now, jitter)
            }
            Err(SendError::NotSent) => {
                if probe {
                    self.not_sent();
                }
                Ruling::Again { spend: false, not_before: None }
            }
        }
    }

    fn refused(
        &mut self,
        cause: &Cause,
        message: MessageId,
        probe: bool,
        now: Duration,
        jitter: f64,
    ) -> Ruling {
        let summary = cause.summary.as_ref();
        if let Some(held) = &self.held {
            if held.refused_for.as_deref() == Some(summary) {
                self.hold(cause, Some(summary.to_owned()), probe, None, now, jitter);
                return Ruling::Again { spend: false, not_before: None };
            }
            if probe {
                // It looked at the message and said no: the place works.
                self.let_go();
            }
        }
        self.failures = 0;
        self.failing_since = None;
        match &mut self.refusals {
            Some((last, messages)) if last == summary => {
                messages.insert(message);
            }
            refusals => *refusals = Some((summary.to_owned(), HashSet::from([message]))),
        }
        let so_many = self.refusals.as_ref().map_or(0, |(_, messages)| messages.len());
        if so_many >= self.policy.refusals as usize {
            self.hold(cause, Some(summary.to_owned()), probe, None, now, jitter);
        }
        Ruling::Dead
    }

    fn success(&mut self, probe: bool, now: Duration) {
        // One that was under way when the destination was held does not shorten the pause: the
        // other side may have asked for it.
        if probe || self.held.is_none() {
            self.let_go();
            self.refusals = None;
        }
        self.successes.push_back(now);
        while self.successes.front().is_some_and(|at| now.saturating_sub(*at) > PACE_WINDOW) {
            self.successes.pop_front();
        }
        if let Some(pace) = &mut self.pace {
            *pace += *pace * PACE_GROWTH;
            if now.saturating_sub(self.throttled_at) > PACE_MEMORY {
                self.pace = None;
            }
        }
    }

    /// Finds the partner's pace from what it took within the last second. One that took nothing was
    /// away and not too busy.
    fn throttle(&mut self, now: Duration) {
        if self.held.is_some() {
            return;
        }
        let taken =
            self.successes.iter().filter(|at| now.saturating_sub(**at) <= PACE_WINDOW).count();
        if taken > 0 || self.pace.is_some() {
            let seen = self.pace.unwrap_or(taken as f64 / PACE_WINDOW.as_secs_f64());
            self.pace = Some((seen * PACE_CUT).max(PACE_MIN));
            self.throttled_at = now;
        }
    }

    fn let_go(&mut self) {
        self.held = None;
        self.failures = 0;
        self.failing_since = None;
    }

    /// Holds the destination, or after a failed probe holds it longer. Those that were under way
    /// when it was held already change nothing.
    fn hold(
        &mut self,
        cause: &Cause,
        refused_for: Option<String>,
        probe: bool,
        retry_after: Option<Duration>,
        now: Duration,
        jitter: f64,
    ) {
        let retry_after = retry_after.map(|wish| wish.min(WISH_MAX));
        let probes = match &self.held {
            None => 0,
            Some(held) if probe => held.probes + 1,
            Some(held) => {
                // Asked for more patience by another one under way.
                let until = held.until.max(now.saturating_add(retry_after.unwrap_or_default()));
                if let Some(held) = &mut self.held {
                    held.until = until;
                }
                return;
            }
        };
        let pause = self.policy.pause(probes + 1, jitter).max(retry_after.unwrap_or_default());
        let refused_for = refused_for.or(self.held.take().and_then(|held| held.refused_for));
        let cause = cause.summary.clone().into_owned();
        self.held = Some(Held {
            cause,
            refused_for,
            probes,
            until: now.saturating_add(pause),
            probing: false,
        });
    }
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
