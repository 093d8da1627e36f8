//! What a sender hands over arrives: all of it, as it was, in order.

use pabal_core::Message;

use super::bench::*;

pub(super) async fn a_receipt_means_it_arrived(bench: Outward) {
    for number in 1..=4 {
        let message = message(number);
        bench.deliver(std::slice::from_ref(&message)).await;
        // At once: a receipt for what is still on its way would be a promise, not a receipt.
        assert_eq!(bench.copy(&message).await.body, body(&message));
    }
    let rest: Vec<_> = (5..=9).map(message).collect();
    let sends: Vec<_> = rest.iter().map(|message| bench.delivering(message)).collect();
    for (send, message) in sends.into_iter().zip(&rest) {
        let verdicts = within("a receipt", send).await.unwrap();
        assert!(matches!(verdicts[..], [Ok(_)]), "{verdicts:?}");
        assert_eq!(bench.copy(message).await.body, body(message));
    }
}

pub(super) async fn every_byte_arrives(bench: Outward) {
    for (number, (content_type, bytes)) in bodies().into_iter().enumerate() {
        let message = with_body(number, content_type, bytes.clone());
        bench.deliver(std::slice::from_ref(&message)).await;
        let came = bench.copy(&message).await.body;
        assert!(came == bytes, "body {number} ({content_type}) is not the same: {came:.80?}");
    }
}

pub(super) async fn an_empty_body_arrives(bench: Outward) {
    let message = with_body(1, "text/plain", "");
    bench.deliver(std::slice::from_ref(&message)).await;
    assert_eq!(bench.copy(&message).await.body, "");
}

pub(super) async fn every_header_arrives(bench: Outward) {
    let message = Message { headers: headers(), ..message(1) };
    bench.deliver(std::slice::from_ref(&message)).await;
    let came = bench.copy(&message).await.headers;
    for (name, value) in message.headers.iter() {
        assert_eq!(came.get(name), Some(value), "header {name}");
    }
}

pub(super) async fn the_envelope_arrives(bench: Outward) {
    let (message, expected) = enveloped();
    bench.deliver(std::slice::from_ref(&message)).await;
    let came = bench.copy(&message).await.headers;
    for (name, value) in expected {
        assert_eq!(came.get(name), Some(&*value), "{name}");
    }
    assert_eq!(came.get("ce-originid"), message.origin.id.as_deref());
}

pub(super) async fn none_one_and_a_full_batch_get_a_verdict_each(bench: Outward) {
    let batch_max = bench.sender.limits().batch_max;
    assert!(batch_max > 0, "a call that may carry nothing");
    assert_eq!(batch_max > 1, bench.batches, "is it said that it takes batches? Up to {batch_max}");
    // More in a call are not needed to see whether any gets lost.
    for count in [0, 1, batch_max.min(1_000)] {
        let batch: Vec<_> = (0..count).map(message).collect();
        let verdicts = within("an answer of the sender", bench.sender.send(&batch)).await;
        assert_eq!(verdicts.len(), count, "verdicts for {count} messages");
        assert!(verdicts.iter().all(Result::is_ok), "{verdicts:?}");
        for message in &batch {
            assert!(!bench.copies(message).await.is_empty(), "{:?} is lost", message.origin.id);
        }
    }
}

pub(super) async fn a_key_arrives_in_order(bench: Outward) {
    let (a, b) = (of_key("a", 0..20), of_key("b", 20..40));
    let mixed: Vec<_> = a.iter().zip(&b).flat_map(|(a, b)| [a.clone(), b.clone()]).collect();
    bench.deliver(&mixed).await;
    let came: Vec<_> = bench.arrived().await.into_iter().map(|it| it.id).collect();
    for key in [a, b] {
        let expected: Vec<_> = key.iter().map(|message| message.id.to_string()).collect();
        let of_key: Vec<_> = came.iter().filter(|id| expected.contains(id)).cloned().collect();
        assert_eq!(of_key, expected);
    }
}
