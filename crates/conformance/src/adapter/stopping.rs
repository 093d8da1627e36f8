//! A receiver that stops loses nothing; neither does one that is killed.

use pabal_core::{Message, MessageId};

use super::{Belief, bench::*, inbox::Inbox};

/// Runs, takes one message to the end, and is then waiting for the next.
async fn idle(bench: &Inward, inbox: &std::sync::Arc<Inbox>) -> Run {
    let first = message(1);
    bench.put(std::slice::from_ref(&first)).await;
    let run = bench.run(inbox).await;
    bench.until_acknowledged(&run, &first).await;
    run
}

pub(super) async fn a_stop_with_nothing_in_hand_returns(bench: Inward) {
    let inbox = Inbox::new();
    let run = idle(&bench, &inbox).await;
    assert!(!run.task.is_finished(), "it returned without a stop");
    run.stop.fire();
    let receiver = run.returned().await;
    // One that is stopped before it began takes nothing.
    let run = Run::start(receiver, &inbox);
    run.stop.fire();
    run.returned().await;
}

pub(super) async fn a_stop_finishes_what_is_in_hand(bench: Inward) {
    let (inbox, first) = (Inbox::closed(), message(1));
    bench.put(std::slice::from_ref(&first)).await;
    let run = bench.run(&inbox).await;
    bench.until_handed(&inbox, &first, 1).await;
    run.stop.fire();
    everybody_had_a_turn().await;
    assert!(!run.task.is_finished(), "it returned with a message in hand");
    inbox.open();
    run.returned().await;
    bench
        .until("an acknowledgement", async || {
            bench.believes(&first).await == Belief::Acknowledged || inbox.handed(&first).len() > 1
        })
        .await;
    assert_eq!(inbox.handed(&first).len(), 1, "it was given up and offered again");
}

pub(super) async fn what_comes_after_a_stop_stays_at_the_origin(bench: Inward) {
    let (inbox, late) = (Inbox::new(), message(2));
    let run = idle(&bench, &inbox).await;
    run.stop.fire();
    let receiver = run.returned().await;
    bench.put(std::slice::from_ref(&late)).await;
    bench.offer().await;
    everybody_had_a_turn().await;
    assert_eq!(bench.believes(&late).await, Belief::Waiting);
    bench.end(receiver).await;
    let run = bench.run(&inbox).await;
    bench.until_acknowledged(&run, &late).await;
    assert_eq!(inbox.handed(&late).len(), 1);
}

pub(super) async fn after_a_stop_it_can_run_again(bench: Inward) {
    let (inbox, next) = (Inbox::new(), message(2));
    let run = idle(&bench, &inbox).await;
    run.stop.fire();
    // The engine runs the same receiver again.
    let run = Run::start(run.returned().await, &inbox);
    bench.put(std::slice::from_ref(&next)).await;
    bench.until_acknowledged(&run, &next).await;
    run.stop.fire();
    run.returned().await;
}

pub(super) async fn killed_before_the_acknowledgement_it_hands_over_the_same_again(bench: Inward) {
    let id = |it: &Message| {
        let origin_id = it.origin.id.as_deref().expect("an id");
        MessageId::of("kit", &it.source, &it.origin.source, origin_id)
    };
    let (mut given, _) = enveloped();
    given.headers = headers();
    // The inbox has the message, and its receipt never reaches the receiver.
    let committed = Inbox::closed();
    bench.put(std::slice::from_ref(&given)).await;
    let run = bench.run(&committed).await;
    bench.until_handed(&committed, &given, 1).await;
    bench.kill(run).await;
    assert_eq!(bench.believes(&given).await, Belief::Waiting, "nobody acknowledged it");
    let inbox = Inbox::new();
    let run = bench.run(&inbox).await;
    bench.until_handed(&inbox, &given, 1).await;
    let (first, second) = (committed.handed(&given).remove(0), inbox.handed(&given).remove(0));
    assert_eq!(id(&first), id(&second));
    assert_eq!((first.key, first.version, first.body), (second.key, second.version, second.body));
    bench.until_acknowledged(&run, &given).await;
}
