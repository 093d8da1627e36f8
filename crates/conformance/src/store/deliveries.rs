//! What may go out next, and what became of it.

use std::time::Duration;

use pabal_core::*;

use super::bench::*;

pub(super) async fn deliveries_are_read_by_tail_destination_key_and_number(bench: Bench) {
    let all: Vec<_> = (0..9)
        .map(|n| {
            let new = arrival("p/in", &n.to_string()).to(&["q/a", "q/b"]);
            match n % 3 {
                0 => new,
                rest => new.key(["", "k1", "k2"][rest]),
            }
        })
        .collect();
    bench.accept_all(&all).await;
    bench.pass(3).await;
    let waiting = bench.waiting().await;
    assert_eq!(waiting.len(), 18);
    for delivery in &waiting {
        let new = all.iter().find(|new| new.message.id == delivery.message);
        let message = &new.unwrap().message;
        assert_eq!(delivery.key.as_deref(), message.key.as_deref());
        assert_eq!(delivery.slot, message.slot());
        assert_eq!((delivery.attempts, delivery.round, delivery.started), (0, 0, 0));
        assert_eq!(delivery.due_in, Duration::ZERO);
        assert_eq!(delivery.age, Duration::from_secs(3));
    }

    let read = async |which: Which<'_>, limit| {
        let found = bench.store().deliveries(which, limit).await.unwrap();
        found.into_iter().map(|it| it.number).collect::<Vec<_>>()
    };
    let those = |wanted: &dyn Fn(&Delivery) -> bool| -> Vec<Number> {
        let found = waiting.iter().filter(|it| wanted(it));
        found.map(|it| it.number).collect()
    };
    let after = waiting[6].number;
    let (a, k1) = (name("q/a"), "k1");
    assert_eq!(read(Which::Tail { after }, 100).await, those(&|it| it.number > after));
    assert_eq!(read(Which::Tail { after: 0 }, 5).await, those(&|_| true)[..5]);
    let destination = &a;
    assert_eq!(
        read(Which::Destination { destination, after }, 100).await,
        those(&|it| it.destination == a && it.number > after)
    );
    let which = Which::Key { destination, key: k1, after: 0 };
    let of_key = those(&|it| it.destination == a && it.key.as_deref() == Some(k1));
    assert_eq!(read(which, 100).await, of_key);
    assert_eq!(read(which, 2).await, of_key[..2]);
    let mut these = vec![waiting[11].number, waiting[2].number, 999_999];
    let found = read(Which::Numbers(&these), 100).await;
    these.truncate(2);
    these.sort_unstable();
    assert_eq!(found, these);
    assert!(read(Which::Numbers(&[]), 100).await.is_empty());
}

pub(super) async fn a_retry_is_not_due_before_its_time(bench: Bench) {
    let delivery = bench.deliver(&arrival("p/in", "1").to(&["q/out"])).await;
    assert_eq!(delivery.due_in, Duration::ZERO);
    bench.settle(&delivery, retry(60, true)).await;
    let due_in = async || bench.waiting().await[0].due_in;
    assert_eq!(due_in().await, Duration::from_secs(60));
    bench.pass(59).await;
    assert_eq!(due_in().await, Duration::from_secs(1));
    bench.pass(1).await;
    assert_eq!(due_in().await, Duration::ZERO);
    assert_eq!(bench.waiting().await[0].age, Duration::from_secs(60));
}

pub(super) async fn only_a_spent_attempt_counts(bench: Bench) {
    let delivery = bench.deliver(&arrival("p/in", "1").to(&["q/out"])).await;
    for (spend, attempts) in [(true, 1), (false, 1), (true, 2)] {
        assert_eq!(bench.settle(&delivery, retry(0, spend)).await, Settled::Done);
        assert_eq!(bench.waiting().await[0].attempts, attempts);
    }
    assert_eq!(bench.waiting().await[0].number, delivery.number);
}

