//! What the demo says at the end, taken from the agencies' own books, and whether all of it is as
//! it must be.

use std::time::Duration;

use serde::Serialize;

use super::{
    agency::FaultCounts,
    book::{Audit, Tally},
    sender::SentCounts,
};
use crate::out;

/// Everything that was counted.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Report {
    /// Records in the input.
    pub(super) records: u64,
    /// Of these, what the second agency takes.
    pub(super) existing: u64,
    /// How many ids were to be used again for other content.
    pub(super) alterations: u64,
    /// The sender's side.
    pub(super) sent: SentCounts,
    /// The first agency, which takes everything and fails now and then.
    pub(super) first: Tally,
    /// Its book against the input.
    pub(super) first_audit: Audit,
    /// What it did to the hub.
    pub(super) faults: FaultCounts,
    /// The second agency, which takes what exists.
    pub(super) second: Tally,
    /// Its book against the input.
    pub(super) second_audit: Audit,
    /// Conflicts the hub keeps for its operators.
    pub(super) conflicts_kept: u64,
    /// Other dead letters: there must be none.
    pub(super) other_dead_letters: u64,
    /// From the first hand-over to the last settlement, in seconds.
    pub(super) seconds: f64,
    /// The most memory this process ever had, in MiB, if the system says.
    pub(super) peak_memory_mib: Option<u64>,
}

/// One line: what, how much, whether that is right.
struct Line {
    what: &'static str,
    value: String,
    right: bool,
}

impl Report {
    fn lost(&self) -> u64 {
        self.first_audit.lost + self.second_audit.lost
    }

    fn order_violations(&self) -> u64 {
        self.first.order_violations + self.second.order_violations
    }

    /// Content, keys, versions and messages that are not what the input says.
    fn differs(&self) -> u64 {
        let of = |tally: Tally, audit: Audit| {
            tally.changed + tally.unreadable + audit.differs + audit.surplus
        };
        of(self.first, self.first_audit) + of(self.second, self.second_audit)
    }

    /// Whether all is as it must be.
    pub(super) fn right(&self) -> bool {
        self.lines().iter().all(|line| line.right)
    }

    fn lines(&self) -> Vec<Line> {
        let count = out::count;
        let line = |what, value, right| Line { what, value, right };
        let sent = &self.sent;
        vec![
            line("handed over", count(sent.handed_over), sent.handed_over == self.records),
            line(
                "repeats recognised",
                format!("{} of {}", count(sent.recognised), count(sent.repeated)),
                sent.recognised == sent.repeated,
            ),
            line(
                "conflicts",
                format!("{} of {}", count(sent.conflicts), count(sent.altered)),
                sent.conflicts == self.alterations && self.conflicts_kept == self.alterations,
            ),
            line(
                "first agency, once in effect",
                count(self.first.effects),
                self.first.effects == self.records,
            ),
            line(
                "second agency, once in effect",
                count(self.second.effects),
                self.second.effects == self.existing,
            ),
            line("lost", count(self.lost()), self.lost() == 0),
            line("order violations", count(self.order_violations()), self.order_violations() == 0),
            line("content differs", count(self.differs()), self.differs() == 0),
            line(
                "other dead letters",
                count(self.other_dead_letters),
                self.other_dead_letters == 0,
            ),
        ]
    }

    /// For people.
    pub(super) fn table(&self) -> String {
        let mut table = out::sheet();
        for line in self.lines() {
            let mark = if line.right { "✓" } else { "✗ wrong" };
            table.add_row([line.what.to_owned(), line.value, mark.to_owned()]);
        }
        let faults = self.faults;
        let memory =
            self.peak_memory_mib.map_or_else(String::new, |mib| format!(", peak memory {mib} MiB"));
        format!(
            "{table}\n\
             the first agency answered 503 to {} requests, closed {} connections before and {} after \
             taking a message, and was slow {} times; the agencies saw {} repeats\n\
             {} in {}{memory}",
            out::count(faults.busy),
            out::count(faults.lost_before),
            out::count(faults.lost_after),
            out::count(faults.slow),
            out::count(self.first.repeats + self.second.repeats),
            format_args!("{} messages", out::count(self.first.effects + self.second.effects)),
            out::span(Duration::from_secs_f64(self.seconds.max(0.0))),
        )
    }

    /// For programs.
    pub(super) fn json(&self) -> serde_json::Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        value["lost"] = self.lost().into();
        value["order_violations"] = self.order_violations().into();
        value["content_differs"] = self.differs().into();
        value["right"] = self.right().into();
        value
    }
}

/// The most memory this process ever had, in MiB.
pub(super) fn peak_memory_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right() -> Report {
        Report {
            records: 10,
            existing: 4,
            alterations: 3,
            sent: SentCounts {
                handed_over: 10,
                repeated: 2,
                recognised: 2,
                altered: 3,
                conflicts: 3,
                retries: 0,
            },
            first: Tally { effects: 10, repeats: 1, ..Tally::default() },
            second: Tally { effects: 4, ..Tally::default() },
            conflicts_kept: 3,
            ..Report::default()
        }
    }

    #[test]
    fn anything_that_is_not_as_it_must_be_makes_the_whole_wrong() {
        assert!(right().right(), "{}", right().table());
        let wrong: [fn(&mut Report); 9] = [
            |report| report.sent.handed_over = 9,
            |report| report.sent.recognised = 1,
            |report| report.sent.conflicts = 2,
            |report| report.conflicts_kept = 4,
            |report| report.first.effects = 11,
            |report| report.second.effects = 3,
            |report| report.second_audit.lost = 1,
            |report| report.first.order_violations = 1,
            |report| report.first.changed = 1,
        ];
        for (index, spoil) in wrong.iter().enumerate() {
            let mut report = right();
            spoil(&mut report);
            assert!(!report.right(), "{index}");
            assert_eq!(report.json()["right"], false);
            assert!(report.table().contains("✗ wrong"));
        }
    }

    #[test]
    fn the_table_is_this() {
        insta::assert_snapshot!(right().table());
    }
}
