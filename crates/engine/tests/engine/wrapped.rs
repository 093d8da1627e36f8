//! A store that fails as told, or that is one of many nodes' view of the same store.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use pabal_core::*;

use crate::kit::Kit;

/// Does what the store behind it does, unless it was told otherwise.
#[derive(Debug)]
pub(crate) struct Wrapped {
    inner: Arc<dyn Store>,
    /// For the next calls of `accept`; with `true` the group is stored all the same.
    pub(crate) accepts: Mutex<VecDeque<(StoreError, bool)>>,
    pub(crate) settles: Mutex<VecDeque<StoreError>>,
    /// For the next calls of `fingerprints`.
    pub(crate) lookups: Mutex<VecDeque<StoreError>>,
    /// A group with this body in it can never be stored.
    pub(crate) poison: Option<&'static [u8]>,
    /// Other nodes work on it too.
    pub(crate) shared: bool,
    /// This node cannot reach it.
    pub(crate) cut_off: AtomicBool,
    /// The next tail read of more than one misses the one at this place in it, which commits right
    /// after.
    pub(crate) late: Mutex<Option<usize>>,
    /// Pages that were looked through for pulls.
    pub(crate) pulls: Arc<AtomicUsize>,
}

impl Wrapped {
    pub(crate) fn of(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            accepts: Mutex::default(),
            settles: Mutex::default(),
            lookups: Mutex::default(),
            poison: None,
            shared: false,
            cut_off: AtomicBool::new(false),
            late: Mutex::default(),
            pulls: Arc::default(),
        }
    }

    pub(crate) fn under(kit: &mut Kit, change: impl FnOnce(&mut Self)) {
        let mut wrapped = Self::of(Arc::clone(&kit.store));
        change(&mut wrapped);
        kit.store = Arc::new(wrapped);
    }

    fn reached(&self) -> Result<(), StoreError> {
        match self.cut_off.load(Ordering::SeqCst) {
            true => Err(StoreError::Unavailable("no route to the store".into())),
            false => Ok(()),
        }
    }
}

macro_rules! wrapped {
    ($($method:ident($($argument:ident: $type:ty),*) -> $output:ty;)*) => {
        #[async_trait]
        impl Store for Wrapped {
            async fn accept(&self, group: &[Entry]) -> Result<Vec<Accepted>, StoreError> {
                self.reached()?;
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
            async fn settle(
                &self,
                epoch: Epoch,
                group: &[Settlement],
            ) -> Result<Vec<Settled>, StoreError> {
                self.reached()?;
                let fault = self.settles.lock().unwrap().pop_front();
                match fault {
                    Some(error) => Err(error),
                    None => self.inner.settle(epoch, group).await,
                }
            }
            async fn fingerprints(
                &self,
                which: &[Identity],
            ) -> Result<Vec<Option<Fingerprint>>, StoreError> {
                self.reached()?;
                let fault = self.lookups.lock().unwrap().pop_front();
                match fault {
                    Some(error) => Err(error),
                    None => self.inner.fingerprints(which).await,
                }
            }
            fn alongside(&self) -> bool {
                self.inner.alongside()
            }
            async fn pull(
                &self,
                destination: &EndpointName,
                ask: &PullAsk,
            ) -> Result<PullPage, StoreError> {
                self.reached()?;
                self.pulls.fetch_add(1, Ordering::SeqCst);
                self.inner.pull(destination, ask).await
            }
            fn shared(&self) -> bool {
                self.shared
            }
            fn late_commits_for(&self) -> Duration {
                Duration::from_secs(60)
            }
            async fn deliveries(
                &self,
                which: Which<'_>,
                limit: usize,
            ) -> Result<Vec<Delivery>, StoreError> {
                self.reached()?;
                let is_tail = matches!(which, Which::Tail { .. });
                let mut rows = self.inner.deliveries(which, limit).await?;
                if is_tail && rows.len() > 1 && let Some(place) = self.late.lock().unwrap().take() {
                    rows.remove(place);
                }
                Ok(rows)
            }
            async fn changed(&self) {
                // Nodes of these tests find what others wrote by looking.
                std::future::pending::<()>().await;
            }
            $(async fn $method(&self, $($argument: $type),*) -> Result<$output, StoreError> {
                self.reached()?;
                self.inner.$method($($argument),*).await
            })*
        }
    };
}

wrapped! {
    count_repeats(repeats: &[(Identity, u32)]) -> ();
    join(node: &str, plan: &NodePlan) -> Epoch;
    beat(epoch: Epoch) -> Vec<Beat>;
    leave(epoch: Epoch) -> bool;
    nodes() -> Vec<Beat>;
    plan(hash: &str) -> Option<Vec<EndpointName>>;
    layouts() -> Vec<Layout>;
    lay_out(destination: &EndpointName, lanes: u16, order: Order) -> Layout;
    lanes() -> Vec<LaneHolder>;
    take_lane(lane: &Lane, from: Option<StandingStill>, to: Epoch) -> bool;
    release_lane(lane: &Lane, holder: Epoch) -> bool;
    give_up_lane(lane: &Lane, holder: StandingStill) -> bool;
    load(which: &[(Number, MessageId)]) -> Vec<Option<Loaded>>;
    mark_started(epoch: Epoch, starts: &[(Number, u32)]) -> ();
    held(destination: &EndpointName) -> Vec<(Option<String>, Number)>;
    dead_letters(query: &DeadLetterQuery) -> Vec<DeadLetter>;
    dead_letter_groups(query: &DeadLetterQuery) -> Vec<DeadLetterGroup>;
    dead_message(id: i64) -> Option<Message>;
    replay(ids: &[i64], act: &OperatorAct) -> Vec<DeadLetter>;
    discard(ids: &[i64], act: &OperatorAct) -> Vec<DeadLetter>;
    messages(query: &MessageQuery) -> Vec<MessageSummary>;
    message(id: MessageId) -> Option<MessageStory>;
    message_content(id: MessageId) -> Option<Message>;
    route(routings: &[Routing], act: &OperatorAct) -> u64;
    counts() -> Vec<EndpointCounts>;
    unrouted() -> u64;
    link_states() -> Vec<LinkState>;
    set_link_state(endpoint: &EndpointName, change: LinkChange, act: Option<&OperatorAct>) -> ();
    note(act: &OperatorAct) -> ();
    housekeep(keep: &Retention) -> Housekeeping;
    vitals() -> Vitals;
    requests(after: i64) -> Vec<(i64, Request)>;
    state(endpoint: &EndpointName, name: &str) -> Option<StateValue>;
    set_state(endpoint: &EndpointName, name: &str, revision: i64, value: Bytes)
        -> Result<(), StateConflict>;
}
