//! Lane state against a model of the table.

use pabal_core::MessageId;

use super::*;

fn delivery(number: Number, key: Option<&str>) -> Delivery {
    Delivery {
        number,
        message: MessageId(uuid::Uuid::from_u128(number as u128)),
        destination: "p/d".parse().unwrap(),
        slot: 0,
        key: key.map(Into::into),
        attempts: 0,
        round: 0,
        started: 0,
        due_in: Duration::ZERO,
        age: Duration::ZERO,
        size: 1,
    }
}

const NOW: Duration = Duration::from_secs(100);
const GONE: Outcome = Outcome::Gone;

/// The only lane of a destination.
fn whole(order: Order, rows_max: usize, careful: bool) -> Lanes {
    let mut lanes = Lanes::new(order, 1, rows_max);
    lanes.gain(0, careful, true);
    lanes
}

fn lanes(order: Order) -> Lanes {
    whole(order, 1_000, false)
}

fn take(lanes: &mut Lanes) -> Vec<(KeyId, Number)> {
    std::iter::from_fn(|| lanes.take(NOW)).map(|(key, row)| (key, row.number)).collect()
}

fn numbers(taken: &[(KeyId, Number)]) -> Vec<Number> {
    taken.iter().map(|(_, number)| *number).collect()
}

#[test]
fn nothing_of_a_key_overtakes_the_oldest_unsettled_and_other_keys_pass() {
    let mut lanes = lanes(Order::Key);
    lanes.offer(
        &[
            delivery(1, Some("a")),
            delivery(2, Some("a")),
            delivery(3, Some("b")),
            delivery(4, None),
            delivery(5, None),
        ],
        NOW,
    );
    let taken = take(&mut lanes);
    assert_eq!(numbers(&taken), [1, 3, 4, 5]);
    let due = NOW + Duration::from_secs(9);
    lanes.settled(&taken[0].0, 1, Outcome::Retry { due, spent: true });
    lanes.settled(&taken[1].0, 3, GONE);
    assert!(take(&mut lanes).is_empty());
    assert_eq!(lanes.next_due(), Some(due));
    let (key, row) = lanes.take(due).unwrap();
    assert_eq!((row.number, row.attempts), (1, 1));
    lanes.settled(&key, 1, GONE);
    assert_eq!(numbers(&take(&mut lanes)), [2]);
}

#[test]
fn with_no_order_every_delivery_goes_and_with_all_only_one() {
    let rows = [delivery(1, Some("a")), delivery(2, Some("a")), delivery(3, None)];
    let mut none = lanes(Order::None);
    none.offer(&rows, NOW);
    assert_eq!(numbers(&take(&mut none)), [1, 2, 3]);
    let mut all = lanes(Order::All);
    all.offer(&rows, NOW);
    let taken = take(&mut all);
    assert_eq!(numbers(&taken), [1]);
    all.settled(&taken[0].0, 1, GONE);
    assert_eq!(numbers(&take(&mut all)), [2]);
}

#[test]
fn a_dead_letter_holds_its_key_until_it_is_freed_and_then_the_table_is_read_again() {
    let mut lanes = lanes(Order::Key);
    lanes.offer(&[delivery(1, Some("a")), delivery(2, Some("a")), delivery(3, Some("b"))], NOW);
    let taken = take(&mut lanes);
    lanes.settled(&taken[0].0, 1, Outcome::Holds);
    lanes.offer(&[delivery(4, Some("a"))], NOW);
    assert!(take(&mut lanes).is_empty());
    let asked = lanes.held();
    assert!(lanes.still_held(&asked, &[(Some("a".into()), 1)]).is_empty());
    // Replayed: it stands in the table again, before the others of its key.
    let freed = lanes.still_held(&asked, &[]);
    assert_eq!(freed, [KeyId::Key("a".into())]);
    let fetch = lanes.wants(&freed[0]).unwrap();
    let rows = [delivery(1, Some("a")), delivery(2, Some("a")), delivery(4, Some("a"))];
    let _ = lanes.fetched(&fetch, &rows, true, NOW);
    let taken = take(&mut lanes);
    assert_eq!(numbers(&taken), [1]);
    lanes.settled(&taken[0].0, 1, GONE);
    assert_eq!(numbers(&take(&mut lanes)), [2]);
}

