//! What the engine makes of a store that fails.

use std::time::Duration;

use pabal_core::*;

use crate::{
    kit::{Kit, Partner, hand_over, message, name, ok},
    wrapped::Wrapped,
};

#[tokio::test]
async fn a_commit_with_an_unknown_outcome_is_done_again_with_the_same_ids() {
    let mut kit = Kit::new().await;
    Wrapped::under(&mut kit, |store| {
        let unknown = || StoreError::Unknown("the answer was lost".into());
        *store.accepts.lock().unwrap() = [(unknown(), true), (unknown(), false)].into();
    });
    let partner = Partner::new(|_, _| ok());
    kit.to("tax/all", &partner);
    let engine = kit.start().await;
    let inbox = engine.inbox(&name("city/orders")).unwrap();
    let sending =
        tokio::spawn(async move { inbox.send(&[message("1", None, "x")]).await.remove(0) });
    kit.pass_until(Duration::from_millis(100), || sending.is_finished()).await;
    // It was stored the first time, so the second finds a duplicate: a receipt all the same.
    assert!(sending.await.unwrap().is_ok());
    kit.seen.wait("delivered", 1).await;
    engine.stop().await;
    assert_eq!(partner.came().len(), 1);
}

#[tokio::test]
async fn a_group_that_cannot_be_stored_is_split_and_only_the_guilty_one_is_refused() {
    let mut kit = Kit::new().await;
    Wrapped::under(&mut kit, |store| store.poison = Some(b"poison"));
    kit.to("tax/all", &Partner::new(|_, _| ok()));
    let engine = kit.start().await;
    let body = |n: usize| if n == 7 { "poison" } else { "good" };
    let batch: Vec<_> = (0..20).map(|n| message(&n.to_string(), None, body(n))).collect();
    let verdicts = engine.inbox(&name("city/orders")).unwrap().send(&batch).await;
    for (n, verdict) in verdicts.iter().enumerate() {
        let refused = matches!(verdict, Err(SendError::Permanent { .. }));
        assert_eq!((verdict.is_ok(), refused), (n != 7, n == 7), "{n}: {verdict:?}");
    }
    kit.seen.wait("delivered", 19).await;
    engine.stop().await;
}

#[tokio::test]
async fn nothing_of_a_hand_over_overtakes_what_could_not_be_stored() {
    let mut kit = Kit::new().await;
    Wrapped::under(&mut kit, |store| {
        *store.accepts.lock().unwrap() =
            [(StoreError::Unavailable("disk full".into()), false)].into();
    });
    let engine = kit.start().await;
    let inbox = engine.inbox(&name("city/orders")).unwrap();
    // The same id with other content starts a second group.
    let batch =
        [("1", "one"), ("2", "two"), ("1", "other")].map(|(id, body)| message(id, Some("k"), body));
    let verdicts = inbox.send(&batch).await;
    assert!(matches!(verdicts[0], Err(SendError::Transient { .. })), "{verdicts:?}");
    assert!(matches!(verdicts[1], Err(SendError::Transient { .. })), "{verdicts:?}");
    assert_eq!(verdicts[2], Err(SendError::NotSent));
    // The next hand-over is taken.
    hand_over(&engine, batch[..2].to_vec()).await;
    engine.stop().await;
}

#[tokio::test]
async fn a_verdict_is_never_lost_to_a_busy_store() {
    let mut kit = Kit::new().await;
    Wrapped::under(&mut kit, |store| {
        let busy = || StoreError::Unavailable("locked".into());
        *store.settles.lock().unwrap() = std::iter::repeat_with(busy).take(10).collect();
    });
    let partner = Partner::new(|_, _| ok());
    kit.to("tax/all", &partner);
    let engine = kit.start().await;
    hand_over(&engine, (0..5).map(|n| message(&n.to_string(), None, "x"))).await;
    partner.wait(5).await;
    assert_eq!(kit.seen.lines("delivered"), 0, "told before it was written");
    kit.pass_until(Duration::from_secs(1), || kit.seen.lines("delivered") == 5).await;
    engine.stop().await;
    assert_eq!(partner.came().len(), 5);
}
