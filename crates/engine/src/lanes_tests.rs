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

fn lanes(order: Order) -> Lanes {
    Lanes::new(order, 1_000, false)
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
    assert!(lanes.still_held(&[(Some("a".into()), 1)]).is_empty());
    // Replayed: it stands in the table again, before the others of its key.
    let freed = lanes.still_held(&[]);
    assert_eq!(freed, [KeyId::Key("a".into())]);
    let fetch = lanes.wants(&freed[0]).unwrap();
    let rows = [delivery(1, Some("a")), delivery(2, Some("a")), delivery(4, Some("a"))];
    lanes.fetched(&fetch, &rows, true, NOW);
    let taken = take(&mut lanes);
    assert_eq!(numbers(&taken), [1]);
    lanes.settled(&taken[0].0, 1, GONE);
    assert_eq!(numbers(&take(&mut lanes)), [2]);
}

#[test]
fn a_deep_key_is_read_on_from_the_table() {
    let mut lanes = lanes(Order::Key);
    let table: Vec<_> = (1..=100).map(|number| delivery(number, Some("a"))).collect();
    lanes.offer(&table, NOW);
    let mut sent = Vec::new();
    while let Some((key, row)) = lanes.take(NOW) {
        sent.push(row.number);
        lanes.settled(&key, row.number, GONE);
        if let Some(Fetch::Key { after, key }) = lanes.wants(&key) {
            let rest: Vec<_> =
                table.iter().filter(|row| row.number > after).take(ROWS_PER_KEY).cloned().collect();
            let complete = rest.len() < ROWS_PER_KEY;
            lanes.fetched(&Fetch::Key { key, after }, &rest, complete, NOW);
        }
    }
    assert_eq!(sent, (1..=100).collect::<Vec<_>>());
    assert_eq!((lanes.rows, lanes.queues.len()), (0, 0));
}

#[test]
fn what_does_not_fit_into_memory_is_read_again_and_nothing_is_lost_or_taken_twice() {
    let mut lanes = Lanes::new(Order::Key, 10, false);
    let keys = ["a", "b", "c", "d", "e"];
    let row = |number: Number| {
        let key = (number % 7 < 5).then(|| keys[(number % 5) as usize]);
        delivery(number, key)
    };
    let mut table: Vec<_> = (1..=200).map(row).collect();
    let mut sent: Vec<Number> = Vec::new();
    let mut tail = 0;
    let mut step = 0;
    while sent.len() < 200 {
        step += 1;
        assert!(step < 10_000, "stuck after {} with {lanes:?}", sent.len());
        // The tail read runs ahead of the sending.
        let fresh: Vec<_> = table.iter().filter(|r| r.number > tail).take(20).cloned().collect();
        if let Some(last) = fresh.last() {
            tail = last.number;
        }
        // A page is read before the tail moves on, and told after.
        let refill = lanes.wants_refill().map(|fetch| {
            let Fetch::Forgotten { after } = fetch else { panic!("{fetch:?}") };
            let page: Vec<_> = table.iter().filter(|r| r.number > after).take(5).cloned().collect();
            (fetch, page)
        });
        lanes.offer(&fresh, NOW);
        if let Some((fetch, page)) = refill {
            lanes.fetched(&fetch, &page, page.len() < 5, NOW);
        }
        // A freed key brings a page of its own.
        assert!(lanes.rows <= 10 + keys.len() * ROWS_PER_KEY, "{}", lanes.rows);
        if let Some((key, row)) = lanes.take(NOW) {
            // A row that is no longer in the table is noticed when it is loaded.
            if let Some(place) = table.iter().position(|r| r.number == row.number) {
                sent.push(row.number);
                table.remove(place);
            }
            lanes.settled(&key, row.number, GONE);
            if let Some(Fetch::Key { key, after }) = lanes.wants(&key) {
                let KeyId::Key(name) = &key else { panic!("{key:?}") };
                let page: Vec<_> = table
                    .iter()
                    .filter(|r| r.number > after && r.key.as_ref() == Some(name))
                    .take(ROWS_PER_KEY)
                    .cloned()
                    .collect();
                let complete = page.len() < ROWS_PER_KEY;
                lanes.fetched(&Fetch::Key { key, after }, &page, complete, NOW);
            }
        }
    }
    for key in keys {
        let of_key: Vec<_> =
            sent.iter().filter(|n| row(**n).key.as_deref() == Some(key)).copied().collect();
        assert!(of_key.is_sorted(), "{key}: {of_key:?}");
    }
    sent.sort_unstable();
    assert_eq!(sent, (1..=200).collect::<Vec<_>>());
}

#[test]
fn a_late_commit_takes_its_place_before_others_of_its_key() {
    let mut lanes = lanes(Order::Key);
    lanes.offer(&[delivery(2, Some("a")), delivery(5, Some("a"))], NOW);
    let taken = take(&mut lanes);
    assert_eq!(numbers(&taken), [2]);
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
    let mut lanes = Lanes::new(Order::Key, 1_000, true);
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
