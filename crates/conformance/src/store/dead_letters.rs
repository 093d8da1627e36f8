//! What was set aside, and what it holds.

use pabal_core::*;

use super::bench::*;

pub(super) async fn what_is_dead_is_not_read_until_replayed(bench: Bench) {
    let new = arrival("p/in", "1").to(&["q/out"]).key("k");
    let (delivery, id) = bench.bury(&new, Holds::Key).await;
    let q = name("q/out");
    let ways = [
        Which::Tail { after: 0 },
        Which::Destination { destination: &q, after: 0 },
        Which::Key { destination: &q, key: "k", after: 0 },
        Which::Numbers(&[delivery.number]),
    ];
    for which in ways {
        let found = bench.store().deliveries(which, 10).await.unwrap();
        assert!(found.is_empty(), "{which:?}");
    }
    let letter = bench.dead_letters().await.remove(0);
    assert_eq!(letter.kind, DeadKind::Delivery);
    assert_eq!(letter.endpoint, q);
    assert_eq!(letter.message, Some(delivery.message));
    assert_eq!(letter.origin_id.as_deref(), Some("1"));
    assert_eq!(letter.message_type, "thing.happened");
    assert_eq!(letter.key.as_deref(), Some("k"));
    assert_eq!(letter.number, Some(delivery.number));
    assert_eq!(letter.reason, DeadReason::Refused);
    assert_eq!(letter.cause, "HTTP 404");
    assert_eq!(letter.detail.as_deref(), Some("no such place"));
    assert_eq!((letter.round, letter.holds), (0, Holds::Key));
    let states = bench.states(delivery.message).await;
    assert_eq!(states["q/out"], DeliveryState::Dead);

    bench.store().replay(&[id], &act("replay")).await.unwrap();
    for which in ways {
        let found = bench.store().deliveries(which, 10).await.unwrap();
        assert_eq!(found.len(), 1, "{which:?}");
    }
}

pub(super) async fn a_held_key_is_reported_until_replayed_or_discarded(bench: Bench) {
    let keyed = |id: &str, key: &str| arrival("p/in", id).to(&["q/out"]).key(key);
    let (first, first_id) = bench.bury(&keyed("1", "a"), Holds::Key).await;
    let (_, second_id) = bench.bury(&keyed("2", "a"), Holds::Key).await;
    let (third, third_id) = bench.bury(&keyed("3", "b"), Holds::Key).await;
    bench.bury(&keyed("4", "c"), Holds::Nothing).await;
    let held = async || {
        let held = bench.store().held(&name("q/out")).await.unwrap();
        let mut held: Vec<_> =
            held.into_iter().map(|(key, number)| (key.unwrap(), number)).collect();
        held.sort();
        held
    };
    let (a, b) = (("a".to_owned(), first.number), ("b".to_owned(), third.number));
    assert_eq!(held().await, [a, b.clone()], "the lowest number of each");
    assert!(bench.store().held(&name("q/else")).await.unwrap().is_empty());

    bench.store().replay(&[first_id], &act("replay")).await.unwrap();
    assert_eq!(held().await.len(), 2, "the second one still holds it");
    bench.store().discard(&[second_id], &act("discard")).await.unwrap();
    assert_eq!(held().await, [b]);
    bench.store().discard(&[third_id], &act("discard")).await.unwrap();
    assert_eq!(held().await, []);
}

pub(super) async fn a_held_destination_is_reported_without_a_key(bench: Bench) {
    let new = arrival("p/in", "1").to(&["q/out"]).key("k");
    let (delivery, id) = bench.bury(&new, Holds::Destination).await;
    let held = bench.store().held(&name("q/out")).await.unwrap();
    assert_eq!(held, [(None, delivery.number)]);
    bench.store().replay(&[id], &act("replay")).await.unwrap();
    assert!(bench.store().held(&name("q/out")).await.unwrap().is_empty());
}

pub(super) async fn a_dead_letter_without_a_key_holds_nothing(bench: Bench) {
    bench.bury(&arrival("p/in", "1").to(&["q/out"]), Holds::Key).await;
    bench.accept(&arrival("p/in", "2").to(&["q/out"])).await;
    assert!(bench.store().held(&name("q/out")).await.unwrap().is_empty());
    assert_eq!(bench.dead_letters().await[0].holds, Holds::Nothing);
    let counts = bench.store().counts().await.unwrap();
    assert_eq!((counts[0].held, counts[0].keys_held), (0, 0));
}

