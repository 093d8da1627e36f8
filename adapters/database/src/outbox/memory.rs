//! What a relay remembers between two looks. All of it can be lost: the table decides.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::Duration,
};

use super::statements::Wanted;

/// So many keys wait at the same time; with more of them it is not the rows that are at fault, and
/// everything waits.
const WAITING_MAX: usize = 1_000;
/// The longest wait of a key.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The longest, while somebody else has its row.
const ELSEWHERE_MAX: Duration = Duration::from_secs(1);
/// The shortest: what it is for is that others get their turn.
const WAIT_MIN: Duration = Duration::from_millis(100);

/// Who waits: a key, or a row that has none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Who {
    Key(String),
    Row(String),
}

#[derive(Debug)]
struct Wait {
    until: Duration,
    times: u32,
    /// The order of its first row.
    order: Option<i64>,
}

/// Keys with a row that failed for now. They stay away for a time, so that others pass.
#[derive(Debug)]
pub(super) struct Waiting {
    first: Duration,
    waits: HashMap<Who, Wait>,
}

impl Waiting {
    /// The first wait is about so long; each is twice the one before.
    pub(super) fn new(first: Duration) -> Self {
        Self { first: first.max(WAIT_MIN), waits: HashMap::new() }
    }

    /// Its row of this order failed, or could not be had.
    pub(super) fn wait(&mut self, who: Who, order: Option<i64>, now: Duration) {
        self.wait_up_to(WAIT_MAX, who, order, now);
    }

    fn wait_up_to(&mut self, max: Duration, who: Who, order: Option<i64>, now: Duration) {
        let wait = self.waits.entry(who).or_insert(Wait { until: now, times: 0, order });
        let time = self.first.saturating_mul(1 << wait.times.min(20)).min(max);
        *wait = Wait { until: now + time, times: wait.times + 1, order };
    }

    /// Somebody else has its row for the moment.
    pub(super) fn try_soon(&mut self, who: Who, order: Option<i64>, now: Duration) {
        self.wait_up_to(ELSEWHERE_MAX.max(self.first), who, order, now);
    }

    /// Its rows are taken.
    pub(super) fn forget(&mut self, who: &Who) {
        self.waits.remove(who);
    }

    /// Whether so many wait that nothing should be looked for.
    pub(super) fn all(&self, now: Duration) -> bool {
        self.waits.values().filter(|wait| wait.until > now).count() >= WAITING_MAX
    }

    /// When the next of them may be tried again.
    pub(super) fn next(&self, now: Duration) -> Option<Duration> {
        self.waits.values().map(|wait| wait.until).filter(|until| *until > now).min()
    }

    /// Leaves out those that wait.
    pub(super) fn leave_out(&self, now: Duration, wanted: &mut Wanted) {
        for (who, wait) in &self.waits {
            match who {
                _ if wait.until <= now => {}
                Who::Key(key) => wanted.without_keys.push(key.clone()),
                Who::Row(row) => wanted.without_rows.push(row.clone()),
            }
        }
    }

    /// The lowest order of those that wait or did.
    fn lowest(&self) -> Option<i64> {
        self.waits.values().filter_map(|wait| wait.order).min()
    }

    /// Forgets who was last heard of so long ago that it is gone by other means.
    pub(super) fn forget_old(&mut self, now: Duration) {
        self.waits.retain(|_, wait| wait.until + 2 * WAIT_MAX > now);
    }
}

/// After a number was seen a lower one is looked for at once for so long, and from then on only with
/// everything.
const LATE: Duration = Duration::from_secs(10);
/// Numbers seen are told apart by so much time.
const STEP: Duration = Duration::from_secs(1);
/// Everything is looked through at most this often, ...
const ALL_AFTER: Duration = Duration::from_secs(10);
/// ... and for no more than one part in so many of the time.
const ALL_SHARE: u32 = 20;

/// From where to look: what was sent long ago is not gone from the index while somebody keeps an old
/// transaction open, and should not be walked over each time.
///
/// This is no bookmark. A row below it that turns up late is found, after ten seconds at the latest
/// from then on; only the cost is another one.
#[derive(Debug, Default)]
pub(super) struct Floor {
    /// When which number was the highest that was dealt with.
    seen: VecDeque<(Duration, i64)>,
    /// When to look through everything.
    all_at: Duration,
}

impl Floor {
    /// Where to begin; `None`: look through everything.
    pub(super) fn begin(&self, now: Duration, waiting: &Waiting) -> Option<i64> {
        if now >= self.all_at {
            return None;
        }
        let old = self.seen.iter().rev().find(|(at, _)| *at + LATE <= now)?;
        Some(waiting.lowest().unwrap_or(i64::MAX).min(old.1))
    }

