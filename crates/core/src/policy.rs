//! What an operator decides per destination: order, retry, breaker, subscription.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What may not overtake what on the way to one destination.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Messages of one key keep their order (default).
    #[default]
    Key,
    /// No order.
    None,
    /// Everything keeps its order: one message at a time.
    All,
}

/// What a dead letter means for the messages behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnDead {
    /// Its key is held until an operator decides (default with an order).
    Hold,
    /// The messages behind it go on (default with `order = "none"`).
    Pass,
}

impl OnDead {
    /// What goes with this order if the operator says nothing.
    #[must_use]
    pub fn default_for(order: Order) -> Self {
        match order {
            Order::Key | Order::All => Self::Hold,
            Order::None => Self::Pass,
        }
    }
}

/// When a failed message is tried again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetryPolicy {
    /// After so many failed attempts a message is a dead letter.
    pub attempts: u32,
    /// The wait after the first failure.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub first: Duration,
    /// The longest wait; waits double up to it.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { attempts: 12, first: Duration::from_secs(1), max: Duration::from_secs(15 * 60) }
    }
}

impl RetryPolicy {
    /// The wait after this many failed attempts, between half and the whole of the doubled first
    /// wait; `jitter` is a random number from 0 to 1. Never over the longest wait and never zero,
    /// however large the number.
    #[must_use]
    pub fn wait(&self, failures: u32, jitter: f64) -> Duration {
        grow(self.first, self.max, failures, jitter)
    }
}

/// Equal jitter: `first` doubled per failure after the first, capped, of which half is fixed and
/// half is random.
fn grow(first: Duration, max: Duration, failures: u32, jitter: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(31);
    let whole = first.saturating_mul(1 << doublings).min(max);
    let half = whole / 2;
    half + half.mul_f64(jitter.clamp(0.0, 1.0))
}

/// When a destination stops spending attempts, and how it is probed then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BreakerPolicy {
    /// So many failures with no success between open it.
    pub failures: u32,
    /// It also opens once failures have gone on this long with no success between.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub after: Duration,
    /// So many refusals in a row for one cause, on different messages, open it.
    pub refusals: u32,
    /// The first pause before a probe.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub probe_first: Duration,
    /// The longest pause before a probe; pauses double up to it.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub probe_max: Duration,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            failures: 10,
            after: Duration::from_secs(60),
            refusals: 20,
            probe_first: Duration::from_secs(1),
            probe_max: Duration::from_secs(60),
        }
    }
}

impl BreakerPolicy {
    /// The pause before the next probe after this many failed ones; jitter as in
    /// [`RetryPolicy::wait`].
    #[must_use]
    pub fn pause(&self, failures: u32, jitter: f64) -> Duration {
        grow(self.probe_first, self.probe_max, failures, jitter)
    }
}

/// A pattern for message types: `*` matches any characters, dots included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct TypePattern(pub String);

impl TypePattern {
    /// Whether the whole of `message_type` matches.
    #[must_use]
    pub fn matches(&self, message_type: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or("");
        let Some(mut rest) = message_type.strip_prefix(first) else {
            return false;
        };
        let Some(last) = parts.next_back() else {
            return rest.is_empty();
        };
        for part in parts {
            let Some(at) = rest.find(part) else {
                return false;
            };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_cap_and_never_overflow_or_fall_to_zero() {
        let retry = RetryPolicy {
            attempts: 12,
            first: Duration::from_secs(1),
            max: Duration::from_secs(3600),
        };
        for failures in [0, 1, 12, 13, 31, 32, 33, 63, 64, 65, 1_000, u32::MAX] {
            for jitter in [0.0, 0.3, 1.0, f64::MAX, -1.0] {
                let wait = retry.wait(failures, jitter);
                assert!(
                    wait >= Duration::from_millis(500) && wait <= retry.max,
                    "{failures}: {wait:?}"
                );
            }
        }
        let seconds: Vec<_> = (1..=5).map(|n| retry.wait(n, 1.0).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16]);
        assert_eq!(retry.wait(40, 0.0), Duration::from_secs(1800));
        let huge = RetryPolicy { attempts: 1, first: Duration::MAX, max: Duration::MAX };
        assert!(huge.wait(u32::MAX, 1.0) > Duration::from_secs(1));
    }

    #[test]
    fn a_star_matches_any_characters_dots_included() {
        for (pattern, text, expected) in [
            ("application.*", "application.submitted.v2", true),
            ("application.*", "applications", false),
            ("*", "", true),
            ("*", "a.b", true),
            ("a", "a", true),
            ("a", "ab", false),
            ("*.done", "x.y.done", true),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "ac", false),
            ("a*a", "a", false),
            ("", "", true),
        ] {
            assert_eq!(TypePattern(pattern.into()).matches(text), expected, "{pattern} {text}");
        }
    }
}
