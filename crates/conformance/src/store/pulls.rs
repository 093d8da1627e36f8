//! Pulls: what is handed out to a partner that fetches its messages, and what is not.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use pabal_core::*;

use super::bench::*;

const LEASE: u64 = 60;
/// Nobody's: pulls need no lane.
const NOBODY: Epoch = Epoch(0);

fn ask(max: usize) -> PullAsk {
    PullAsk {
        order: Order::Key,
        scan: Scan::Numbers(0),
        max,
        bytes_max: 1024 * 1024,
        lease: std::time::Duration::from_secs(LEASE),
        attempts_max: 3,
        unsuspected: false,
    }
}

async fn page(store: &dyn Store, ask: &PullAsk) -> PullPage {
    store.pull(&name("q/out"), ask).await.unwrap()
}

async fn pull(bench: &Bench, max: usize) -> Vec<Delivery> {
    let page = page(&*bench.store(), &ask(max)).await;
    assert_eq!(page.spent, []);
    page.taken
}

/// The origin ids, in order.
async fn pulled(bench: &Bench, max: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for delivery in pull(bench, max).await {
        let message = bench.store().message_content(delivery.message).await.unwrap();
        ids.push(message.unwrap().origin.id.unwrap());
    }
    ids
}

async fn hand_over(bench: &Bench, messages: &[(&str, &str)]) {
    for (id, key) in messages {
        let new = arrival("p/in", id).to(&["q/out"]);
        let new = if key.is_empty() { new } else { new.key(key) };
        bench.deliver_to_others(&new).await;
    }
}

/// What became of a delivery as it was pulled.
fn outcome(delivery: &Delivery, fate: Fate) -> Settlement {
    let handout = Some(delivery.attempts + delivery.started + 1);
    Settlement { handout, ..settlement(delivery, fate) }
}

async fn settle(store: &dyn Store, delivery: &Delivery, fate: Fate) -> Settled {
    store.settle(NOBODY, &[outcome(delivery, fate)]).await.unwrap().remove(0)
}

pub(super) async fn what_was_pulled_is_not_pulled_again_before_its_lease_lapses(bench: Bench) {
    hand_over(&bench, &[("1", ""), ("2", "a"), ("3", ""), ("4", "b")]).await;
    assert_eq!(pulled(&bench, 3).await, ["1", "2", "3"], "the oldest first");
    let page = page(&*bench.store(), &ask(3)).await;
    assert_eq!(page.taken.len(), 1);
    let due = page.due_in.unwrap().as_secs();
    assert!((LEASE - 20..=LEASE).contains(&due), "in {due} s");
    assert!(pulled(&bench, 3).await.is_empty());
    let others = bench.store().pull(&name("q/else"), &ask(3)).await.unwrap();
    assert_eq!(others, PullPage::default());
    bench.pass(LEASE).await;
    assert_eq!(pulled(&bench, 3).await, ["1"]);
    let waiting = bench.waiting().await;
    let counted: Vec<_> = waiting.iter().map(|it| (it.attempts, it.started)).collect();
    assert_eq!(counted, [(1, 1), (0, 1), (0, 1), (0, 1)]);
}

pub(super) async fn nothing_is_pulled_while_an_earlier_one_of_its_key_is_out(bench: Bench) {
    hand_over(&bench, &[("a1", "a"), ("a2", "a"), ("b1", "b"), ("a3", "a"), ("c1", "c")]).await;
    let first = pull(&bench, 2).await;
    assert_eq!(
        first.iter().map(|it| it.key.as_deref()).collect::<Vec<_>>(),
        [Some("a"), Some("b")]
    );
    assert_eq!(pulled(&bench, 9).await, ["c1"]);
    // In back-off it blocks its key as well, ...
    let store = bench.store();
    assert_eq!(settle(&*store, &first[0], retry(10, true)).await, Settled::Done);
    assert!(pulled(&bench, 9).await.is_empty());
    bench.pass(10).await;
    let again = pull(&bench, 9).await;
    assert_eq!((again.len(), again[0].number), (1, first[0].number));
    // ... until it is settled.
    assert_eq!(settle(&*store, &again[0], Fate::Delivered).await, Settled::Done);
    assert_eq!(pulled(&bench, 9).await, ["a2"]);
    assert!(pulled(&bench, 9).await.is_empty());
}