pub(super) async fn a_settle_names_number_message_destination_and_round(bench: Bench) {
    let delivery = bench.deliver(&arrival("p/in", "1").to(&["q/out"])).await;
    let other = bench.deliver(&arrival("p/in", "2").to(&["q/out"])).await;
    let wrong = [
        Delivery { number: other.number, ..delivery.clone() },
        Delivery { number: other.number + 1, ..delivery.clone() },
        Delivery { message: other.message, ..delivery.clone() },
        Delivery { destination: name("q/else"), ..delivery.clone() },
        Delivery { round: 1, ..delivery.clone() },
    ];
    for wrong in &wrong {
        for fate in [Fate::Delivered, retry(1, true), dead(Holds::Key)] {
            assert_eq!(bench.settle(wrong, fate).await, Settled::NotThere, "{wrong:?}");
        }
    }
    assert_eq!(bench.waiting().await, [delivery.clone(), other]);
    assert!(bench.dead_letters().await.is_empty());
    assert!(bench.story(delivery.message).await.log.is_empty());

    assert_eq!(bench.settle(&delivery, Fate::Delivered).await, Settled::Done);
    for fate in [Fate::Delivered, retry(1, true), dead(Holds::Key)] {
        assert_eq!(bench.settle(&delivery, fate).await, Settled::NotThere, "settled before");
    }
    assert_eq!(bench.story(delivery.message).await.log.len(), 1);
}

pub(super) async fn a_large_group_gets_one_answer_each(bench: Bench) {
    let all: Vec<_> = (0..700).map(|n| arrival("p/in", &n.to_string()).to(&["q/out"])).collect();
    bench.accept_all(&all).await;
    let waiting = bench.waiting().await;
    let mut group: Vec<_> = waiting
        .iter()
        .enumerate()
        .map(|(n, delivery)| {
            let fate = match n % 3 {
                0 => Fate::Delivered,
                1 => retry(5, true),
                _ => dead(Holds::Nothing),
            };
            settlement(delivery, fate)
        })
        .collect();
    group[42].round = 9;
    // The same delivery twice in a group: the first one counts.
    group.push(settlement(&waiting[1], Fate::Delivered));
    let answers = bench.store().settle(bench.epoch, &group).await.unwrap();
    for (n, answer) in answers.iter().enumerate() {
        let missed = n == 42 || n == 700;
        assert_eq!(*answer == Settled::NotThere, missed, "number {n} of the group");
    }
    let left = bench.waiting().await;
    assert_eq!(left.len(), 233 + 1, "retries and the one that missed");
    assert_eq!(left.iter().filter(|it| it.attempts == 1).count(), 233);
    assert_eq!(bench.dead_letters().await.len(), 233);
    assert!(bench.store().settle(bench.epoch, &[]).await.unwrap().is_empty());
}

pub(super) async fn a_stale_delivery_is_told_as_such(bench: Bench) {
    let delivery = bench.deliver(&arrival("p/in", "1").to(&["q/out"]).key("k")).await;
    let mut settlement = settlement(&delivery, Fate::Delivered);
    settlement.attempt.as_mut().unwrap().outcome = "stale";
    let answers = bench.store().settle(bench.epoch, &[settlement]).await.unwrap();
    assert_eq!(answers, [Settled::Done]);
    assert_eq!(bench.states(delivery.message).await["q/out"], DeliveryState::Stale);
    assert_eq!(bench.story(delivery.message).await.log[0].outcome, "stale");
    assert!(bench.numbers().await.is_empty());
    // It was judged: nobody is asked again.
    let routing = Routing {
        message: delivery.message,
        destinations: vec![name("q/out")],
        faults: Vec::new(),
        dead_letter: None,
    };
    assert_eq!(bench.store().route(&[routing], &act("reroute")).await.unwrap(), 0);
}

pub(super) async fn a_late_success_is_recorded(bench: Bench) {
    let new = arrival("p/in", "1").to(&["q/out"]).key("k");
    let (delivery, _) = bench.bury(&new, Holds::Key).await;
    assert_eq!(bench.settle(&delivery, retry(1, true)).await, Settled::NotThere);
    let stranger = [settlement(&delivery, Fate::Delivered)];
    let answers = bench.store().settle(Epoch(77), &stranger).await.unwrap();
    assert_eq!(answers, [Settled::Done]);

    assert!(bench.dead_letters().await.is_empty());
    assert!(bench.store().held(&name("q/out")).await.unwrap().is_empty());
    assert!(bench.numbers().await.is_empty());
    let states = bench.states(delivery.message).await;
    assert_eq!(states["q/out"], DeliveryState::Delivered);
    let freed = Request::Freed(vec![name("q/out")]);
    assert_eq!(bench.requests(0).await, [freed], "the holder learns of it");
    assert_eq!(bench.settle(&delivery, Fate::Delivered).await, Settled::NotThere);
}

