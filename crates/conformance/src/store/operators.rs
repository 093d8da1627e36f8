//! What operators see and set.

use pabal_core::*;

use super::bench::*;

pub(super) async fn counts_are_right(bench: Bench) {
    let start = bench.deliver(&arrival("p/in", "0").to(&["q/out"]).key("free")).await;
    bench.pass(10).await;
    let keyed = |id: &str, key: &str| arrival("p/in", id).to(&["q/out"]).key(key);
    let ahead = bench.deliver(&keyed("0-a", "a")).await;
    bench.bury(&keyed("1", "a"), Holds::Key).await;
    let behind = [keyed("2", "a"), keyed("3", "a"), keyed("4", "free")];
    bench.accept_all(&behind).await;
    bench.bury(&keyed("5", "b"), Holds::Key).await;
    bench.bury(&keyed("6", "c"), Holds::Nothing).await;
    bench.bury(&arrival("p/in", "7").to(&["q/all"]), Holds::Destination).await;
    bench
        .accept_all(&[arrival("p/in", "8").to(&["q/all"]), arrival("p/in", "9").to(&["q/idle"])])
        .await;
    bench.set_aside(&arrival("p/in", "10"), DeadReason::Invalid).await;

    let counts = async |endpoint: &str| {
        let all = bench.store().counts().await.unwrap();
        all.into_iter().find(|it| it.endpoint == name(endpoint))
    };
    let numbers = async |endpoint| {
        let it = counts(endpoint).await.unwrap();
        (it.waiting, it.held, it.keys_held, it.dead)
    };
    assert_eq!(numbers("q/out").await, (5, 2, 2, 3));
    bench.settle(&ahead, Fate::Delivered).await;
    assert_eq!(numbers("q/out").await, (4, 2, 2, 3));
    assert_eq!(numbers("q/all").await, (1, 1, 0, 1));
    assert_eq!(numbers("q/idle").await, (1, 0, 0, 0));
    assert_eq!(numbers("p/in").await, (0, 0, 0, 1));
    assert_eq!(counts("q/none").await, None);

    // The oldest that nothing holds.
    let oldest = async |endpoint| counts(endpoint).await.unwrap().oldest;
    let first = oldest("q/out").await.unwrap();
    let idle = oldest("q/idle").await.unwrap();
    assert_eq!(idle.as_second() - first.as_second(), 10);
    assert_eq!(oldest("q/all").await, None);
    bench.settle(&start, Fate::Delivered).await;
    assert_eq!(oldest("q/out").await, Some(idle), "what is held is not waited for");
}

pub(super) async fn messages_are_found(bench: Bench) {
    for n in 0..6 {
        let source = if n % 2 == 0 { "p/even" } else { "p/odd" };
        let mut new = arrival(source, &format!("no-{n}")).to(&["q/out"]);
        new.message.key = (n < 3).then(|| "k".to_owned());
        new.message.correlation = (n == 4).then(|| "case-7".to_owned());
        if n == 5 {
            new.message.message_type = "other".to_owned();
        }
        bench.accept(&new).await;
        bench.pass(60).await;
    }
    let find = async |query: MessageQuery| bench.store().messages(&query).await.unwrap();
    let any = MessageQuery::default;
    let all = find(any()).await;
    let numbers = |found: &[MessageSummary]| -> Vec<String> {
        found.iter().map(|it| it.origin_id.replace("no-", "")).collect()
    };
    assert_eq!(numbers(&all), ["5", "4", "3", "2", "1", "0"], "newest first");
    assert_eq!(all[0].deliveries.len(), 1);
    assert_eq!(all[0].size, "body of no-5".len() as u64);
    assert_eq!(all[0].received.as_second() - all[5].received.as_second(), 300);

    let by_id = |id: String| MessageQuery { id: Some(id), ..any() };
    let at = |n: usize| Some(all[5 - n].received);
    let queries = [
        (by_id(all[2].id.to_string()), "3"),
        (by_id("no-1".to_owned()), "1"),
        (by_id("case-7".to_owned()), "4"),
        (by_id("nothing".to_owned()), ""),
        (MessageQuery { key: Some("k".to_owned()), ..any() }, "2 1 0"),
        (MessageQuery { message_type: Some("other".to_owned()), ..any() }, "5"),
        (MessageQuery { source: Some(name("p/even")), ..any() }, "4 2 0"),
        (MessageQuery { since: at(2), until: at(4), ..any() }, "3 2"),
        (MessageQuery { since: at(5), ..any() }, "5"),
        (MessageQuery { until: at(0), ..any() }, ""),
        (MessageQuery { after: Some(all[1].sequence), limit: 2, ..any() }, "3 2"),
    ];
    for (query, expected) in queries {
        let found = find(query.clone()).await;
        assert_eq!(numbers(&found).join(" "), expected, "{query:?}");
    }
}