pub(super) async fn racing_pullers_never_get_the_same_and_never_two_of_a_key(bench: Bench) {
    let keys: Vec<String> = (0..10).map(|n| format!("key {n}")).collect();
    let all = (0..200).map(|n| {
        let new = arrival("p/in", &n.to_string()).to(&["q/out"]);
        if n % 5 == 0 { new } else { new.key(&keys[n % 10]) }
    });
    bench.accept_all(&all.collect::<Vec<_>>()).await;
    let stores = [bench.store(), bench.another().await];
    // By key what is out, and of each key the numbers in the order they came.
    let out = Arc::new(Mutex::new(HashMap::<String, Number>::new()));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut pullers = tokio::task::JoinSet::new();
    for puller in 0..6 {
        let store = stores[puller % 2].clone();
        let (out, seen) = (out.clone(), seen.clone());
        pullers.spawn(async move {
            while seen.lock().unwrap().len() < 200 {
                let taken = page(&*store, &ask(4)).await.taken;
                for it in &taken {
                    let key = it.key.clone().map(|key| key.to_string());
                    let key = key.unwrap_or_else(|| it.number.to_string());
                    let before = out.lock().unwrap().insert(key, it.number);
                    assert_eq!(before, None, "of one key at a time");
                    seen.lock().unwrap().push((it.key.clone(), it.number));
                }
                for it in taken {
                    let key = it.key.clone().map(|key| key.to_string());
                    let key = key.unwrap_or_else(|| it.number.to_string());
                    out.lock().unwrap().remove(&key);
                    assert_eq!(settle(&*store, &it, Fate::Delivered).await, Settled::Done);
                }
            }
        });
    }
    while let Some(ended) = pullers.join_next().await {
        ended.unwrap();
    }
    assert!(bench.numbers().await.is_empty());
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 200, "each once");
    for key in keys {
        let of_key = seen.iter().filter(|(of, _)| of.as_deref() == Some(&*key));
        assert!(of_key.map(|(_, number)| *number).is_sorted(), "{key} in order");
    }
}

pub(super) async fn a_late_ack_counts_and_a_late_refusal_only_of_the_last_time(bench: Bench) {
    hand_over(&bench, &[("1", "a"), ("2", "b")]).await;
    let store = bench.store();
    let first = pull(&bench, 9).await;
    bench.pass(LEASE).await;
    // The lease is over, but nobody has it since.
    assert_eq!(settle(&*store, &first[1], retry(0, true)).await, Settled::Done);
    let second = pull(&bench, 1).await;
    assert_eq!(second[0].number, first[0].number);
    assert_eq!(settle(&*store, &first[0], retry(0, true)).await, Settled::NotThere);
    assert_eq!(settle(&*store, &first[0], dead(Holds::Key)).await, Settled::NotThere);
    let waiting = bench.waiting().await;
    assert_eq!((waiting[0].attempts, waiting[0].started), (1, 1), "the one who has it goes on");
    assert_eq!(settle(&*store, &first[0], Fate::Delivered).await, Settled::Done);
    assert_eq!(settle(&*store, &second[0], Fate::Delivered).await, Settled::NotThere);
    // One that was not handed out cannot be refused.
    let unpulled = Settlement { handout: Some(0), ..settlement(&waiting[1], retry(0, true)) };
    assert_eq!(store.settle(NOBODY, &[unpulled]).await.unwrap(), [Settled::NotThere]);
    let foreign =
        Settlement { destination: name("q/else"), ..outcome(&waiting[1], Fate::Delivered) };
    assert_eq!(store.settle(NOBODY, &[foreign]).await.unwrap(), [Settled::NotThere]);
}

pub(super) async fn what_lapses_counts_goes_alone_and_in_the_end_not_at_all(bench: Bench) {
    hand_over(&bench, &[("1", "a"), ("2", ""), ("3", "")]).await;
    assert_eq!(pulled(&bench, 2).await, ["1", "2"]);
    bench.pass(LEASE).await;
    assert_eq!(pulled(&bench, 9).await, ["1"], "a suspect, alone");
    let unsuspected = PullAsk { unsuspected: true, ..ask(9) };
    let innocent = page(&*bench.store(), &unsuspected).await.taken;
    assert_eq!(innocent.len(), 1, "the third, and not the second, which has lapsed as well");
    let suspect = pull(&bench, 9).await;
    assert_eq!((suspect.len(), suspect[0].started), (1, 1));
    assert_eq!(settle(&*bench.store(), &suspect[0], Fate::Delivered).await, Settled::Done);
    assert_eq!(settle(&*bench.store(), &innocent[0], Fate::Delivered).await, Settled::Done);

    bench.pass(LEASE).await;
    let third = pull(&bench, 9).await;
    assert_eq!((third.len(), third[0].attempts, third[0].started), (1, 1, 1));
    bench.pass(LEASE).await;
    let end = page(&*bench.store(), &ask(9)).await;
    assert_eq!((end.taken.len(), end.spent.len()), (0, 1));
    let spent = &end.spent[0];
    assert_eq!((spent.number, spent.attempts + spent.started), (third[0].number, 3));
    let last = Settlement { handout: Some(3), ..settlement(spent, dead(Holds::Key)) };
    assert_eq!(bench.store().settle(NOBODY, &[last]).await.unwrap(), [Settled::Done]);
    let story = bench.story(spent.message).await;
    let told: Vec<_> = story.log.iter().map(|it| it.outcome.as_str()).collect();
    assert_eq!(told, ["transient", "transient", "permanent"], "two that lapsed, and the end");
    assert_eq!(story.log[0].cause.as_deref(), Some(LAPSED));
}

