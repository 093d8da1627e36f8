//! Small durable values of adapters: a resume point, a log position.

use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;

use crate::StoreError;

/// A durable value and its number of writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateValue {
    /// Grows by one with every write; 0 stands for "not there".
    pub revision: i64,
    /// The value.
    pub value: Bytes,
}

/// A write that commits in the same transaction as the message it came with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateWrite {
    /// The value's name within the source or destination.
    pub name: String,
    /// The new value; the last write of a group wins.
    pub value: Bytes,
}

/// Somebody else wrote in between; read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the value was changed in between")]
pub struct StateConflict;

/// Small durable values of one source or destination.
#[async_trait]
pub trait State: Debug + Send + Sync {
    /// The value under `name`.
    ///
    /// # Errors
    /// If the store cannot say.
    async fn get(&self, name: &str) -> Result<Option<StateValue>, StoreError>;

    /// Writes `value` if the value still has `revision` (0: is not there yet).
    ///
    /// # Errors
    /// If the store cannot; a lost race is `Ok(Err(StateConflict))`.
    async fn compare_and_set(
        &self,
        name: &str,
        revision: i64,
        value: Bytes,
    ) -> Result<Result<(), StateConflict>, StoreError>;
}
