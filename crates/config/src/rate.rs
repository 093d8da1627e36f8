//! `rate = "20/s"`: how many messages per time.

use std::{fmt, str::FromStr, time::Duration};

use serde::Deserialize;

/// So many messages per second, minute, hour or day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Rate {
    /// How many; at least 1.
    pub count: u32,
    /// Per how long.
    pub per: Duration,
}

/// Units and their seconds.
const UNITS: [(&str, u64); 4] = [("s", 1), ("min", 60), ("h", 3600), ("day", 86_400)];

impl FromStr for Rate {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "not a rate: write a number per s, min, h or day, e.g. \"20/s\"".to_owned();
        let (count, unit) = text.split_once('/').ok_or_else(wrong)?;
        let count = count.trim().parse().map_err(|_| wrong())?;
        let (_, seconds) = UNITS.iter().find(|(name, _)| *name == unit.trim()).ok_or_else(wrong)?;
        if count == 0 {
            return Err("a rate is at least 1; to send nothing, pause the destination".to_owned());
        }
        Ok(Self { count, per: Duration::from_secs(*seconds) })
    }
}

impl TryFrom<String> for Rate {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|(_, seconds)| *seconds == self.per.as_secs());
        write!(f, "{}/{}", self.count, unit.map_or("?", |(name, _)| name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_per_unit() {
        for (text, count, seconds) in [("20/s", 20, 1), ("100/min", 100, 60), ("1 / h", 1, 3600)] {
            let rate = Rate { count, per: Duration::from_secs(seconds) };
            assert_eq!(text.parse(), Ok(rate));
            assert_eq!(rate.to_string().parse(), Ok(rate));
        }
        for bad in ["", "20", "20/", "/s", "0/s", "-1/s", "20/m", "1.5/s", "20/s/s"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad:?} was taken");
        }
    }
}
