//! The operators' verbs on dead letters and on messages nobody takes.

use std::collections::HashMap;

use pabal_core::*;

use super::bench::*;

pub(super) async fn a_replay_pressed_twice_queues_once_with_the_old_number(bench: Bench) {
    let new = arrival("p/in", "1").to(&["q/out"]).key("k");
    let delivery = bench.deliver(&new).await;
    bench.settle(&delivery, retry(0, true)).await;
    bench.settle(&delivery, dead(Holds::Key)).await;
    let later = bench.deliver(&arrival("p/in", "2").to(&["q/out"]).key("k")).await;
    let letter = bench.dead_letters().await.remove(0);
    bench.pass(100).await;

    let replay = async || bench.store().replay(&[letter.id], &act("replay")).await.unwrap();
    assert_eq!(replay().await, std::slice::from_ref(&letter));
    assert_eq!(replay().await, [], "pressed again");
    let waiting = bench.waiting().await;
    assert_eq!(waiting.len(), 2);
    let back = &waiting[0];
    assert_eq!(back.number, delivery.number, "at its old place");
    assert!(back.number < later.number);
    assert_eq!((back.round, back.attempts, back.started), (1, 0, 0));
    assert!(back.due_in.is_zero());
    assert_eq!(back.age.as_secs(), 100, "since it was accepted");
    assert_eq!((&back.key, back.slot), (&delivery.key, delivery.slot));
    assert!(bench.dead_letters().await.is_empty());
    let requeued = HashMap::from([(name("q/out"), vec![delivery.number])]);
    assert_eq!(bench.requests(0).await, [Request::Requeued(requeued)]);
    let log = bench.story(delivery.message).await.log;
    assert_eq!(log.last().unwrap().outcome, "replayed");

    // The old round is over for those who still think they hold it.
    assert_eq!(bench.settle(&delivery, retry(1, true)).await, Settled::NotThere);
    assert_eq!(bench.settle(back, Fate::Delivered).await, Settled::Done);
}

pub(super) async fn two_operators_replaying_the_same_hundred_queue_each_once(bench: Bench) {
    let all: Vec<_> = (0..100).map(|n| arrival("p/in", &n.to_string()).to(&["q/out"])).collect();
    bench.accept_all(&all).await;
    let before = bench.waiting().await;
    let group: Vec<_> =
        before.iter().map(|delivery| settlement(delivery, dead(Holds::Nothing))).collect();
    bench.store().settle(bench.epoch, &group).await.unwrap();
    let ids: Vec<_> = bench.dead_letters().await.iter().map(|it| it.id).collect();

    let (store, act) = (bench.store(), act("replay"));
    let (one, two) = tokio::join!(store.replay(&ids, &act), store.replay(&ids, &act));
    assert_eq!(one.unwrap().len() + two.unwrap().len(), 100);
    let numbers: Vec<_> = before.iter().map(|it| it.number).collect();
    assert_eq!(bench.numbers().await, numbers);
    assert!(bench.waiting().await.iter().all(|it| it.round == 1));
}

pub(super) async fn only_deliveries_are_replayed_and_everything_can_be_discarded(bench: Bench) {
    let fault = NewMessage {
        faults: vec![(name("q/asked"), "two values".to_owned())],
        ..arrival("p/in", "1")
    };
    bench.accept(&fault).await;
    bench.set_aside(&arrival("p/in", "2"), DeadReason::Invalid).await;
    let buried = arrival("p/in", "3").to(&["q/out"]);
    bench.bury(&buried, Holds::Nothing).await;
    let ids: Vec<_> = bench.dead_letters().await.iter().map(|it| it.id).collect();
    let (store, act) = (bench.store(), act("discard"));
    let replayed = store.replay(&ids[..2], &act).await.unwrap();
    assert!(replayed.is_empty(), "not for a store to replay");
    assert_eq!(bench.dead_letters().await.len(), 3);

    assert_eq!(store.discard(&ids, &act).await.unwrap().len(), 3);
    assert_eq!(store.discard(&ids, &act).await.unwrap(), [], "pressed again");
    assert!(bench.dead_letters().await.is_empty());
    assert!(bench.numbers().await.is_empty());
    let states = bench.states(buried.message.id).await;
    assert_eq!(states["q/out"], DeliveryState::Discarded);
    let log = bench.story(buried.message.id).await.log;
    assert_eq!(log.last().unwrap().outcome, "discarded");
    let freed = Request::Freed(vec![name("q/out")]);
    assert_eq!(bench.requests(0).await, [freed]);
    for id in ids {
        let gone = store.dead_message(id).await.unwrap();
        assert_eq!(gone.map(|message| message.id), None);
    }
}

