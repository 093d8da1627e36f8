//! Killed at any moment while messages flow in and out.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use pabal_tests::{Answer, Hub, Partner, Request, WayIn, within};
use tokio::sync::watch;

use crate::support::{FAST, TOWN, dead_letters, drained, takes_all};

const DEATHS: usize = 20;
const KEYS: usize = 12;
const DESTINATIONS: [&str; 2] = ["welfare/orders", "tax/orders"];

/// One acknowledged hand-over.
#[derive(Debug, Clone)]
pub(crate) struct Acknowledged {
    key: usize,
    origin_id: String,
    body: String,
    pub(crate) message_id: String,
}

/// Hands over the messages of one key one after the other, each with the same id and bytes until it
/// is acknowledged.
pub(crate) async fn keep_sending(
    way_in: WayIn,
    key: usize,
    enough: Arc<AtomicBool>,
    acknowledged: watch::Sender<Vec<Acknowledged>>,
) {
    let mut number = 0;
    while !enough.load(Ordering::Relaxed) {
        let origin_id = format!("{key}-{number}");
        let body = format!(r#"{{"key": {key}, "number": {number}, "amount": 1.0}}"#);
        let of_key = format!("key-{key}");
        let headers = [("ce-partitionkey", of_key.as_str())];
        let reply =
            way_in.hand_over_until_taken("town/orders", &origin_id, &headers, body.clone()).await;
        let message_id = reply.json()["id"].as_str().unwrap().to_owned();
        acknowledged.send_modify(|all| {
            all.push(Acknowledged { key, origin_id, body, message_id });
        });
        number += 1;
    }
}

/// A partner that takes almost everything, and keeps a book.
pub(crate) async fn partner() -> Partner {
    let partner = Partner::start().await;
    let mut count = 0;
    partner.decide(move |_| {
        count += 1;
        match count % 37 {
            11 => Some(Answer::status(503)),
            23 => Some(Answer::close_after()),
            _ => None,
        }
    });
    partner
}

#[tokio::test]
async fn twenty_kills_at_random_moments_lose_nothing_and_change_neither_id_nor_bytes_nor_order() {
    let seed = std::env::var_os("PABAL_TEST_SEED")
        .map_or_else(|| fastrand::u64(..), |seed| seed.to_str().unwrap().parse().unwrap());
    println!("PABAL_TEST_SEED={seed}");
    let mut draw = fastrand::Rng::with_seed(seed);
    let partners = [partner().await, partner().await];
    let mut hub = Hub::setup()
        .partner("town", TOWN)
        .partner("welfare", &takes_all(&partners[0], FAST, ""))
        .partner("tax", &takes_all(&partners[1], FAST, ""))
        .start()
        .await;

    let acknowledged = watch::Sender::default();
    let enough = Arc::new(AtomicBool::new(false));
    let mut senders = tokio::task::JoinSet::new();
    for key in 0..KEYS {
        let (way_in, enough) = (hub.way_in(), enough.clone());
        senders.spawn(keep_sending(way_in, key, enough, acknowledged.clone()));
    }
    for death in 1..=DEATHS {
        // All have to come, so any may be the last before the kill. A life in which hardly anything
        // gets through would be no test of the next one.
        let (more_in, more_out) = (draw.usize(1..40), [draw.usize(8..40), draw.usize(8..40)]);
        let had_in = acknowledged.borrow().len();
        let had_out = partners.each_ref().map(|partner| partner.requests().len());
        let mut coming = acknowledged.subscribe();
        let enough_in = coming.wait_for(|all| all.len() >= had_in + more_in);
        within(&format!("{more_in} more acknowledged"), enough_in).await.unwrap();
        for (partner, count) in partners.iter().zip(0..) {
            partner.wait_for(had_out[count] + more_out[count]).await;
        }
        hub.kill9().await;
        println!("kill {death}: after {more_in} more in, {more_out:?} more out");
        hub.start().await;
    }
    enough.store(true, Ordering::Relaxed);
    within("the senders' end", senders.join_all()).await;
    drained(&hub, &DESTINATIONS).await;

    assert_eq!(dead_letters(&hub).await, Vec::<serde_json::Value>::new());
    let acknowledged = acknowledged.borrow().clone();
    for (partner, name) in partners.iter().zip(DESTINATIONS) {
        let repeats = compare(&acknowledged, &partner.requests());
        println!("{name}: {} messages, {repeats} repeats", acknowledged.len());
        assert!(repeats > 0, "no kill hit a send");
    }
}

/// Holds a partner's book against what was acknowledged; how many repeats it saw.
pub(crate) fn compare(acknowledged: &[Acknowledged], book: &[Request]) -> usize {
    let handed_over: HashMap<&str, &Acknowledged> =
        acknowledged.iter().map(|one| (one.message_id.as_str(), one)).collect();
    assert_eq!(handed_over.len(), acknowledged.len(), "an id of its own for each");
    let mut in_effect = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut first_sends: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for request in book {
        let id = request.message_id().unwrap();
        let one = handed_over.get(id).unwrap_or_else(|| panic!("{id} was never handed over"));
        assert_eq!(request.text(), one.body, "{id}: the bytes");
        assert_eq!(request.header("ce-originid"), Some(one.origin_id.as_str()));
        if seen.insert(id) {
            first_sends.entry(one.key).or_default().push(&one.origin_id);
        }
        if request.taken {
            in_effect.insert(id);
        }
    }
    assert_eq!(in_effect.len(), acknowledged.len(), "nothing acknowledged is lost");
    for (key, sends) in first_sends {
        let in_order: Vec<_> = (0..sends.len()).map(|number| format!("{key}-{number}")).collect();
        assert_eq!(sends, in_order, "the order of first sends is that of the hand-overs");
    }
    book.len() - seen.len()
}