pub(super) async fn a_message_tells_its_story(bench: Bench) {
    let mut new = arrival("p/in", "1").to(&["q/b", "q/a"]);
    new.message.version = Some(3);
    new.message.schema = Some("urn:x".to_owned());
    new.message.content_type = Some("text/plain".to_owned());
    bench.accept(&new).await;
    bench.accept(&new).await;
    let both = bench.waiting().await;
    bench.settle(&both[0], retry(30, true)).await;
    bench.pass(1).await;
    bench.settle(&both[1], dead(Holds::Nothing)).await;

    let story = bench.story(new.message.id).await;
    assert_eq!(story.duplicates, 1);
    assert_eq!((story.version, story.schema.as_deref()), (Some(3), Some("urn:x")));
    assert_eq!(story.content_type.as_deref(), Some("text/plain"));
    let deliveries = &story.summary.deliveries;
    let short: Vec<_> =
        deliveries.iter().map(|it| (it.destination.as_str(), it.state, it.attempts)).collect();
    assert_eq!(short, [("q/a", DeliveryState::Dead, 1), ("q/b", DeliveryState::Waiting, 1)]);
    let due = deliveries[1].due.unwrap();
    assert_eq!(due.as_second() - story.summary.received.as_second(), 30);
    assert_eq!(story.dead_letters.len(), 1);
    let [first, second] = &story.log[..] else { panic!("{:?}", story.log) };
    assert_eq!(first.destination, name("q/b"));
    assert_eq!(first.outcome, "transient");
    assert_eq!((first.duration_ms, first.status, first.size), (12, Some(200), Some(42)));
    assert_eq!(first.cause.as_deref(), Some("HTTP 503: busy"));
    assert_eq!(first.answer.as_deref(), Some("thanks"));
    assert_eq!(first.sha256.as_deref(), Some(&*"07".repeat(32)));
    assert_eq!(second.at.as_second() - first.at.as_second(), 1);
    assert_eq!(second.outcome, "permanent");
}

pub(super) async fn requests_are_read_after_a_number(bench: Bench) {
    assert!(bench.store().requests(0).await.unwrap().is_empty());
    for endpoint in ["q/a", "q/b"] {
        let change = LinkChange::Paused(None);
        let store = bench.store();
        store.set_link_state(&name(endpoint), change, Some(&act("resume"))).await.unwrap();
    }
    let all = bench.store().requests(0).await.unwrap();
    let [(first, Request::Link(a)), (second, Request::Link(b))] = &all[..] else {
        panic!("{all:?}")
    };
    assert_eq!((a.as_str(), b.as_str()), ("q/a", "q/b"));
    assert!(first < second);
    assert_eq!(bench.requests(*first).await, [Request::Link(b.clone())]);
    assert!(bench.requests(*second).await.is_empty());
    // What the holder of a lane found is told to the others.
    let own = LinkChange::Tripped(None);
    bench.store().set_link_state(&name("q/c"), own, None).await.unwrap();
    assert_eq!(bench.requests(*second).await, [Request::Health(name("q/c"))]);
}

pub(super) async fn link_state_outlives_reopening(mut bench: Bench) {
    let (out, other) = (name("q/out"), name("q/zz-other"));
    let at: Timestamp = "2026-11-30T09:00:00.123456Z".parse().unwrap();
    let paused = Paused { by: "kim".to_owned(), why: Some("night".to_owned()), at };
    let tripped = Tripped { cause: "HTTP 503".to_owned(), at, probes: 3 };
    let set = async |store: &dyn Store, endpoint, change| {
        let by = act("pause");
        store.set_link_state(endpoint, change, Some(&by)).await.unwrap();
    };
    let store = bench.store();
    set(&*store, &out, LinkChange::Paused(Some(paused.clone()))).await;
    set(&*store, &out, LinkChange::Tripped(Some(tripped.clone()))).await;
    set(&*store, &out, LinkChange::Pace(Some(2.5))).await;
    set(&*store, &other, LinkChange::Tripped(Some(tripped.clone()))).await;
    drop(store);
    bench.reopen().await;
    let mut expected = vec![
        LinkState {
            endpoint: out.clone(),
            paused: Some(paused),
            tripped: Some(tripped.clone()),
            pace: Some(2.5),
        },
        LinkState { endpoint: other.clone(), paused: None, tripped: Some(tripped), pace: None },
    ];
    let mut states = bench.store().link_states().await.unwrap();
    states.sort_by(|a, b| a.endpoint.cmp(&b.endpoint));
    assert_eq!(states, expected);
    let store = bench.store();
    set(&*store, &out, LinkChange::Tripped(None)).await;
    set(&*store, &other, LinkChange::Tripped(None)).await;
    expected[0].tripped = None;
    expected.pop();
    assert_eq!(store.link_states().await.unwrap(), expected, "one part at a time");
}

pub(super) async fn everything_taken_outlives_reopening(mut bench: Bench) {
    let new = arrival("p/in", "1").to(&["q/out"]).key("k");
    let delivery = bench.deliver(&new).await;
    bench.bury(&arrival("p/in", "2").to(&["q/out"]), Holds::Nothing).await;
    let done = bench.deliver(&arrival("p/in", "3").to(&["q/out"])).await;
    bench.settle(&done, Fate::Delivered).await;
    bench.reopen().await;
    assert_eq!(bench.accept(&new).await, Accepted::Duplicate);
    assert_eq!(bench.waiting().await, std::slice::from_ref(&delivery));
    assert_eq!(bench.dead_letters().await.len(), 1);
    let next = bench.deliver(&arrival("p/in", "4").to(&["q/out"])).await;
    assert!(next.number > done.number, "{} again", next.number);
    let which = [(delivery.number, delivery.message)];
    let loaded = bench.store().load(&which).await.unwrap().remove(0);
    assert_same(&loaded.unwrap().message, &new.message);
}
