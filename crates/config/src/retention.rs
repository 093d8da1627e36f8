//! `retention` in `hub.toml`: for how long what is over is kept.

use std::time::Duration;

use pabal_core::Retention;
use serde::{Deserialize, Serialize};

const DAY: u64 = 24 * 3600;
/// A century; beyond it the arithmetic of databases ends.
const LONGEST: Duration = Duration::from_secs(36_525 * DAY);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RetentionToml {
    #[serde(with = "humantime_serde")]
    bodies: Duration,
    #[serde(with = "humantime_serde")]
    history: Duration,
    #[serde(with = "humantime_serde")]
    inbox: Duration,
    #[serde(with = "humantime_serde")]
    dead_letters: Duration,
}

impl Default for RetentionToml {
    fn default() -> Self {
        let Retention { bodies, history, inbox, dead_letters } = Retention::default();
        Self { bodies, history, inbox, dead_letters }
    }
}

impl RetentionToml {
    /// What types cannot say.
    pub(crate) fn check(&self, wrong: &mut impl FnMut(&str, &str, &str)) {
        for (key, time) in [
            ("retention.bodies", self.bodies),
            ("retention.history", self.history),
            ("retention.inbox", self.inbox),
            ("retention.dead_letters", self.dead_letters),
        ] {
            if time.is_zero() || time > LONGEST {
                wrong(key, "not between a moment and a hundred years", "write e.g. \"30d\"");
            }
        }
        if self.inbox < self.bodies {
            wrong(
                "retention.inbox",
                "shorter than `bodies`",
                "an id must be remembered at least as long as its message: make `inbox` longer",
            );
        }
    }

    pub(crate) fn planned(self) -> Retention {
        let Self { bodies, history, inbox, dead_letters } = self;
        Retention { bodies, history, inbox, dead_letters }
    }
}

/// As people write it: whole days as days, however many.
pub(crate) fn days(time: Duration) -> String {
    if time.as_secs() >= DAY && time.as_secs().is_multiple_of(DAY) && time.subsec_nanos() == 0 {
        return format!("{}d", time.as_secs() / DAY);
    }
    humantime::format_duration(time).to_string()
}