fn routing(new: &NewMessage, destinations: &[&str], dead_letter: Option<i64>) -> Routing {
    Routing {
        faults: Vec::new(),
        message: new.message.id,
        destinations: destinations.iter().map(|it| name(it)).collect(),
        dead_letter,
    }
}

pub(super) async fn routing_adds_each_destination_once(bench: Bench) {
    let lost = arrival("p/in", "1").key("k");
    let taken = arrival("p/in", "2").to(&["q/waits", "q/has", "q/dead", "q/given-up"]);
    bench.accept_all(&[lost.clone(), taken.clone()]).await;
    for delivery in bench.waiting().await {
        let fate = match delivery.destination.name() {
            "waits" => continue,
            "has" => Fate::Delivered,
            _ => dead(Holds::Nothing),
        };
        bench.settle(&delivery, fate).await;
    }
    let query =
        DeadLetterQuery { endpoint: Some(name("q/given-up")), ..DeadLetterQuery::default() };
    let (store, act) = (bench.store(), act("reroute"));
    let given_up = store.dead_letters(&query).await.unwrap()[0].id;
    store.discard(&[given_up], &act).await.unwrap();

    assert_eq!(store.unrouted().await.unwrap(), 1);
    let new = ["q/waits", "q/has", "q/dead", "q/given-up", "q/new", "q/new"];
    let routings = [
        routing(&lost, &["q/new"], None),
        routing(&taken, &new, None),
        routing(&arrival("p/in", "unknown"), &["q/new"], None),
    ];
    assert_eq!(store.route(&routings, &act).await.unwrap(), 2);
    assert_eq!(store.route(&routings, &act).await.unwrap(), 0, "pressed again");
    assert_eq!(store.unrouted().await.unwrap(), 0);
    let waiting = bench.waiting().await;
    assert!(waiting.is_sorted_by(|a, b| a.number < b.number));
    let waiting: Vec<_> = waiting
        .iter()
        .map(|it| (it.message, it.destination.as_str(), it.slot, it.key.as_deref()))
        .collect();
    let (lost, taken) = (&lost.message, &taken.message);
    assert_eq!(
        waiting,
        [
            (taken.id, "q/waits", taken.slot(), None),
            (lost.id, "q/new", lost.slot(), Some("k")),
            (taken.id, "q/new", taken.slot(), None),
        ]
    );
    let states = bench.states(taken.id).await;
    let expected = [
        ("q/waits", DeliveryState::Waiting),
        ("q/has", DeliveryState::Delivered),
        ("q/dead", DeliveryState::Dead),
        ("q/given-up", DeliveryState::Discarded),
        ("q/new", DeliveryState::Waiting),
    ];
    assert_eq!(states, expected.map(|(to, state)| (to.to_owned(), state)).into());
}

pub(super) async fn a_routing_question_is_answered_once(bench: Bench) {
    let mut new = arrival("p/in", "1");
    new.faults =
        vec![(name("q/yes"), "two values".to_owned()), (name("q/no"), "two values".to_owned())];
    let mut nobody = arrival("p/in", "2");
    nobody.faults = vec![(name("q/no"), "two values".to_owned())];
    bench.accept_all(&[new.clone(), nobody.clone()]).await;
    let letters = bench.dead_letters().await;
    let (yes, no, other) = (letters[0].id, letters[1].id, letters[2].id);
    let (store, act) = (bench.store(), act("replay"));
    let answer = [routing(&new, &["q/yes"], Some(yes))];
    assert_eq!(store.route(&answer, &act).await.unwrap(), 1);
    assert_eq!(store.route(&answer, &act).await.unwrap(), 0, "pressed again");
    let answers = [routing(&new, &[], Some(no)), routing(&nobody, &[], Some(other))];
    assert_eq!(store.route(&answers, &act).await.unwrap(), 0);
    assert!(bench.dead_letters().await.is_empty());
    assert_eq!(bench.numbers().await.len(), 1);
    // The answer "no" from everybody makes it a message nobody takes.
    assert_eq!(store.unrouted().await.unwrap(), 1);
}