/// What was held when it was asked, what the table said, and what was put back.
type HeldRead = (HashMap<KeyId, u64>, Vec<(Option<String>, Number)>, Vec<Delivery>);

/// The table, and reads of it that are answered later: everything may happen in between.
struct Table {
    rows: Vec<Delivery>,
    /// Keys held by a dead letter, with its number.
    dead: Vec<(String, Number)>,
    reads: Vec<(Fetch, Vec<Delivery>, bool)>,
    held_reads: Vec<HeldRead>,
    page: usize,
}

impl Table {
    fn page_of(&self, fetch: &Fetch) -> usize {
        if matches!(fetch, Fetch::Key { .. }) { ROWS_PER_KEY } else { self.page }
    }

    fn read(&mut self, fetch: Fetch) {
        let after = match &fetch {
            Fetch::Key { after, .. } | Fetch::Forgotten { after, .. } => *after,
        };
        let of_key = |row: &Delivery| match &fetch {
            Fetch::Key { key: KeyId::Key(key), .. } => row.key.as_ref() == Some(key),
            _ => true,
        };
        let page = self.page_of(&fetch);
        let rows: Vec<_> = self
            .rows
            .iter()
            .filter(|row| row.number > after && of_key(row))
            .take(page)
            .cloned()
            .collect();
        let complete = rows.len() < page;
        self.reads.push((fetch, rows, complete));
    }

    fn put(&mut self, delivery: Delivery) {
        let place = self.rows.partition_point(|row| row.number < delivery.number);
        self.rows.insert(place, delivery);
    }
}

