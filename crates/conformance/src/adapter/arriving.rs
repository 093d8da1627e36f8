//! What an origin has is handed over, and acknowledged with a receipt and never without.

use pabal_core::{Cause, Message, Reason, SendError};

use super::{
    Belief,
    bench::*,
    inbox::{Inbox, Say},
};

/// Puts one there and gives back what was handed over.
async fn hand_over(bench: &Inward, message: &Message) -> Message {
    let inbox = Inbox::new();
    bench.put(std::slice::from_ref(message)).await;
    let run = bench.run(&inbox).await;
    bench.until_acknowledged(&run, message).await;
    run.stop.fire();
    run.returned().await;
    let mut taken = inbox.taken();
    assert_eq!(taken.len(), 1, "hand-overs of one message");
    taken.remove(0)
}

pub(super) async fn what_has_a_receipt_is_acknowledged(bench: Inward) {
    let (inbox, messages) = (Inbox::new(), (1..=20).map(message).collect::<Vec<_>>());
    bench.put(&messages).await;
    let run = bench.run(&inbox).await;
    let mut ids = std::collections::HashSet::new();
    for message in &messages {
        bench.until_acknowledged(&run, message).await;
        let taken = inbox.taken();
        let it = taken.iter().find(|it| it.body == message.body);
        let it = it.unwrap_or_else(|| panic!("{:?} has no receipt", message.origin.id));
        assert!(it.origin.id.is_some(), "without an id a repeat is not known as one");
        assert!(ids.insert((it.origin.source.clone(), it.origin.id.clone())), "one id for two");
    }
    assert_eq!(inbox.taken().len(), messages.len(), "what was acknowledged comes once");
}

pub(super) async fn nothing_is_acknowledged_without_a_receipt(bench: Inward) {
    let (inbox, first) = (Inbox::closed(), message(1));
    bench.put(std::slice::from_ref(&first)).await;
    let run = bench.run(&inbox).await;
    bench.until_handed(&inbox, &first, 1).await;
    everybody_had_a_turn().await;
    assert_eq!(bench.believes(&first).await, Belief::Waiting, "it is still in hand");
    inbox.open();
    bench.until_acknowledged(&run, &first).await;
    assert_eq!(inbox.taken().len(), 1);
}

pub(super) async fn silence_of_the_inbox_acknowledges_nothing(bench: Inward) {
    let (inbox, first) = (Inbox::new(), message(1));
    inbox.says(&first, Say::Nothing);
    bench.put(std::slice::from_ref(&first)).await;
    let run = bench.run(&inbox).await;
    bench.until_handed(&inbox, &first, 2).await;
    bench.until_acknowledged(&run, &first).await;
}

pub(super) async fn what_failed_is_offered_again(bench: Inward) {
    let (inbox, failing, fine) = (Inbox::new(), message(1), message(2));
    let errors =
        [SendError::transient("busy"), SendError::unreachable("no store"), SendError::NotSent];
    for error in errors.clone() {
        inbox.fails(&failing, error);
    }
    bench.put(&[failing.clone(), fine.clone()]).await;
    let run = bench.run(&inbox).await;
    bench.until_handed(&inbox, &failing, errors.len() + 1).await;
    bench.until_acknowledged(&run, &failing).await;
    bench.until_acknowledged(&run, &fine).await;
    let handed = inbox.handed(&failing);
    assert!(handed.iter().all(|it| it.origin == handed[0].origin), "another id: {handed:?}");
}

/// Hands over one that is refused, and another one after it.
async fn refuse(bench: &Inward, refused: &Message) {
    let (inbox, next) = (Inbox::new(), message(2));
    let error = SendError::permanent(Reason::Invalid, Cause::with("not valid", "no type"));
    inbox.fails(refused, error);
    bench.put(std::slice::from_ref(refused)).await;
    let run = bench.run(&inbox).await;
    bench
        .until("what is refused to be settled", async || {
            bench.believes(refused).await != Belief::Waiting
        })
        .await;
    bench.put(std::slice::from_ref(&next)).await;
    bench.until_acknowledged(&run, &next).await;
    run.stop.fire();
    run.returned().await;
    assert_eq!(inbox.handed(refused).len(), 1, "it was offered again");
}

pub(super) async fn what_is_refused_is_not_offered_again(bench: Inward) {
    refuse(&bench, &message(1)).await;
}

pub(super) async fn the_origin_is_told_of_a_refusal(bench: Inward) {
    let refused = message(1);
    refuse(&bench, &refused).await;
    assert_eq!(bench.believes(&refused).await, Belief::Refused);
}

pub(super) async fn every_byte_is_handed_over(bench: Inward) {
    for (number, (content_type, bytes)) in bodies().into_iter().enumerate() {
        let came = hand_over(&bench, &with_body(number, content_type, bytes.clone())).await;
        assert!(body(&came) == bytes, "body {number} ({content_type}): {:.80?}", body(&came));
    }
}

pub(super) async fn an_empty_body_is_handed_over(bench: Inward) {
    let came = hand_over(&bench, &with_body(1, "text/plain", "")).await;
    assert_eq!(body(&came), "");
}

pub(super) async fn every_header_is_handed_over(bench: Inward) {
    let given = Message { headers: headers(), ..message(1) };
    let came = hand_over(&bench, &given).await;
    for (name, value) in given.headers.iter() {
        assert_eq!(came.headers.get(name), Some(value), "header {name}");
    }
}

pub(super) async fn the_envelope_is_handed_over(bench: Inward) {
    let (given, _) = enveloped();
    let came = hand_over(&bench, &given).await;
    let envelope = |it: &Message| {
        [
            Some(it.origin.source.clone()),
            it.origin.id.clone(),
            Some(it.message_type.clone()),
            it.key.clone(),
            it.version.map(|version| version.to_string()),
            it.schema.clone(),
            it.content_type.clone(),
            it.time.clone(),
            it.subject.clone(),
            it.correlation.clone(),
            it.causation.clone(),
            it.trace.clone(),
        ]
    };
    assert_eq!(envelope(&came), envelope(&given));
}

pub(super) async fn a_key_is_handed_over_in_order(bench: Inward) {
    let (a, b) = (of_key("a", 0..12), of_key("b", 12..24));
    let mixed: Vec<_> = a.iter().zip(&b).flat_map(|(a, b)| [a.clone(), b.clone()]).collect();
    let inbox = Inbox::new();
    // What fails holds back what is behind it.
    inbox.fails(&a[3], SendError::transient("busy"));
    bench.put(&mixed).await;
    let run = bench.run(&inbox).await;
    for message in &mixed {
        bench.until_acknowledged(&run, message).await;
    }
    let taken: Vec<_> = inbox.taken().iter().map(body).collect();
    for key in [a, b] {
        let expected: Vec<_> = key.iter().map(body).collect();
        let of_key: Vec<_> = taken.iter().filter(|it| expected.contains(it)).cloned().collect();
        assert_eq!(of_key, expected);
    }
}
