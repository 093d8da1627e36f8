//! One transaction on one connection: how it begins, its limits, and how it ends.
//!
//! Everything runs in one, reads as well, and nothing outlives it on the connection: behind a
//! transaction pooler the next one runs on another. Limits hold on the server, and here too, for a
//! server that does not answer any more.

use std::{io, sync::Arc, time::Duration};

use pabal_core::{Clock, StoreError};
use sqlx::{
    Executor, PgPool, Postgres,
    pool::PoolConnection,
    postgres::{PgConnection, PgRow},
};

use crate::{error, listen::CHANNEL, rows::Query};

/// What a transaction begins with, and how long it may take as a whole.
#[derive(Debug)]
pub(crate) struct Limits {
    begin: &'static str,
    whole: Duration,
}

/// Whatever the role or the database has by default: what two statements of a transaction see of others
/// is part of how they are written.
///
/// The planner is told to use indexes: the outbox is empty most of the time, and what was counted then
/// says nothing of the moment when a million rows wait. Everything that runs here is written for an
/// index, and none of it is long enough to be worth compiling.
macro_rules! begin {
    ($access:literal, $statement:literal, $more:literal) => {
        concat!(
            "BEGIN ISOLATION LEVEL READ COMMITTED, ",
            $access,
            "; SET LOCAL statement_timeout = '",
            $statement,
            "'; SET LOCAL lock_timeout = '5s'; \
             SET LOCAL idle_in_transaction_session_timeout = '5s'; SET LOCAL jit = off",
            $more
        )
    };
}
macro_rules! by_index {
    ($access:literal, $statement:literal) => {
        begin!(
            $access,
            $statement,
            "; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; \
             SET LOCAL enable_sort = off"
        )
    };
}

/// Of what the engine writes.
pub(crate) const WRITE: Limits =
    Limits { begin: by_index!("READ WRITE", "10s"), whole: Duration::from_secs(40) };
/// Of what the engine reads.
pub(crate) const READ: Limits =
    Limits { begin: by_index!("READ ONLY", "30s"), whole: Duration::from_secs(60) };
/// Of operators' questions, for which the planner knows best.
pub(crate) const ASK: Limits =
    Limits { begin: begin!("READ ONLY", "60s", ""), whole: Duration::from_secs(90) };
/// Of partitions, whose content may have to be moved.
pub(crate) const KEEP: Limits =
    Limits { begin: begin!("READ WRITE", "10min", ""), whole: Duration::from_secs(11 * 60) };

/// For how long a number that was given may stay unseen: until the transaction that took it is given up
/// here, and then until the server notices, in a statement (10 s) or between two (5 s). Only a commit
/// that waits for a standby has no limit; what it brings is found by reading everything again.
pub(crate) const LATE: Duration = Duration::from_secs(60);

/// While somebody else holds what a missing partition needs, it is asked for so often.
pub(crate) const PARTITION_ATTEMPTS: u32 = 10;

/// Runs `$act` in a transaction. A row that finds no partition of its day gets one, and it is done
/// again.
macro_rules! begin_and_end {
    ($store:expr, $transaction:ident => $act:expr) => {{
        let mut attempt = 1;
        loop {
            let mut transaction = $store.begin().await?;
            let $transaction = &mut transaction;
            let result = $act.await;
            match transaction.end(result).await {
                Err(error)
                    if attempt < $crate::transaction::PARTITION_ATTEMPTS
                        && $crate::error::is_without_partition(&error) =>
                {
                    attempt += 1;
                    tracing::warn!(alert = true, "a partition was missing and is made now");
                    $crate::housekeeping::make_partitions($store).await?;
                }
                result => break result?,
            }
        }
    }};
}
pub(crate) use begin_and_end;

/// A transaction that is open. Dropped before its end it takes its connection with it, because nobody
/// knows what is still to come on that.
#[derive(Debug)]
pub(crate) struct Transaction {
    connection: PoolConnection<Postgres>,
    clock: Arc<dyn Clock>,
    until: Duration,
    /// Whether statements are kept on the connection, to be planned once.
    named: bool,
    /// Whether an answer is still to come: nothing can be asked any more.
    lost: bool,
    ended: bool,
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.ended {
            self.connection.close_on_drop();
        }
    }
}

impl Transaction {
    pub(crate) async fn begin(
        pool: &PgPool,
        limits: &Limits,
        named: bool,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, sqlx::Error> {
        let connection = pool.acquire().await?;
        let (clock, until) = (Arc::clone(clock), clock.elapsed() + limits.whole);
        let mut transaction = Self { connection, clock, until, named, lost: false, ended: false };
        transaction.say(limits.begin).await?;
        Ok(transaction)
    }

    pub(crate) async fn fetch(&mut self, query: Query<'_>) -> Result<Vec<PgRow>, sqlx::Error> {
        let query = query.persistent(self.named);
        let rows = self.clock.timeout(self.left(), query.fetch_all(&mut *self.connection)).await;
        self.in_time(rows)
    }

    async fn execute(&mut self, query: Query<'_>) -> Result<u64, sqlx::Error> {
        let query = query.persistent(self.named);
        let done = self.clock.timeout(self.left(), query.execute(&mut *self.connection)).await;
        self.in_time(done).map(|done| done.rows_affected())
    }

    /// Commits what went well and takes back what did not.
    pub(crate) async fn end<T>(mut self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        match result {
            Ok(value) => match self.say("COMMIT").await {
                Ok(()) => {
                    self.ended = true;
                    Ok(value)
                }
                Err(error) => Err(error::commit(&error)),
            },
            Err(error) => {
                self.take_back().await;
                Err(error)
            }
        }
    }

    /// Ends it without writing anything.
    pub(crate) async fn take_back(mut self) {
        if self.lost {
            return;
        }
        // Should it fail, the connection is closed, and the server takes it back.
        match self.say("ROLLBACK").await {
            Ok(()) => self.ended = true,
            Err(rollback) => tracing::debug!(%rollback, "a transaction could not be taken back"),
        }
    }

    async fn say(&mut self, words: &'static str) -> Result<(), sqlx::Error> {
        let connection: &mut PgConnection = &mut self.connection;
        let said = self.clock.timeout(self.until.saturating_sub(self.clock.elapsed()), async {
            connection.execute(words).await
        });
        let said = said.await;
        self.in_time(said).map(drop)
    }

    fn left(&self) -> Duration {
        self.until.saturating_sub(self.clock.elapsed())
    }

    fn in_time<T>(&mut self, result: Option<Result<T, sqlx::Error>>) -> Result<T, sqlx::Error> {
        result.unwrap_or_else(|| {
            self.lost = true;
            let text = "the database has not answered for too long";
            Err(sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, text)))
        })
    }
}

/// Runs a statement; the number of rows it hit.
pub(crate) async fn execute(
    transaction: &mut Transaction,
    query: Query<'_>,
) -> Result<u64, StoreError> {
    transaction.execute(query).await.map_err(|error| error::classify(&error))
}

pub(crate) async fn fetch(
    transaction: &mut Transaction,
    query: Query<'_>,
) -> Result<Vec<PgRow>, StoreError> {
    transaction.fetch(query).await.map_err(|error| error::classify(&error))
}

/// Wakes all nodes, once this transaction has committed; however often it is called, once.
pub(crate) async fn notify(transaction: &mut Transaction) -> Result<(), StoreError> {
    let query = sqlx::query("SELECT pg_notify($1, '')").bind(CHANNEL);
    execute(transaction, query).await.map(drop)
}
