//! Repeats that a hot cache hints at and the store confirms by reading: nothing is written for each
//! of them. They are counted in groups a little later.

use std::{collections::HashMap, sync::Arc, time::Duration};

use pabal_core::{Entry, HotCache, Identity, MessageId, Receipt, Verdict};
use tokio::sync::mpsc;

use super::Shared;
use crate::{Event, Hint, Source};

/// Repeats that wait to be counted; beyond that they go the long way, which counts them at once.
const UNCOUNTED_MAX: usize = 10_000;
/// Counted together at most.
const GROUP_MAX: usize = 1_000;
/// How long they gather.
const GATHER: Duration = Duration::from_secs(1);

/// The short way for repeats of one source.
#[derive(Debug, Clone)]
pub(super) struct Repeats {
    source: Arc<Source>,
    shared: Arc<Shared>,
    cache: Arc<dyn HotCache>,
    uncounted: mpsc::Sender<Identity>,
}

impl Repeats {
    /// With the work of counting; none for a source without a cache.
    pub(super) fn of(source: &Arc<Source>, shared: &Arc<Shared>) -> Option<(Self, Tally)> {
        let cache = Arc::clone(source.hot_cache.as_ref()?);
        let (uncounted, repeats) = mpsc::channel(UNCOUNTED_MAX);
        let (source, shared) = (Arc::clone(source), Arc::clone(shared));
        let tally = Tally { shared: Arc::clone(&shared), repeats };
        Some((Self { source, shared, cache, uncounted }, tally))
    }

    /// A verdict for each entry that is a repeat beyond doubt: the cache has seen it, and the store
    /// holds it with the same content.
    pub(super) async fn confirm(&self, entries: &[Option<&Entry>]) -> Vec<Option<Verdict>> {
        let mut verdicts = vec![None; entries.len()];
        let asked: Vec<_> = entries
            .iter()
            .enumerate()
            .filter_map(|(index, entry)| match entry {
                // What is to be done alongside is to be done for a repeat as well.
                Some(Entry::Message(new)) if new.message.arrival.alongside.is_none() => {
                    Some((index, new))
                }
                _ => None,
            })
            .collect();
        let ids: Vec<MessageId> = asked.iter().map(|(_, new)| new.message.id).collect();
        if ids.is_empty() {
            return verdicts;
        }
        let seen = self.cache.seen(&ids).await;
        let (seen, unseen): (Vec<_>, Vec<_>) = asked
            .into_iter()
            .enumerate()
            .partition(|(place, _)| seen.get(*place).is_some_and(|seen| *seen));
        unseen.iter().for_each(|_| self.observe(Hint::Unseen));
        let asked: Vec<_> = seen
            .into_iter()
            .filter_map(|(_, (index, new))| Some((index, new, Identity::of(&new.message)?)))
            .collect();
        if asked.is_empty() {
            return verdicts;
        }
        let which: Vec<Identity> = asked.iter().map(|(.., identity)| identity.clone()).collect();
        let held = match self.shared.store.fingerprints(&which).await {
            Ok(held) => held,
            Err(error) => {
                // The long way says the same to the origin, or it goes well.
                tracing::debug!(source = %self.source.name, %error, "repeats were not looked up");
                return verdicts;
            }
        };
        for ((index, new, identity), held) in asked.into_iter().zip(held) {
            let message = new.message.id;
            let counted = || self.uncounted.try_send(identity).is_ok();
            if held != Some(new.fingerprint) || !counted() {
                self.observe(Hint::Wrong);
                continue;
            }
            self.observe(Hint::Repeat);
            let source = &self.source.name;
            self.shared.observer.observe(Event::Duplicate { source, message });
            let remote_id = Some(message.to_string());
            verdicts[index] =
                Some(Ok(Receipt { remote_id, duplicate: true, ..Receipt::default() }));
        }
        verdicts
    }

    fn observe(&self, hint: Hint) {
        self.shared.observer.observe(Event::HotCache { source: &self.source.name, hint });
    }
}

/// Counts the repeats of one source.
pub(super) struct Tally {
    shared: Arc<Shared>,
    repeats: mpsc::Receiver<Identity>,
}

impl Tally {
    /// Until the inbox closes. What the store does not take is not counted: it is a statistic.
    pub(super) async fn run(mut self) {
        let mut fresh = Vec::with_capacity(GROUP_MAX);
        loop {
            tokio::select! {
                biased;
                () = self.shared.closing.wait(), if !self.repeats.is_closed() => {
                    self.repeats.close();
                    continue;
                }
                count = self.repeats.recv_many(&mut fresh, GROUP_MAX) => if count == 0 {
                    return;
                },
            }
            let mut counts: HashMap<Identity, u32> = HashMap::new();
            for identity in fresh.drain(..) {
                *counts.entry(identity).or_default() += 1;
            }
            let counts: Vec<_> = counts.into_iter().collect();
            if let Err(error) = self.shared.store.count_repeats(&counts).await {
                tracing::warn!(%error, "repeats were not counted");
            }
            tokio::select! {
                () = self.shared.closing.wait() => {}
                () = self.shared.clock.sleep(GATHER) => {}
            }
        }
    }
}
