//! One transaction of an application's database, whichever it is.

use std::ops::{Deref, DerefMut};

use async_trait::async_trait;
use pabal_core::{Message, MessageId, SendError};
use sqlx::{Database, pool::PoolConnection};

use super::parameter::Values;

/// The steps of a transaction. What fails makes the whole of it worthless: it is taken back, or
/// dropped, which ends the connection, so that no lock outlives it.
#[async_trait]
pub(super) trait Transaction: Send {
    /// Puts the messages into the inbox where they are not in it; which of them were not.
    async fn insert(&mut self, messages: &[Values<'_>]) -> Result<Vec<bool>, SendError>;

    /// Notes the version of this message, unless a higher one is held: then false.
    async fn raise(&mut self, values: &Values<'_>) -> Result<bool, SendError>;

    /// Does what else is to be done with it.
    async fn apply(&mut self, values: &Values<'_>) -> Result<(), SendError>;

    /// Tells those that wait, once it is committed.
    async fn tell(&mut self, new: &[MessageId]) -> Result<(), SendError>;

    /// Commits.
    async fn commit(self: Box<Self>) -> Result<(), SendError>;

    /// Takes everything back.
    async fn take_back(self: Box<Self>);
}

/// A connection that is in a transaction: given back to its pool only in words, and closed if it is
/// dropped, since nobody knows what it is doing then.
#[derive(Debug)]
pub(super) struct Lent<DB: Database>(Option<PoolConnection<DB>>);

impl<DB: Database> Lent<DB> {
    pub(super) fn new(connection: PoolConnection<DB>) -> Self {
        Self(Some(connection))
    }

    /// Back into the pool: the transaction is over.
    pub(super) fn give_back(mut self) {
        drop(self.0.take());
    }
}

impl<DB: Database> Deref for Lent<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        self.0.as_ref().expect("it is given back by value")
    }
}

impl<DB: Database> DerefMut for Lent<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        self.0.as_mut().expect("it is given back by value")
    }
}

impl<DB: Database> Drop for Lent<DB> {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(connection.detach());
        }
    }
}

/// Whose version it is, and which, where it has one.
pub(super) fn versioned(message: &Message) -> Option<(&str, i64)> {
    message.key.as_deref().zip(message.version)
}
