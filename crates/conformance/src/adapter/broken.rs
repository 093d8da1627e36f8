//! What goes wrong on the way out has the right fate, and passes.

use std::time::Duration;

use pabal_core::SendError;

use super::{Fault, bench::*};

pub(super) async fn what_cannot_be_reached_is_unreachable_and_mends(bench: Outward) {
    let first = message(1);
    bench.fail(Fault::OutOfReach).await;
    for _ in 0..2 {
        let verdict = bench.verdict(&first).await;
        assert!(matches!(verdict, Err(SendError::Unreachable { .. })), "{verdict:?}");
    }
    bench.mend().await;
    bench.deliver(std::slice::from_ref(&first)).await;
    // Now with a connection that was in use. Its end may show only at the next message, which then
    // may have been written; after that nothing more is.
    bench.fail(Fault::OutOfReach).await;
    let second = message(2);
    for last in [false, true] {
        let verdict = bench.verdict(&second).await;
        let fits = match verdict {
            Err(SendError::Unreachable { .. }) => true,
            Err(SendError::Transient { .. }) => !last,
            _ => false,
        };
        assert!(fits, "{verdict:?}");
    }
    bench.mend().await;
    bench.deliver(&[second, message(3)]).await;
    assert!(!bench.copies(&first).await.is_empty());
}

pub(super) async fn what_is_cut_after_writing_is_transient_and_mends(bench: Outward) {
    // On a new connection, and on one that was in use.
    for number in [1, 3] {
        bench.fail(Fault::Cut).await;
        let cut = message(number);
        let verdict = bench.verdict(&cut).await;
        assert!(matches!(verdict, Err(SendError::Transient { .. })), "{verdict:?}");
        bench.mend().await;
        bench.deliver(&[cut, message(number + 1)]).await;
    }
}

pub(super) async fn a_repeat_carries_the_same_id_and_bytes(bench: Outward) {
    let (mut message, _) = enveloped();
    message.headers = headers();
    bench.fail(Fault::Cut).await;
    let verdict = bench.verdict(&message).await;
    assert!(verdict.is_err(), "{verdict:?}");
    bench.until_arrived(&message).await;
    let first = bench.copies(&message).await.remove(0);
    bench.mend().await;
    bench.deliver(std::slice::from_ref(&message)).await;
    let copies = bench.copies(&message).await;
    assert_eq!(copies.len(), bench.arrived().await.len(), "another id");
    // It is there once, or twice and the same: whoever keeps ids takes no second copy. What is not
    // the message's own (the time of a signature) may differ.
    for copy in copies {
        assert!(copy.body == first.body, "another body: {:.80?}", copy.body);
        for (name, _) in first.headers.iter().filter(|(name, _)| name.starts_with("ce-")) {
            assert_eq!(copy.headers.get(name), first.headers.get(name), "header {name}");
        }
    }
}

pub(super) async fn a_refusal_is_for_good_and_spares_the_neighbours(bench: Outward) {
    let batch: Vec<_> = (1..=5).map(message).collect();
    bench.fail(Fault::Refuse(batch[2].id)).await;
    let verdicts = bench.hand_over(&batch).await;
    let [Ok(_), Ok(_), Err(error), Ok(_), Ok(_)] = &verdicts[..] else {
        panic!("the one in the middle should fail, and no other: {verdicts:?}");
    };
    assert!(matches!(error, SendError::Permanent { .. }), "{error:?}");
    assert!(bench.copies(&batch[2]).await.is_empty(), "it was refused");
    for taken in [0, 1, 3, 4] {
        assert_eq!(bench.copy(&batch[taken]).await.body, body(&batch[taken]));
    }
}

pub(super) async fn a_failure_is_for_now_and_spares_the_neighbours(bench: Outward) {
    let batch: Vec<_> = (1..=5).map(message).collect();
    bench.fail(Fault::Fail(batch[2].id)).await;
    let verdicts = bench.hand_over(&batch).await;
    let [Ok(_), Ok(_), Err(error), Ok(_), Ok(_)] = &verdicts[..] else {
        panic!("the one in the middle should fail, and no other: {verdicts:?}");
    };
    assert!(matches!(error, SendError::Transient { .. }), "{error:?}");
    assert!(bench.copies(&batch[2]).await.is_empty(), "it failed");
    bench.mend().await;
    bench.deliver(&batch[2..3]).await;
    for message in &batch {
        assert_eq!(bench.copy(message).await.body, body(message));
    }
}

pub(super) async fn after_a_failure_the_rest_of_its_key_is_not_sent(bench: Outward) {
    let (key, other) = (of_key("a", 1..=4), of_key("b", 5..=6));
    let batch = [&key[0], &other[0], &key[1], &key[2], &other[1], &key[3]].map(Clone::clone);
    bench.fail(Fault::Fail(key[1].id)).await;
    let verdicts = bench.sender.send(&batch).await;
    let fates: Vec<_> = verdicts
        .iter()
        .map(|verdict| match verdict {
            Ok(_) => "taken",
            Err(SendError::NotSent) => "not sent",
            Err(_) => "failed",
        })
        .collect();
    assert_eq!(fates, ["taken", "taken", "failed", "not sent", "taken", "not sent"]);
    for later in &key[1..] {
        assert!(bench.copies(later).await.is_empty(), "{:?} overtook", later.origin.id);
    }
    bench.mend().await;
    bench.deliver(&key[1..]).await;
    let came: Vec<_> = bench.arrived().await.into_iter().map(|it| it.id).collect();
    let expected: Vec<_> = key.iter().map(|message| message.id.to_string()).collect();
    let of_key: Vec<_> = came.into_iter().filter(|id| expected.contains(id)).collect();
    assert_eq!(of_key, expected);
}

pub(super) async fn a_wish_to_be_left_alone_is_passed_on(bench: Outward) {
    const WISH: Duration = Duration::from_secs(120);
    bench.fail(Fault::Pause(WISH)).await;
    let verdict = bench.verdict(&message(1)).await;
    let wish = match &verdict {
        Err(
            SendError::Unreachable { retry_after, .. } | SendError::Transient { retry_after, .. },
        ) => *retry_after,
        _ => panic!("it should pass: {verdict:?}"),
    };
    // A wish told as a moment is a little shorter by the time it is read.
    let told = wish.is_some_and(|wish| wish <= WISH && wish >= WISH / 2);
    assert!(told, "the wish was for {WISH:?}: {verdict:?}");
    bench.mend().await;
    bench.deliver(&[message(1)]).await;
}

pub(super) async fn one_slow_message_delays_no_other_key(bench: Outward) {
    let slow = message(1);
    bench.fail(Fault::Hold(slow.id)).await;
    let waiting = bench.delivering(&slow);
    bench.until_arrived(&slow).await;
    let others: Vec<_> = (2..=9).map(message).collect();
    bench.deliver(&others).await;
    assert!(!waiting.is_finished(), "nobody has answered it yet");
    bench.mend().await;
    let verdicts = within("an answer to the slow message", waiting).await.unwrap();
    assert!(matches!(verdicts[..], [Ok(_)]), "{verdicts:?}");
}
