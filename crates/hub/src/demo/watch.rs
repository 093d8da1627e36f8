//! Live counts while the demo runs: bars on a terminal, a plain line now and then elsewhere.

use std::{cell::Cell, time::Duration};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::out;

const EVERY: Duration = Duration::from_secs(2);

/// Shows how far it is.
pub(super) struct Watch {
    bars: Option<[ProgressBar; 3]>,
    quiet: bool,
    records: u64,
    existing: u64,
    said: Cell<Option<Duration>>,
}

impl Watch {
    pub(super) fn new(records: u64, existing: u64, quiet: bool) -> Self {
        let bars = (!quiet && out::watched()).then(|| {
            let all = MultiProgress::new();
            [("handed over", records), ("first agency", records), ("second agency", existing)].map(
                |(name, length)| {
                    let bar = all.add(ProgressBar::new(length));
                    let style = ProgressStyle::with_template(
                        "{prefix:14} {bar:40} {human_pos} of {human_len}",
                    );
                    if let Ok(style) = style {
                        bar.set_style(style);
                    }
                    bar.set_prefix(name);
                    bar
                },
            )
        });
        Self { bars, quiet, records, existing, said: Cell::new(None) }
    }

    pub(super) fn show(&self, handed_over: u64, first: u64, second: u64, now: Duration) {
        if let Some(bars) = &self.bars {
            for (bar, count) in bars.iter().zip([handed_over, first, second]) {
                bar.set_position(count);
            }
            return;
        }
        let last = self.said.get();
        if self.quiet || last.is_some_and(|last| now - last < EVERY) {
            return;
        }
        self.said.set(Some(now));
        if last.is_some() {
            out::note(format_args!(
                "handed over {} of {} · first agency {} of {} · second agency {} of {}",
                out::count(handed_over),
                out::count(self.records),
                out::count(first),
                out::count(self.records),
                out::count(second),
                out::count(self.existing),
            ));
        }
    }

    /// Takes the bars away: the table follows.
    pub(super) fn end(&self) {
        for bar in self.bars.iter().flatten() {
            bar.finish_and_clear();
        }
    }
}