    /// Everything up to this number was dealt with, or waits.
    pub(super) fn saw(&mut self, now: Duration, number: i64) {
        let number = self.seen.back().map_or(number, |(_, last)| number.max(*last));
        match self.seen.back_mut() {
            // It counts as old a little early, and there are few of them.
            Some((at, last)) if *at + STEP > now => *last = number,
            _ => self.seen.push_back((now, number)),
        }
        // One that is old enough is enough.
        while self.seen.get(1).is_some_and(|(at, _)| *at + LATE <= now) {
            self.seen.pop_front();
        }
    }

    /// Everything was looked through, and it took so long.
    pub(super) fn looked_through(&mut self, now: Duration, took: Duration) {
        self.all_at = now + ALL_AFTER.max(took.saturating_mul(ALL_SHARE));
    }

    /// Something may have been missed: the next look is through everything.
    pub(super) fn reset(&mut self) {
        self.all_at = Duration::ZERO;
    }
}

/// How long to wait before the next look.
#[derive(Debug)]
pub(super) struct Pace {
    interval: Duration,
    idle: Duration,
    next: Duration,
}

impl Pace {
    /// From `interval` to `idle` while nothing is found.
    pub(super) fn new(interval: Duration, idle: Duration) -> Self {
        Self { interval, idle, next: interval }
    }

    /// Something was found.
    pub(super) fn busy(&mut self) {
        self.next = self.interval;
    }

    /// The wait after a look that found nothing.
    pub(super) fn wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = wait.saturating_mul(2).min(self.idle);
        wait
    }
}

/// Rows that the hub has and whose mark was made with them in one transaction, or so one thinks: those
/// of the last batch. One that comes again is marked by itself.
pub(super) type Receipts = HashSet<String>;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn key(key: &str) -> Who {
        Who::Key(key.to_owned())
    }

    #[test]
    fn what_failed_waits_longer_each_time_and_others_pass() {
        let mut waiting = Waiting::new(SECOND);
        waiting.wait(key("a"), Some(7), Duration::ZERO);
        waiting.wait(Who::Row("r".to_owned()), None, Duration::ZERO);
        let out = |waiting: &Waiting, now: Duration| {
            let mut wanted = Wanted::default();
            waiting.leave_out(now, &mut wanted);
            (wanted.without_keys, wanted.without_rows)
        };
        assert_eq!(out(&waiting, SECOND / 2), (vec!["a".to_owned()], vec!["r".to_owned()]));
        assert_eq!(out(&waiting, SECOND), (vec![], vec![]));
        waiting.wait(key("a"), Some(7), SECOND);
        assert_eq!(waiting.next(2 * SECOND), Some(3 * SECOND));
        for _ in 0..40 {
            waiting.wait(key("a"), Some(7), Duration::ZERO);
        }
        assert_eq!(waiting.next(SECOND), Some(WAIT_MAX));
        waiting.forget(&key("a"));
        assert_eq!(waiting.next(SECOND), None);
    }

    #[test]
    fn when_everything_fails_everything_waits() {
        let mut waiting = Waiting::new(SECOND);
        for number in 0..WAITING_MAX {
            assert!(!waiting.all(Duration::ZERO));
            waiting.wait(key(&number.to_string()), None, Duration::ZERO);
        }
        assert!(waiting.all(Duration::ZERO) && !waiting.all(SECOND));
        waiting.forget_old(1_000 * SECOND);
        assert!(waiting.waits.is_empty());
    }

    #[test]
    fn a_look_begins_where_all_is_old_and_now_and_then_at_the_beginning() {
        let (mut floor, mut waiting) = (Floor::default(), Waiting::new(SECOND));
        assert_eq!(floor.begin(Duration::ZERO, &waiting), None);
        floor.looked_through(Duration::ZERO, Duration::ZERO);
        for second in 0..=9 {
            let now = SECOND * second;
            floor.saw(now, i64::from(second) * 100);
            assert_eq!(floor.begin(now, &waiting), None, "nothing is old yet");
        }
        floor.looked_through(SECOND * 9, SECOND / 100);
        assert_eq!(floor.begin(SECOND * 15, &waiting), Some(500));
        waiting.wait(key("a"), Some(42), SECOND * 15);
        assert_eq!(floor.begin(SECOND * 15, &waiting), Some(42), "what waits is not passed over");
        assert_eq!(floor.begin(SECOND * 19, &waiting), None, "everything, after ten seconds");
        floor.looked_through(SECOND * 19, SECOND * 2);
        assert!(floor.begin(SECOND * 58, &waiting).is_some(), "a long look is not taken so often");
        floor.saw(SECOND * 30, 7);
        assert_eq!(floor.begin(SECOND * 58, &Waiting::new(SECOND)), Some(900), "it never falls");
        assert!(floor.seen.len() < 15);
        floor.reset();
        assert_eq!(floor.begin(SECOND * 58, &waiting), None);
    }

    #[test]
    fn the_pace_slows_down_while_nothing_is_found() {
        let mut pace = Pace::new(SECOND, 5 * SECOND);
        let waits: Vec<_> = (0..5).map(|_| pace.wait().as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 5, 5]);
        pace.busy();
        assert_eq!(pace.wait(), SECOND);
    }
}