pub(super) async fn dead_letters_are_narrowed_and_grouped(bench: Bench) {
    for n in 0..3 {
        let new = arrival("p/in", &n.to_string()).to(&["q/out"]).key("k");
        bench.bury(&new, Holds::Key).await;
        bench.pass(10).await;
    }
    bench.bury(&arrival("p/in", "8").to(&["q/else"]), Holds::Nothing).await;
    bench.set_aside(&arrival("p/in", "9"), DeadReason::Invalid).await;
    let all = bench.dead_letters().await;
    assert_eq!(all.len(), 5);
    assert!(all.is_sorted_by(|a, b| a.id < b.id));

    let any = DeadLetterQuery::default;
    let queries = [
        (any(), vec![0, 1, 2, 3, 4]),
        (DeadLetterQuery { ids: vec![all[4].id, all[1].id, 999_999], ..any() }, vec![1, 4]),
        (DeadLetterQuery { kind: Some(DeadKind::Source), ..any() }, vec![4]),
        (
            DeadLetterQuery { endpoint: Some(name("q/out")), after: all[0].id, limit: 1, ..any() },
            vec![1],
        ),
        (DeadLetterQuery { reason: Some(DeadReason::Invalid), ..any() }, vec![4]),
        (
            DeadLetterQuery {
                cause: Some("HTTP 404".to_owned()),
                endpoint: Some(name("q/else")),
                ..any()
            },
            vec![3],
        ),
        (DeadLetterQuery { message: all[2].message, ..any() }, vec![2]),
    ];
    for (query, expected) in queries {
        let found = bench.store().dead_letters(&query).await.unwrap();
        let expected: Vec<_> = expected.into_iter().map(|n: usize| all[n].clone()).collect();
        assert_eq!(found, expected, "{query:?}");
    }

    let mut groups = bench.store().dead_letter_groups(&any()).await.unwrap();
    groups.sort_by(|a, b| a.endpoint.cmp(&b.endpoint));
    let short: Vec<_> =
        groups.iter().map(|it| (it.endpoint.as_str(), it.kind, it.count, it.holding)).collect();
    assert_eq!(
        short,
        [
            ("p/in", DeadKind::Source, 1, 0),
            ("q/else", DeadKind::Delivery, 1, 0),
            ("q/out", DeadKind::Delivery, 3, 3),
        ]
    );
    let group = &groups[2];
    assert_eq!((group.oldest, group.newest), (all[0].at, all[2].at));
    assert_eq!(all[2].at.as_second() - all[0].at.as_second(), 20);
    let query = DeadLetterQuery { kind: Some(DeadKind::Source), ..any() };
    let groups = bench.store().dead_letter_groups(&query).await.unwrap();
    assert_eq!(groups.len(), 1);
}

pub(super) async fn the_arrival_behind_a_dead_letter_is_kept_whole(bench: Bench) {
    let mut bad = arrival("p/in", "1").key("k").body(&b"\0\xff"[..]);
    bad.message.headers = [("비고", "값")].into_iter().collect();
    bench.set_aside(&bad, DeadReason::Unread).await;
    let letter = bench.dead_letters().await.remove(0);
    assert_eq!(letter.kind, DeadKind::Source);
    assert_eq!(letter.endpoint, name("p/in"));
    assert_eq!((letter.message, letter.number), (None, None));
    assert_eq!(letter.key.as_deref(), Some("k"));
    assert_eq!(letter.reason, DeadReason::Unread);
    assert_eq!(letter.cause, "cannot be read");
    let kept = bench.store().dead_message(letter.id).await.unwrap();
    assert_same(&kept.unwrap(), &bad.message);

    let new = arrival("p/in", "2").to(&["q/out"]);
    let (_, id) = bench.bury(&new, Holds::Nothing).await;
    let kept = bench.store().dead_message(id).await.unwrap();
    assert_same(&kept.unwrap(), &new.message);
    let none = bench.store().dead_message(999_999).await.unwrap();
    assert_eq!(none.map(|message| message.id), None);
}
