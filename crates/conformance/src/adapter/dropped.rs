//! A future of `send` that is dropped loses nothing.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use super::{Fault, bench::*};

/// Far more often than a send that makes progress is polled.
const POLLS_MAX: usize = 2_000;

/// A future that is dropped when it would be polled once more than allowed.
struct Dropped<F>(Option<Pin<Box<F>>>, usize);

impl<F: Future> Future for Dropped<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.1 == 0 {
            self.0 = None;
            return Poll::Ready(None);
        }
        self.1 -= 1;
        match &mut self.0 {
            Some(future) => future.as_mut().poll(context).map(Some),
            None => Poll::Ready(None),
        }
    }
}

pub(super) async fn a_send_dropped_at_any_point_loses_nothing(bench: Outward) {
    for polls in 0.. {
        assert!(polls < POLLS_MAX, "a send that was polled {polls} times has no end");
        let (number, next) = (polls * 2, polls * 2 + 1);
        let batch = [message(number)];
        let send = Dropped(Some(Box::pin(bench.sender.send(&batch))), polls);
        let other = bench.delivering(&message(next));
        let sent = within("an answer of the sender, or a wake-up", send).await;
        // Whoever was sending at the same time is none the worse.
        let verdicts = within("an answer to another send", other).await.unwrap();
        assert!(matches!(verdicts[..], [Ok(_)]), "dropped after {polls} polls: {verdicts:?}");
        assert_eq!(bench.copy(&message(next)).await.body, body(&message(next)));
        if let Some(verdicts) = sent {
            assert!(matches!(verdicts[..], [Ok(_)]), "{verdicts:?}");
            break;
        }
        // It had no verdict, so the hub sends it again.
        bench.deliver(&batch).await;
        for copy in bench.copies(&batch[0]).await {
            assert_eq!(copy.body, body(&batch[0]));
        }
        assert!(!bench.copies(&batch[0]).await.is_empty(), "dropped after {polls} polls: lost");
    }
}

pub(super) async fn a_send_dropped_while_it_waits_takes_no_other_with_it(bench: Outward) {
    let (held, other) = (message(1), message(2));
    bench.fail(Fault::Hold(held.id)).await;
    let mut waiting = bench.delivering(&held);
    bench.until_arrived(&held).await;
    let beside = bench.delivering(&other);
    waiting.abort();
    let _ = (&mut waiting).await;
    let verdicts = within("an answer to another send", beside).await.unwrap();
    assert!(matches!(verdicts[..], [Ok(_)]), "{verdicts:?}");
    assert_eq!(bench.copy(&other).await.body, body(&other));
    bench.mend().await;
    bench.deliver(&[held.clone(), message(3)]).await;
    assert!(!bench.copies(&held).await.is_empty());
}
