//! The hot cache in this process.

use std::{
    num::NonZeroUsize,
    sync::{Mutex, PoisonError},
};

use async_trait::async_trait;
use lru::LruCache;
use pabal_core::{HotCache, MessageId};

/// Remembers the messages seen last, about 60 bytes each. Every node has its own, and a restart
/// empties it.
#[derive(Debug)]
pub struct InProcess(Mutex<LruCache<MessageId, ()>>);

impl InProcess {
    /// One that holds so many.
    #[must_use]
    pub fn holding(messages: NonZeroUsize) -> Self {
        // Grows as it fills: a generous limit costs nothing by itself.
        let mut cache = LruCache::unbounded();
        cache.resize(messages);
        Self(Mutex::new(cache))
    }
}

#[async_trait]
impl HotCache for InProcess {
    async fn seen(&self, messages: &[MessageId]) -> Vec<bool> {
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        messages.iter().map(|message| cache.get(message).is_some()).collect()
    }

    async fn note(&self, messages: &[MessageId]) {
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for message in messages {
            cache.put(*message, ());
        }
    }
}