pub(super) async fn a_dead_letter_keeps_its_key_from_being_pulled(bench: Bench) {
    hand_over(&bench, &[("1", "a"), ("2", "a"), ("3", "b"), ("4", "b")]).await;
    let store = bench.store();
    let both = pull(&bench, 9).await;
    settle(&*store, &both[0], dead(Holds::Key)).await;
    settle(&*store, &both[1], dead(Holds::Nothing)).await;
    assert_eq!(pulled(&bench, 9).await, ["4"], "what was let pass");
    let letters = bench.dead_letters().await;
    store.replay(&[letters[0].id], &act("replay")).await.unwrap();
    let again = pull(&bench, 9).await;
    assert_eq!((again.len(), again[0].number, again[0].round), (1, both[0].number, 1));
    // What became of an earlier round changes nothing in this one.
    assert_eq!(settle(&*store, &both[0], retry(0, true)).await, Settled::NotThere);
    settle(&*store, &again[0], dead(Holds::Key)).await;
    assert!(pulled(&bench, 9).await.is_empty());
    let letters = bench.dead_letters().await;
    let held = letters.iter().find(|it| it.number == Some(both[0].number)).unwrap();
    store.discard(&[held.id], &act("discard")).await.unwrap();
    assert_eq!(pulled(&bench, 9).await, ["2"]);
}

pub(super) async fn with_order_all_one_goes_at_a_time_and_without_an_order_nothing_waits(
    bench: Bench,
) {
    hand_over(&bench, &[("1", "a"), ("2", "a"), ("3", ""), ("4", "b")]).await;
    let store = bench.store();
    let all = PullAsk { order: Order::All, ..ask(9) };
    let first = page(&*store, &all).await.taken;
    assert_eq!(first.len(), 1);
    assert_eq!(page(&*store, &all).await.taken, []);
    settle(&*store, &first[0], dead(Holds::Destination)).await;
    assert_eq!(page(&*store, &all).await.taken, []);
    let letter = bench.dead_letters().await.remove(0);
    store.discard(&[letter.id], &act("discard")).await.unwrap();
    assert_eq!(page(&*store, &all).await.taken.len(), 1);
    let none = PullAsk { order: Order::None, ..ask(9) };
    assert_eq!(page(&*store, &none).await.taken.len(), 2);
}

pub(super) async fn a_pull_is_bounded_in_bytes_and_one_of_any_size_goes(bench: Bench) {
    for n in 0..4 {
        let new = arrival("p/in", &n.to_string()).to(&["q/out"]).body(vec![b'x'; 400]);
        bench.deliver_to_others(&new).await;
    }
    let store = bench.store();
    let few = PullAsk { bytes_max: 900, ..ask(9) };
    assert_eq!(page(&*store, &few).await.taken.len(), 2);
    assert_eq!(page(&*store, &PullAsk { bytes_max: 10, ..ask(9) }).await.taken.len(), 1);
    assert_eq!(page(&*store, &few).await.taken.len(), 1, "what did not fit was not taken");
}

pub(super) async fn what_stands_behind_a_deep_key_is_found_in_few_pages(bench: Bench) {
    let of = |key: &str, n: usize| arrival("p/in", &format!("{key} {n}")).to(&["q/out"]).key(key);
    let deep: Vec<_> = (0..1200).map(|n| of("deep", n)).collect();
    for group in deep.chunks(400) {
        bench.accept_all(group).await;
    }
    bench.accept_all(&[of("x", 0), of("y", 0), of("y", 1)]).await;
    bench.accept_all(&[arrival("p/in", "keyless").to(&["q/out"])]).await;
    let store = bench.store();
    let front = page(&*store, &ask(9)).await;
    assert_eq!(front.taken.len(), 1, "the first of the deep key");
    let Some(Scan::Numbers(after)) = front.next else { panic!("{:?}", front.next) };
    assert!(after > front.taken[0].number);
    // By keys it is one page, ...
    let scan = Scan::Keys(None);
    let keys = page(&*store, &PullAsk { scan, ..ask(9) }).await;
    assert_eq!(keys.taken.len(), 2);
    assert_eq!(keys.next, None);
    let (slot, key) = (keys.taken[0].slot, keys.taken[0].key.clone().unwrap());
    for delivery in &keys.taken {
        settle(&*store, delivery, Fate::Delivered).await;
    }
    // ... which goes on behind any key, ...
    let past = page(&*store, &PullAsk { scan: Scan::Keys(Some((255, key))), ..ask(9) }).await;
    assert_eq!((past.taken.len(), past.next), (0, None));
    let from = Scan::Keys(Some((slot.saturating_sub(1), "".into())));
    assert_eq!(page(&*store, &PullAsk { scan: from, ..ask(9) }).await.next, None);
    // ... and by numbers all of it is seen in its turn, whatever has no key.
    let (mut scan, mut found) = (front.next, 0);
    while let Some(at) = scan {
        let page = page(&*store, &PullAsk { scan: at, ..ask(9) }).await;
        found += page.taken.len();
        scan = page.next;
    }
    assert!(found >= 1, "the one without a key");
    assert!(page(&*store, &ask(9)).await.taken.is_empty());
}