/// Deliveries come, are sent, fail, die, are replayed; the table is read in pages, and every answer
/// comes late. In the end each went exactly once in every round, and each key in order.
fn a_day(seed: u64, rows_max: usize, deep: bool) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut lanes = whole(Order::Key, rows_max, false);
    let mut table = Table {
        rows: Vec::new(),
        dead: Vec::new(),
        reads: Vec::new(),
        held_reads: Vec::new(),
        page: 5,
    };
    let keys: Vec<String> = (0..if deep { 3 } else { 40 }).map(|n| format!("k{n}")).collect();
    let (mut newest, mut tail, mut taken) = (0, 0, Vec::<(KeyId, Row)>::new());
    let mut done: Vec<(Option<Arc<str>>, Number)> = Vec::new();
    let mut now = NOW;
    let total: Number = 600;
    for step in 0.. {
        assert!(step < 200_000, "seed {seed}: stuck with {} done: {lanes:?}", done.len());
        now += Duration::from_millis(random.u64(0..3));
        match random.u32(0..12) {
            // Committed.
            0..=2 if newest < total => {
                for _ in 0..random.i64(1..6).min(total - newest) {
                    newest += 1;
                    let key = random.bool().then(|| random.choice(&keys).unwrap().as_str());
                    table.put(delivery(newest, key));
                }
            }
            3 => {
                let fresh: Vec<_> =
                    table.rows.iter().filter(|row| row.number > tail).take(7).cloned().collect();
                tail = fresh.last().map_or(tail, |row| row.number);
                lanes.offer(&fresh, now);
            }
            4 | 5 => {
                if let Some((key, row)) = lanes.take(now) {
                    // A delivery that is settled is noticed when it is loaded.
                    if table.rows.iter().any(|known| known.number == row.number) {
                        assert!(
                            taken.iter().all(|(other, _)| *other != key),
                            "seed {seed}: two of {key:?} at once"
                        );
                        taken.push((key, row));
                    } else {
                        lanes.settled(&key, row.number, GONE);
                        lanes.wants(&key).into_iter().for_each(|fetch| table.read(fetch));
                    }
                }
            }
            6 | 7 if !taken.is_empty() => {
                let (key, row) = taken.swap_remove(random.usize(0..taken.len()));
                let outcome = match (random.u32(0..20), &key) {
                    (0, KeyId::Key(name)) => {
                        table.rows.retain(|known| known.number != row.number);
                        table.dead.push((name.to_string(), row.number));
                        Outcome::Holds
                    }
                    (1..=3, _) => {
                        let due = now + Duration::from_millis(random.u64(0..20));
                        Outcome::Retry { due, spent: true }
                    }
                    (4, _) => Outcome::Back,
                    _ => {
                        table.rows.retain(|known| known.number != row.number);
                        let name = match &key {
                            KeyId::Key(name) => Some(Arc::clone(name)),
                            _ => None,
                        };
                        done.push((name, row.number));
                        GONE
                    }
                };
                lanes.settled(&key, row.number, outcome);
                lanes.wants(&key).into_iter().for_each(|fetch| table.read(fetch));
            }
            8 => lanes.wants_refill().into_iter().for_each(|fetch| table.read(fetch)),
            9 | 10 if !table.reads.is_empty() => {
                let (fetch, rows, complete) =
                    table.reads.swap_remove(random.usize(0..table.reads.len()));
                for key in lanes.fetched(&fetch, &rows, complete, now) {
                    lanes.wants(&key).into_iter().for_each(|fetch| table.read(fetch));
                }
                if let Fetch::Key { key, .. } = &fetch {
                    lanes.wants(key).into_iter().for_each(|fetch| table.read(fetch));
                }
            }
            11 => match random.u32(0..12) {
                0 => lanes.sweep(),
                // An operator replays a dead letter.
                1..=4 if !table.dead.is_empty() => {
                    let place = random.usize(0..table.dead.len());
                    let (key, number) = table.dead.swap_remove(place);
                    table.put(delivery(number, Some(&key)));
                    let held = table.dead.iter().map(|(key, n)| (Some(key.clone()), *n)).collect();
                    let back = vec![delivery(number, Some(&key))];
                    table.held_reads.push((lanes.held(), held, back));
                }
                _ if !table.held_reads.is_empty() => {
                    let (asked, held, back) = table.held_reads.remove(0);
                    for key in lanes.still_held(&asked, &held) {
                        lanes.wants(&key).into_iter().for_each(|fetch| table.read(fetch));
                    }
                    for key in lanes.offer_back(&back, now) {
                        lanes.wants(&key).into_iter().for_each(|fetch| table.read(fetch));
                    }
                }
                _ => {}
            },
            _ => {}
        }
        let settled = newest == total && table.rows.is_empty() && table.dead.is_empty();
        if settled && table.reads.is_empty() && table.held_reads.is_empty() {
            // Old readings may still stand there; they are noticed when they are loaded.
            while let Some((key, row)) = lanes.take(now + Duration::from_secs(1)) {
                lanes.settled(&key, row.number, GONE);
                lanes.wants(&key).into_iter().for_each(|fetch| table.read(fetch));
            }
            if table.reads.is_empty() {
                break;
            }
        }
    }
    for key in &keys {
        let of_key = |(name, number): &(Option<Arc<str>>, Number)| {
            (name.as_deref() == Some(key)).then_some(*number)
        };
        let order: Vec<_> = done.iter().filter_map(of_key).collect();
        assert!(order.is_sorted(), "seed {seed}: {key} went as {order:?}");
    }
    let mut numbers: Vec<_> = done.iter().map(|(_, number)| *number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=total).collect::<Vec<_>>(), "seed {seed}");
    // Nothing is wanted any more: an idle hub reads nothing.
    for _ in 0..3 {
        if let Some(fetch) = lanes.wants_refill() {
            let _ = lanes.fetched(&fetch, &[], true, now);
        }
    }
    assert_eq!((lanes.wants_refill(), lanes.rows), (None, 0), "seed {seed}: {lanes:?}");
}

