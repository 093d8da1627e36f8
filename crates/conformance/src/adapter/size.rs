//! What a sender says of sizes is true.

use pabal_core::{Headers, Message, Reason, SendError};

use super::bench::*;

const OCTETS: &str = "application/octet-stream";

/// A test has no use for a message of this size; a limit above it is none.
const LIMIT_BYTES_MAX: usize = 64 * 1024 * 1024;

pub(super) async fn what_is_too_large_is_refused_for_good(bench: Outward) {
    let limit = bench.sender.limits().message_bytes_max;
    assert!(limit <= LIMIT_BYTES_MAX, "made with a small body limit it takes {limit} bytes");
    let large = with_body(1, OCTETS, vec![b'x'; limit + 1]);
    let messages = [message(2), large.clone(), message(3)];
    let verdicts = bench.hand_over(&messages).await;
    let too_large = SendError::Permanent { reason: Reason::TooLarge, cause: "".into() };
    let [Ok(_), Err(SendError::Permanent { reason, .. }), Ok(_)] = &verdicts[..] else {
        panic!("the one in the middle should be {too_large:?}: {verdicts:?}");
    };
    assert_eq!(*reason, Reason::TooLarge);
    assert!(bench.copies(&large).await.is_empty(), "it was refused and sent");
}

pub(super) async fn the_largest_message_arrives(bench: Outward) {
    let limit = bench.sender.limits().message_bytes_max.min(LIMIT_BYTES_MAX);
    let fits =
        |bytes: usize| bench.sender.wire_size(&with_body(1, OCTETS, vec![b'x'; bytes])) <= limit;
    // The largest body that fits, by halving.
    let (mut low, mut high) = (0, limit + 1);
    assert!(fits(low), "not even an empty body fits into {limit} bytes");
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    let largest = with_body(1, OCTETS, vec![b'x'; low]);
    bench.deliver(std::slice::from_ref(&largest)).await;
    assert_eq!(bench.copy(&largest).await.body.len(), low);
}

pub(super) async fn no_more_goes_over_the_wire_than_announced(bench: Outward) {
    let mut messages: Vec<_> = bodies()
        .into_iter()
        .enumerate()
        .map(|(number, (content_type, bytes))| with_body(number, content_type, bytes))
        .collect();
    messages.push(with_body(100, OCTETS, ""));
    messages.push(Message { headers: headers(), ..message(101) });
    messages.push(enveloped().0);
    // Every character here is three bytes, and more where a transport escapes it.
    let wide = "한".repeat(150);
    let many: Headers = (0..20).map(|n| (format!("ce-kitwide{n}"), wide.clone())).collect();
    messages.push(Message { headers: many, ..message(102) });
    messages.push(Message {
        key: Some("열쇠".repeat(80)),
        subject: Some("제목".repeat(40)),
        correlation: Some("묶음".repeat(80)),
        ..message(103)
    });
    for message in messages {
        let announced = bench.sender.wire_size(&message);
        bench.deliver(std::slice::from_ref(&message)).await;
        let sent = bench.copy(&message).await.wire_bytes;
        let sent = sent.expect("the other side says how many bytes came");
        let id = &message.origin.id;
        assert!(sent <= announced, "{id:?}: announced {announced} bytes, sent {sent}");
        assert!(sent as u64 >= message.body.size(), "{id:?}: {sent} bytes cannot be all of it");
    }
}
