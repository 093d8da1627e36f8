//! What the engine makes of a store that fails.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use pabal_core::*;

use crate::kit::{Kit, Partner, hand_over, message, name, ok};

/// A store that fails as told, and otherwise does what the one behind it does.
#[derive(Debug)]
struct Faulty {
    inner: Arc<dyn Store>,
    /// For the next calls of `accept`; with `true` the group is stored all the same.
    accepts: Mutex<VecDeque<(StoreError, bool)>>,
    settles: Mutex<VecDeque<StoreError>>,
    /// A group with this body in it can never be stored.
    poison: Option<&'static [u8]>,
}

impl Faulty {
    fn under(kit: &mut Kit, change: impl FnOnce(&mut Self)) {
        let inner = Arc::clone(&kit.store);
        let (accepts, settles) = (Mutex::default(), Mutex::default());
        let mut faulty = Self { inner, accepts, settles, poison: None };
        change(&mut faulty);
        kit.store = Arc::new(faulty);
    }
}

#[async_trait]
impl Store for Faulty {
    async fn accept(&self, group: &[Entry]) -> Result<Vec<Accepted>, StoreError> {
        let body = |entry: &Entry| match entry {
            Entry::Message(new) => new.message.body.inline().cloned(),
            Entry::SetAside(_) => None,
        };
        if let Some(poison) = self.poison
            && group.iter().any(|entry| body(entry).is_some_and(|body| body == poison))
        {
            return Err(StoreError::Rejected("poison".into()));
        }
        let fault = self.accepts.lock().unwrap().pop_front();
        match fault {
            Some((error, false)) => Err(error),
            Some((error, true)) => self.inner.accept(group).await.and(Err(error)),
            None => self.inner.accept(group).await,
        }
    }
    async fn settle(&self, epoch: Epoch, group: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        let fault = self.settles.lock().unwrap().pop_front();
        match fault {
            Some(error) => Err(error),
            None => self.inner.settle(epoch, group).await,
        }
    }
    async fn join(&self, node: &str) -> Result<Epoch, StoreError> {
        self.inner.join(node).await
    }
    async fn beat(&self, epoch: Epoch) -> Result<Vec<Beat>, StoreError> {
        self.inner.beat(epoch).await
    }
    async fn lanes(&self) -> Result<Vec<LaneHolder>, StoreError> {
        self.inner.lanes().await
    }
    async fn hand_lane(
        &self,
        lane: &Lane,
        from: Option<Epoch>,
        to: Option<Epoch>,
    ) -> Result<bool, StoreError> {
        self.inner.hand_lane(lane, from, to).await
    }
    async fn deliveries(
        &self,
        which: Which<'_>,
        limit: usize,
    ) -> Result<Vec<Delivery>, StoreError> {
        self.inner.deliveries(which, limit).await
    }
    fn late_commits_for(&self) -> Duration {
        self.inner.late_commits_for()
    }
    async fn load(&self, which: &[(Number, MessageId)]) -> Result<Vec<Option<Loaded>>, StoreError> {
        self.inner.load(which).await
    }
    async fn mark_started(&self, epoch: Epoch, starts: &[(Number, u32)]) -> Result<(), StoreError> {
        self.inner.mark_started(epoch, starts).await
    }
    async fn held(
        &self,
        destination: &EndpointName,
    ) -> Result<Vec<(Option<String>, Number)>, StoreError> {
        self.inner.held(destination).await
    }
    async fn dead_letters(&self, query: &DeadLetterQuery) -> Result<Vec<DeadLetter>, StoreError> {
        self.inner.dead_letters(query).await
    }
    async fn dead_letter_groups(
        &self,
        query: &DeadLetterQuery,
    ) -> Result<Vec<DeadLetterGroup>, StoreError> {
        self.inner.dead_letter_groups(query).await
    }
    async fn dead_message(&self, id: i64) -> Result<Option<Message>, StoreError> {
        self.inner.dead_message(id).await
    }
    async fn replay(&self, ids: &[i64], act: &OperatorAct) -> Result<Vec<DeadLetter>, StoreError> {
        self.inner.replay(ids, act).await
    }
    async fn discard(&self, ids: &[i64], act: &OperatorAct) -> Result<Vec<DeadLetter>, StoreError> {
        self.inner.discard(ids, act).await
    }
    async fn messages(&self, query: &MessageQuery) -> Result<Vec<MessageSummary>, StoreError> {
        self.inner.messages(query).await
    }
    async fn message(&self, id: MessageId) -> Result<Option<MessageStory>, StoreError> {
        self.inner.message(id).await
    }
    async fn message_content(&self, id: MessageId) -> Result<Option<Message>, StoreError> {
        self.inner.message_content(id).await
    }
    async fn route(&self, routings: &[Routing], act: &OperatorAct) -> Result<u64, StoreError> {
        self.inner.route(routings, act).await
    }
    async fn counts(&self) -> Result<Vec<EndpointCounts>, StoreError> {
        self.inner.counts().await
    }
    async fn unrouted(&self) -> Result<u64, StoreError> {
        self.inner.unrouted().await
    }
    async fn link_states(&self) -> Result<Vec<LinkState>, StoreError> {
        self.inner.link_states().await
    }
    async fn set_link_state(
        &self,
        endpoint: &EndpointName,
        change: LinkChange,
        act: Option<&OperatorAct>,
    ) -> Result<(), StoreError> {
        self.inner.set_link_state(endpoint, change, act).await
    }
    async fn note(&self, act: &OperatorAct) -> Result<(), StoreError> {
        self.inner.note(act).await
    }
    async fn requests(&self, after: i64) -> Result<Vec<(i64, Request)>, StoreError> {
        self.inner.requests(after).await
    }
    async fn state(
        &self,
        endpoint: &EndpointName,
        name: &str,
    ) -> Result<Option<StateValue>, StoreError> {
        self.inner.state(endpoint, name).await
    }
    async fn set_state(
        &self,
        endpoint: &EndpointName,
        name: &str,
        revision: i64,
        value: Bytes,
    ) -> Result<Result<(), StateConflict>, StoreError> {
        self.inner.set_state(endpoint, name, revision, value).await
    }
}

#[tokio::test]
async fn a_commit_with_an_unknown_outcome_is_done_again_with_the_same_ids() {
    let mut kit = Kit::new().await;
    Faulty::under(&mut kit, |faulty| {
        let unknown = || StoreError::Unknown("the answer was lost".into());
        *faulty.accepts.lock().unwrap() = [(unknown(), true), (unknown(), false)].into();
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
    Faulty::under(&mut kit, |faulty| faulty.poison = Some(b"poison"));
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
    Faulty::under(&mut kit, |faulty| {
        *faulty.accepts.lock().unwrap() =
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
    Faulty::under(&mut kit, |faulty| {
        let busy = || StoreError::Unavailable("locked".into());
        *faulty.settles.lock().unwrap() = std::iter::repeat_with(busy).take(10).collect();
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
