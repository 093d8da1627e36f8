//! The hot cache in front of the inbox: it may be wrong, the store decides.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, Ordering},
};

use async_trait::async_trait;
use pabal_core::{HotCache, MessageId, Reason, SendError, StoreError};
use pabal_engine::InProcess;

use crate::{
    kit::{Kit, Partner, message, name, ok},
    wrapped::Wrapped,
};

/// Answers what it was told to, and remembers what it was asked and what was noted.
#[derive(Debug, Default)]
struct Scripted {
    says: bool,
    asked: AtomicU32,
    noted: Mutex<Vec<MessageId>>,
}

#[async_trait]
impl HotCache for Scripted {
    async fn seen(&self, messages: &[MessageId]) -> Vec<bool> {
        self.asked.fetch_add(messages.len() as u32, Ordering::SeqCst);
        vec![self.says; messages.len()]
    }

    async fn note(&self, messages: &[MessageId]) {
        self.noted.lock().unwrap().extend(messages);
    }
}

fn caching(kit: &mut Kit, cache: &Arc<Scripted>) {
    kit.setup.sources[0].hot_cache = Some(Arc::clone(cache) as Arc<dyn HotCache>);
}

#[tokio::test]
async fn a_repeat_that_is_hot_is_answered_without_a_write_and_counted_later() {
    let mut kit = Kit::new().await;
    kit.setup.sources[0].hot_cache = Some(Arc::new(InProcess::holding(10.try_into().unwrap())));
    let partner = Partner::new(|_, _| ok());
    kit.to("tax/all", &partner);
    let engine = kit.start().await;
    let inbox = engine.inbox(&name("city/orders")).unwrap();
    let first = inbox.send(&[message("1", None, "x")]).await.remove(0).unwrap();
    kit.seen.wait("delivered", 1).await;
    for _ in 0..3 {
        let again = inbox.send(&[message("1", None, "x")]).await.remove(0).unwrap();
        assert!(again.duplicate && again.remote_id == first.remote_id, "{again:?}");
    }
    assert_eq!((kit.seen.lines("hot cache Repeat"), kit.seen.lines("duplicate")), (3, 3));
    engine.stop().await;
    let id = first.remote_id.unwrap().parse().unwrap();
    let story = kit.store.message(id).await.unwrap().unwrap();
    assert_eq!((story.duplicates, partner.came().len()), (3, 1));
}

#[tokio::test]
async fn a_cache_that_claims_to_have_seen_everything_loses_nothing_and_hides_no_conflict() {
    let mut kit = Kit::new().await;
    let cache = Arc::new(Scripted { says: true, ..Scripted::default() });
    caching(&mut kit, &cache);
    kit.to("tax/all", &Partner::new(|_, _| ok()));
    let engine = kit.start().await;
    let inbox = engine.inbox(&name("city/orders")).unwrap();
    for id in ["1", "2"] {
        let verdict = inbox.send(&[message(id, None, "x")]).await.remove(0);
        assert!(!verdict.unwrap().duplicate, "{id}");
    }
    let other = inbox.send(&[message("1", None, "other")]).await.remove(0);
    assert!(
        matches!(other, Err(SendError::Permanent { reason: Reason::Conflict, .. })),
        "{other:?}"
    );
    assert_eq!(kit.seen.lines("hot cache Wrong"), 3);
    kit.seen.wait("delivered", 2).await;
    engine.stop().await;
}

#[tokio::test]
async fn a_cache_that_remembers_nothing_lets_no_repeat_in_and_is_told_what_was_taken() {
    let mut kit = Kit::new().await;
    let cache = Arc::new(Scripted::default());
    caching(&mut kit, &cache);
    kit.to("tax/all", &Partner::new(|_, _| ok()));
    let engine = kit.start().await;
    let inbox = engine.inbox(&name("city/orders")).unwrap();
    let batch: Vec<_> = ["1", "2", "1"].map(|id| message(id, None, "x")).into();
    let verdicts = inbox.send(&batch).await;
    let duplicates: Vec<_> = verdicts.iter().map(|it| it.as_ref().unwrap().duplicate).collect();
    assert_eq!(duplicates, [false, false, true]);
    assert!(inbox.send(&batch[..1]).await.remove(0).unwrap().duplicate);
    engine.stop().await;
    assert_eq!(cache.asked.load(Ordering::SeqCst), 4);
    let ids: Vec<MessageId> = verdicts
        .into_iter()
        .map(|verdict| verdict.unwrap().remote_id.unwrap().parse().unwrap())
        .collect();
    assert_eq!(*cache.noted.lock().unwrap(), [ids[0], ids[1], ids[0]]);
}

#[tokio::test]
async fn repeats_go_the_long_way_while_the_store_cannot_be_asked() {
    let mut kit = Kit::new().await;
    let cache = Arc::new(Scripted { says: true, ..Scripted::default() });
    caching(&mut kit, &cache);
    Wrapped::under(&mut kit, |store| {
        let away = || StoreError::Unavailable("no route to the store".into());
        *store.lookups.lock().unwrap() = [away(), away()].into();
    });
    let engine = kit.start().await;
    let inbox = engine.inbox(&name("city/orders")).unwrap();
    for duplicate in [false, true] {
        let receipt = inbox.send(&[message("1", None, "x")]).await.remove(0).unwrap();
        assert_eq!(receipt.duplicate, duplicate);
    }
    assert_eq!(kit.seen.lines("hot cache"), 0);
    engine.stop().await;
}