pub(super) async fn a_late_success_of_an_earlier_round_changes_nothing(bench: Bench) {
    let (delivery, id) = bench.bury(&arrival("p/in", "1").to(&["q/out"]), Holds::Nothing).await;
    bench.store().replay(&[id], &act("replay")).await.unwrap();
    assert_eq!(bench.settle(&delivery, Fate::Delivered).await, Settled::NotThere);
    let waiting = bench.waiting().await;
    assert_eq!((waiting.len(), waiting[0].round), (1, 1));
}

pub(super) async fn pinned_bytes_survive_retry_death_and_replay(bench: Bench) {
    let pin = Written {
        body: Bytes::from_static(b"\xb0\xa1\0pinned"),
        content_type: Some("text/plain; charset=cp949".to_owned()),
    };
    let with =
        |pin: &Written| Fate::Retry { after: Duration::ZERO, spend: true, pin: Some(pin.clone()) };
    let mut delivery = bench.deliver(&arrival("p/in", "1").to(&["q/out"])).await;
    let written = async |number| {
        let which = [(number, delivery.message)];
        bench.store().load(&which).await.unwrap().remove(0)?.written
    };
    bench.settle(&delivery, with(&pin)).await;
    assert_eq!(written(delivery.number).await, Some(pin.clone()));
    let later = Written { body: Bytes::from_static(b"another form"), content_type: None };
    bench.settle(&delivery, with(&later)).await;
    assert_eq!(written(delivery.number).await, Some(pin.clone()), "the first one stays");

    bench.settle(&delivery, dead(Holds::Nothing)).await;
    let id = bench.dead_letters().await[0].id;
    bench.store().replay(&[id], &act("replay")).await.unwrap();
    assert_eq!(written(delivery.number).await, Some(pin));
    delivery.round = 1;
    assert_eq!(bench.settle(&delivery, Fate::Delivered).await, Settled::Done);
    assert_eq!(written(delivery.number).await, None, "after the receipt");

    let delivery = bench.deliver(&arrival("p/in", "2").to(&["q/out"])).await;
    let fate = Fate::Dead {
        reason: DeadReason::Exhausted,
        cause: "HTTP 500".into(),
        holds: Holds::Nothing,
        pin: Some(later.clone()),
    };
    bench.settle(&delivery, fate).await;
    let id = bench.dead_letters().await[0].id;
    bench.store().replay(&[id], &act("replay")).await.unwrap();
    let which = [(delivery.number, delivery.message)];
    let loaded = bench.store().load(&which).await.unwrap().remove(0).unwrap();
    assert_eq!(loaded.written, Some(later), "pinned by the last attempt");
}

pub(super) async fn sends_noted_before_they_began_are_counted_until_settled(bench: Bench) {
    let delivery = bench.deliver(&arrival("p/in", "1").to(&["q/out"])).await;
    let other = bench.deliver(&arrival("p/in", "2").to(&["q/out"])).await;
    for started in 1..=2 {
        let which = [(delivery.number, started), (999_999, 1)];
        bench.store().mark_started(bench.epoch, &which).await.unwrap();
        assert_eq!(bench.waiting().await[0].started, started);
    }
    bench.settle(&delivery, retry(0, true)).await;
    let waiting = bench.waiting().await;
    assert_eq!((waiting[0].started, waiting[0].attempts), (0, 1));
    assert_eq!(waiting[1], other);
}

pub(super) async fn a_settled_delivery_and_a_message_that_is_gone_load_as_nothing(bench: Bench) {
    let first = bench.deliver(&arrival("p/in", "1").to(&["q/out"])).await;
    let new = arrival("p/in", "2").to(&["q/a", "q/b"]);
    bench.accept(&new).await;
    let both: Vec<_> = bench.waiting().await.split_off(1);
    let unknown = arrival("p/in", "3").message.id;
    // Any order, and one message for two destinations.
    let which = [
        (both[1].number, both[1].message),
        (999_999, unknown),
        (both[0].number, both[0].message),
        (first.number, first.message),
    ];
    let loaded = bench.store().load(&which).await.unwrap();
    let ids: Vec<_> = loaded.iter().map(|it| it.as_ref().map(|it| it.message.id)).collect();
    let shared = Some(new.message.id);
    assert_eq!(ids, [shared, None, shared, Some(first.message)]);
    // An old reading of a settled delivery is noticed, though its message is still there.
    bench.settle(&first, Fate::Delivered).await;
    assert!(bench.store().load(&which[3..]).await.unwrap()[0].is_none());
    assert_eq!(bench.store().message_content(unknown).await.unwrap().map(|it| it.id), None);
    assert_eq!(bench.store().message(unknown).await.unwrap(), None);
}