#[test]
fn whatever_comes_late_nothing_is_lost_taken_twice_or_overtaken() {
    for seed in 0..300 {
        a_day(seed, 10_000, false);
        a_day(seed, 10_000, true);
    }
}

#[test]
fn what_does_not_fit_into_memory_is_read_again_in_order() {
    for seed in 0..300 {
        a_day(seed, 12, false);
        a_day(seed, 12, true);
    }
}

#[test]
fn a_late_commit_takes_its_place_before_others_of_its_key() {
    let mut lanes = lanes(Order::Key);
    lanes.offer(&[delivery(2, Some("a")), delivery(5, Some("a"))], NOW);
    let taken = take(&mut lanes);
    assert_eq!(numbers(&taken), [2]);
    let _ =
        lanes.offer_back(&[delivery(1, Some("a")), delivery(3, Some("a")), delivery(4, None)], NOW);
    assert_eq!(numbers(&take(&mut lanes)), [4]);
    lanes.settled(&taken[0].0, 2, GONE);
    let mut order = Vec::new();
    while let Some((key, row)) = lanes.take(NOW) {
        order.push(row.number);
        lanes.settled(&key, row.number, GONE);
    }
    assert_eq!(order, [1, 3, 5]);
}

#[test]
fn probes_take_turns_over_keys_and_prefer_what_never_failed() {
    let mut lanes = lanes(Order::Key);
    lanes.offer(&[delivery(1, Some("a")), delivery(2, Some("b")), delivery(3, Some("c"))], NOW);
    let taken = take(&mut lanes);
    let due = NOW + Duration::from_secs(600);
    lanes.settled(&taken[0].0, 1, Outcome::Retry { due, spent: true });
    lanes.settled(&taken[1].0, 2, Outcome::Retry { due: due * 2, spent: true });
    lanes.settled(&taken[2].0, 3, Outcome::Back);
    let mut turns = Vec::new();
    for _ in 0..7 {
        let (key, row) = lanes.take_for_probe().unwrap();
        turns.push(row.number);
        lanes.settled(&key, row.number, Outcome::Turn);
    }
    assert_eq!(turns, [3, 1, 2, 3, 1, 2, 3]);
    // Once it is open, all that failed as probes may go at once.
    lanes.opened(NOW);
    assert_eq!(numbers(&take(&mut lanes)).len(), 3);
}

#[test]
fn only_the_first_of_each_key_could_have_been_in_flight() {
    let mut lanes = whole(Order::Key, 1_000, true);
    lanes.offer(&[delivery(1, Some("a")), delivery(2, Some("a")), delivery(3, Some("b"))], NOW);
    lanes.caught_up(3);
    lanes.offer(&[delivery(4, Some("c"))], NOW);
    let mut careful = Vec::new();
    while let Some((key, row)) = lanes.take(NOW) {
        careful.push((row.number, row.careful));
        lanes.settled(&key, row.number, GONE);
    }
    assert_eq!(careful, [(1, true), (3, true), (4, false), (2, false)]);
}

#[test]
fn what_was_not_offered_when_the_table_was_read_is_left_to_be_offered_in_its_turn() {
    let mut lanes = whole(Order::Key, 1_000, false);
    lanes.offer(&[delivery(1, Some("a"))], NOW);
    lanes.gain(0, false, false);
    let fetch = lanes.wants_refill().unwrap();
    // Number 2 of key b was given before and is committed later than 3, which is in the answer.
    let _ = lanes.fetched(&fetch, &[delivery(1, Some("a")), delivery(3, Some("b"))], true, NOW);
    assert_eq!(numbers(&take(&mut lanes)), [1]);
    let _ = lanes.offer_back(&[delivery(2, Some("b"))], NOW);
    lanes.offer(&[delivery(3, Some("b"))], NOW);
    let taken = take(&mut lanes);
    assert_eq!(numbers(&taken), [2]);
    lanes.settled(&taken[0].0, 2, GONE);
    let fetch = lanes.wants(&taken[0].0).unwrap();
    let _ = lanes.fetched(&fetch, &[delivery(3, Some("b"))], true, NOW);
    assert_eq!(numbers(&take(&mut lanes)), [3]);
}

