//! A hot cache in Redis, or in what speaks its protocol: one memory for all nodes, which outlives
//! their restarts.
//!
//! It holds nothing but ids of messages, under `pabal:{hub}:seen:{message id}`, each for a limited
//! time. A server that is slow or away costs a limited wait and is then left alone for a while; to
//! the hub it has seen nothing.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use pabal_core::{Clock, HotCache, MessageId, Secret};
use redis::{
    AsyncCommands, Client, Pipeline, RedisError,
    aio::{ConnectionManager, ConnectionManagerConfig},
};

/// A hint is worth no more than this: about what the long way takes.
const ANSWER: Duration = Duration::from_millis(100);
const CONNECT: Duration = Duration::from_millis(250);
/// How long a server that did not answer is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(5);

/// Remembers messages for a time. To be made inside a tokio runtime.
pub struct RedisCache {
    connection: ConnectionManager,
    prefix: String,
    keep: Duration,
    clock: Arc<dyn Clock>,
    /// Not asked before this time of the clock.
    away_until: Mutex<Duration>,
}

impl fmt::Debug for RedisCache {
    /// Nothing of the URL, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisCache").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// The URL is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAUrl;

impl fmt::Display for NotAUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("write redis://user:password@host:port/database, or rediss://… for TLS")
    }
}

impl std::error::Error for NotAUrl {}

impl RedisCache {
    /// Opens nothing yet. Each message is kept for `keep`, in whole seconds, since it was last seen
    /// to be taken.
    ///
    /// # Errors
    /// If the URL is none; quotes nothing of it.
    pub fn new(
        url: &Secret,
        hub: &str,
        keep: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, NotAUrl> {
        let client = Client::open(url.expose()).map_err(|_| NotAUrl)?;
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(ANSWER))
            .set_number_of_retries(0);
        let connection =
            ConnectionManager::new_lazy_with_config(client, config).map_err(|_| NotAUrl)?;
        let prefix = format!("pabal:{hub}:seen:");
        Ok(Self { connection, prefix, keep, clock, away_until: Mutex::default() })
    }

    fn key(&self, message: &MessageId) -> String {
        format!("{}{message}", self.prefix)
    }

    /// The connection, unless the server is being left alone.
    fn connection(&self) -> Option<ConnectionManager> {
        let away_until = *self.away_until.lock().unwrap_or_else(PoisonError::into_inner);
        (self.clock.elapsed() >= away_until).then(|| self.connection.clone())
    }

    fn leave_alone(&self, error: &RedisError) {
        let until = self.clock.elapsed() + LEFT_ALONE;
        *self.away_until.lock().unwrap_or_else(PoisonError::into_inner) = until;
        // Its text may quote the address, but never the password.
        eprintln!("{error:?}");
        tracing::warn!(%error, again_in = ?LEFT_ALONE, "the hot cache does not answer: all arrivals go the long way");
    }
}

#[async_trait]
impl HotCache for RedisCache {
    async fn seen(&self, messages: &[MessageId]) -> Vec<bool> {
        let nothing = vec![false; messages.len()];
        let (Some(mut connection), false) = (self.connection(), messages.is_empty()) else {
            return nothing;
        };
        let keys: Vec<_> = messages.iter().map(|message| self.key(message)).collect();
        let values: Result<Vec<Option<bool>>, _> = connection.mget(keys).await;
        match values {
            Ok(values) if values.len() == messages.len() => {
                values.into_iter().map(|value| value.is_some()).collect()
            }
            Ok(_) => nothing,
            Err(error) => {
                self.leave_alone(&error);
                nothing
            }
        }
    }

    async fn note(&self, messages: &[MessageId]) {
        let (Some(mut connection), false) = (self.connection(), messages.is_empty()) else {
            return;
        };
        let mut pipeline = Pipeline::with_capacity(messages.len());
        for message in messages {
            pipeline.set_ex(self.key(message), 1, self.keep.as_secs().max(1)).ignore();
        }
        let done: Result<(), _> = pipeline.query_async(&mut connection).await;
        if let Err(error) = done {
            self.leave_alone(&error);
        }
    }
}