#[test]
fn a_late_commit_does_not_go_before_what_is_still_to_be_read_of_its_key() {
    let mut lanes = whole(Order::Key, 1_000, false);
    lanes.offer(&[delivery(9, Some("z"))], NOW);
    assert_eq!(numbers(&take(&mut lanes)), [9]);
    lanes.gain(0, false, false);
    // Found late before the table was read again: 4 waits there before it.
    let _ = lanes.offer_back(&[delivery(5, Some("a"))], NOW);
    assert!(take(&mut lanes).is_empty());
    let fetch = lanes.wants_refill().unwrap();
    let _ = lanes.offer_back(&[delivery(6, Some("a"))], NOW);
    let rows = [delivery(4, Some("a")), delivery(5, Some("a")), delivery(9, Some("z"))];
    let _ = lanes.fetched(&fetch, &rows, true, NOW);
    let mut sent = Vec::new();
    for _ in 0..3 {
        let taken = take(&mut lanes);
        sent.extend(numbers(&taken));
        for (key, number) in &taken {
            lanes.settled(key, *number, GONE);
            if let Some(fetch) = lanes.wants(key) {
                let left: Vec<_> = [4, 5, 6]
                    .into_iter()
                    .filter(|left| !sent.contains(left))
                    .map(|left| delivery(left, Some("a")))
                    .collect();
                let _ = lanes.fetched(&fetch, &left, true, NOW);
            }
        }
    }
    assert_eq!(sent, [4, 5, 6]);
}

#[test]
fn a_late_commit_begins_the_reading_of_its_key_anew() {
    let mut lanes = lanes(Order::Key);
    let deep: Vec<_> = (1..=40).map(|number| delivery(number, Some("a"))).collect();
    lanes.offer(&deep, NOW);
    let mut fetch = None;
    for _ in 0..ROWS_PER_KEY {
        let (key, row) = lanes.take(NOW).unwrap();
        lanes.settled(&key, row.number, GONE);
        fetch = lanes.wants(&key);
    }
    // Read before number 36 was there; it is found late, and the answer counts no more.
    let (old, a) = (fetch.unwrap(), KeyId::Key("a".into()));
    assert_eq!(lanes.offer_back(&[delivery(36, Some("a"))], NOW).first(), Some(&a));
    let new = lanes.wants(&a).unwrap();
    let without: Vec<_> = deep[32..].iter().filter(|it| it.number != 36).cloned().collect();
    assert!(lanes.fetched(&old, &without, true, NOW).is_empty());
    assert!(take(&mut lanes).is_empty());
    let _ = lanes.fetched(&new, &deep[32..], true, NOW);
    for number in 33..=40 {
        let taken = take(&mut lanes);
        assert_eq!(numbers(&taken), [number]);
        lanes.settled(&taken[0].0, number, GONE);
    }
}

#[test]
fn a_late_commit_left_to_a_refill_is_read_by_it_though_nothing_after_it_was_offered_yet() {
    let mut lanes = whole(Order::Key, 1_000, false);
    lanes.offer(&[delivery(1, Some("z"))], NOW);
    assert_eq!(numbers(&take(&mut lanes)), [1]);
    lanes.gain(0, false, false);
    assert!(lanes.offer_back(&[delivery(15, Some("a"))], NOW).is_empty());
    let fetch = lanes.wants_refill().unwrap();
    let _ = lanes.fetched(&fetch, &[delivery(1, Some("z")), delivery(15, Some("a"))], true, NOW);
    lanes.offer(&[delivery(20, Some("a"))], NOW);
    assert_eq!(numbers(&take(&mut lanes)), [15]);
}
