//! The embedded store: one SQLite file, one running hub.
//!
//! Every writing method is one `BEGIN IMMEDIATE` transaction on the only writer connection, ended
//! explicitly; reads run beside it on a small pool. A group is written by few statements of many
//! rows each. Times come from the [`Clock`] passed in and stand as microseconds.

mod accept;
mod claim;
mod dead_letters;
mod error;
mod filesystem;
mod housekeeping;
mod inbox;
mod links;
mod lock;
mod messages;
mod nodes;
mod open;
mod probe;
mod pull;
mod replay;
mod route;
mod rows;
mod settle;
mod story;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use pabal_core::*;
use sqlx::{Sqlite, SqliteConnection, SqlitePool, Transaction, sqlite::SqliteRow};

use crate::rows::Query;
pub use crate::{
    lock::{LockError, RunLock},
    open::{OpenError, Options},
};

/// The store on one SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    write: SqlitePool,
    /// For the engine, ...
    read: SqlitePool,
    /// ... and for operators, whose questions may take their time.
    operators: SqlitePool,
    clock: Arc<dyn Clock>,
}

/// How often the write lock is asked for, each time for as long as SQLite itself waits, before the
/// engine is told to come again.
const BEGIN_ATTEMPTS: u32 = 6;

impl SqliteStore {
    /// Closes the file, so that its write-ahead log is folded in.
    pub async fn close(&self) {
        self.read.close().await;
        self.operators.close().await;
        self.write.close().await;
    }

    fn now(&self) -> i64 {
        self.clock.now().as_microsecond()
    }

    /// A transaction that holds the write lock from its first statement: one that reads first and
    /// writes later fails at once when another process writes in between, whatever the timeout.
    async fn begin(&self) -> Result<Transaction<'static, Sqlite>, StoreError> {
        let mut attempt = 1;
        loop {
            match self.write.begin_with("BEGIN IMMEDIATE").await {
                Ok(transaction) => return Ok(transaction),
                Err(busy) if error::is_busy(&busy) && attempt < BEGIN_ATTEMPTS => {
                    tracing::warn!(attempt, "another process holds the database's write lock");
                    attempt += 1;
                }
                Err(other) => return Err(error::classify(&other)),
            }
        }
    }

    async fn fetch(&self, query: Query<'_>) -> Result<Vec<SqliteRow>, StoreError> {
        query.fetch_all(&self.read).await.map_err(|error| error::classify(&error))
    }

    /// Like [`Self::fetch`], for a question that no send waits for.
    async fn ask(&self, query: Query<'_>) -> Result<Vec<SqliteRow>, StoreError> {
        query.fetch_all(&self.operators).await.map_err(|error| error::classify(&error))
    }
}

/// Commits what went well and takes back what did not: a transaction merely dropped would keep the
/// write lock until the connection is used again.
async fn end<T>(
    transaction: Transaction<'static, Sqlite>,
    result: Result<T, StoreError>,
) -> Result<T, StoreError> {
    match result {
        Ok(value) => match transaction.commit().await {
            Ok(()) => Ok(value),
            Err(error) => Err(error::commit(&error)),
        },
        Err(error) => {
            if let Err(rollback) = transaction.rollback().await {
                tracing::warn!(%rollback, "a transaction could not be taken back");
            }
            Err(error)
        }
    }
}

/// Runs a statement; the number of rows it hit.
async fn execute(connection: &mut SqliteConnection, query: Query<'_>) -> Result<u64, StoreError> {
    query
        .execute(connection)
        .await
        .map(|done| done.rows_affected())
        .map_err(|error| error::classify(&error))
}

async fn fetch(
    connection: &mut SqliteConnection,
    query: Query<'_>,
) -> Result<Vec<SqliteRow>, StoreError> {
    query.fetch_all(connection).await.map_err(|error| error::classify(&error))
}

#[async_trait]
impl Store for SqliteStore {
    async fn accept(&self, group: &[Entry]) -> Result<Vec<Accepted>, StoreError> {
        let mut transaction = self.begin().await?;
        let result = accept::accept(&mut transaction, group, self.now()).await;
        end(transaction, result).await
    }

    async fn fingerprints(
        &self,
        which: &[Identity],
    ) -> Result<Vec<Option<Fingerprint>>, StoreError> {
        inbox::fingerprints(self, which).await
    }

    async fn count_repeats(&self, repeats: &[(Identity, u32)]) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        let result = inbox::count(&mut transaction, repeats, self.now()).await;
        end(transaction, result).await
    }

    /// Never: whoever opens the file to run holds its run lock.
    fn shared(&self) -> bool {
        false
    }

    async fn join(&self, node: &str, plan: &NodePlan) -> Result<Epoch, StoreError> {
        let mut transaction = self.begin().await?;
        let result = nodes::join(&mut transaction, node, plan, self.now()).await;
        end(transaction, result).await
    }

    async fn beat(&self, epoch: Epoch) -> Result<Vec<Beat>, StoreError> {
        let mut transaction = self.begin().await?;
        let result = nodes::beat(&mut transaction, epoch, self.now()).await;
        end(transaction, result).await
    }

    async fn leave(&self, epoch: Epoch) -> Result<bool, StoreError> {
        let mut transaction = self.begin().await?;
        let result = nodes::leave(&mut transaction, epoch).await;
        end(transaction, result).await
    }

    async fn nodes(&self) -> Result<Vec<Beat>, StoreError> {
        nodes::nodes(self).await
    }

    async fn plan(&self, hash: &str) -> Result<Option<Vec<EndpointName>>, StoreError> {
        nodes::plan(self, hash).await
    }

    async fn layouts(&self) -> Result<Vec<Layout>, StoreError> {
        nodes::layouts(self).await
    }

    async fn lay_out(
        &self,
        destination: &EndpointName,
        lanes: u16,
        order: Order,
    ) -> Result<Layout, StoreError> {
        let mut transaction = self.begin().await?;
        let result = nodes::lay_out(&mut transaction, destination, lanes, order).await;
        end(transaction, result).await
    }

    async fn lanes(&self) -> Result<Vec<LaneHolder>, StoreError> {
        nodes::lanes(self).await
    }

    async fn take_lane(
        &self,
        lane: &Lane,
        from: Option<StandingStill>,
        to: Epoch,
    ) -> Result<bool, StoreError> {
        let mut transaction = self.begin().await?;
        let result = nodes::take_lane(&mut transaction, lane, from, to).await;
        end(transaction, result).await
    }

    async fn release_lane(&self, lane: &Lane, holder: Epoch) -> Result<bool, StoreError> {
        let mut transaction = self.begin().await?;
        let result = nodes::release_lane(&mut transaction, lane, holder, true).await;
        end(transaction, result).await
    }

    async fn give_up_lane(&self, lane: &Lane, holder: StandingStill) -> Result<bool, StoreError> {
        let mut transaction = self.begin().await?;
        let result = nodes::give_up_lane(&mut transaction, lane, holder).await;
        end(transaction, result).await
    }

    async fn changed(&self) {
        std::future::pending().await
    }

    async fn deliveries(
        &self,
        which: Which<'_>,
        limit: usize,
    ) -> Result<Vec<Delivery>, StoreError> {
        claim::deliveries(self, which, limit).await
    }

    /// Never: there is one writer, so what is committed later has a higher number.
    fn late_commits_for(&self) -> Duration {
        Duration::ZERO
    }

    async fn load(&self, which: &[(Number, MessageId)]) -> Result<Vec<Option<Loaded>>, StoreError> {
        claim::load(self, which).await
    }

    async fn mark_started(&self, epoch: Epoch, starts: &[(Number, u32)]) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        let result = claim::mark_started(&mut transaction, epoch, starts).await;
        end(transaction, result).await
    }

    async fn held(
        &self,
        destination: &EndpointName,
    ) -> Result<Vec<(Option<String>, Number)>, StoreError> {
        claim::held(self, destination).await
    }

    async fn settle(&self, epoch: Epoch, group: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        let mut transaction = self.begin().await?;
        let result = settle::settle(&mut transaction, epoch, group, self.now()).await;
        end(transaction, result).await
    }

    async fn pull(
        &self,
        destination: &EndpointName,
        ask: &PullAsk,
    ) -> Result<PullPage, StoreError> {
        let mut transaction = self.begin().await?;
        let result = pull::pull(&mut transaction, destination, ask, self.now()).await;
        end(transaction, result).await
    }

    async fn dead_letters(&self, query: &DeadLetterQuery) -> Result<Vec<DeadLetter>, StoreError> {
        dead_letters::list(self, query).await
    }

    async fn dead_letter_groups(
        &self,
        query: &DeadLetterQuery,
    ) -> Result<Vec<DeadLetterGroup>, StoreError> {
        dead_letters::groups(self, query).await
    }

    async fn dead_message(&self, id: i64) -> Result<Option<Message>, StoreError> {
        dead_letters::message(self, id).await
    }

    async fn replay(&self, ids: &[i64], act: &OperatorAct) -> Result<Vec<DeadLetter>, StoreError> {
        let mut transaction = self.begin().await?;
        let result = replay::replay(&mut transaction, ids, act, self.now()).await;
        end(transaction, result).await
    }

    async fn discard(&self, ids: &[i64], act: &OperatorAct) -> Result<Vec<DeadLetter>, StoreError> {
        let mut transaction = self.begin().await?;
        let result = replay::discard(&mut transaction, ids, act, self.now()).await;
        end(transaction, result).await
    }

    async fn messages(&self, query: &MessageQuery) -> Result<Vec<MessageSummary>, StoreError> {
        messages::list(self, query).await
    }

    async fn message(&self, id: MessageId) -> Result<Option<MessageStory>, StoreError> {
        story::message(self, id).await
    }

    async fn message_content(&self, id: MessageId) -> Result<Option<Message>, StoreError> {
        messages::content(self, id).await
    }

    async fn route(&self, routings: &[Routing], act: &OperatorAct) -> Result<u64, StoreError> {
        let mut transaction = self.begin().await?;
        let result = route::route(&mut transaction, routings, act, self.now()).await;
        end(transaction, result).await
    }

    async fn counts(&self) -> Result<Vec<EndpointCounts>, StoreError> {
        links::counts(self).await
    }

    async fn unrouted(&self) -> Result<u64, StoreError> {
        links::unrouted(self).await
    }

    async fn link_states(&self) -> Result<Vec<LinkState>, StoreError> {
        links::link_states(self).await
    }

    async fn set_link_state(
        &self,
        endpoint: &EndpointName,
        change: LinkChange,
        act: Option<&OperatorAct>,
    ) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        let result =
            links::set_link_state(&mut transaction, endpoint, &change, act, self.now()).await;
        end(transaction, result).await
    }

    async fn note(&self, act: &OperatorAct) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        let result = links::note(&mut transaction, act, self.now()).await;
        end(transaction, result).await
    }

    async fn housekeep(&self, keep: &Retention) -> Result<Housekeeping, StoreError> {
        housekeeping::housekeep(self, keep).await
    }

    async fn vitals(&self) -> Result<Vitals, StoreError> {
        Ok(Vitals::default())
    }

    async fn requests(&self, after: i64) -> Result<Vec<(i64, Request)>, StoreError> {
        links::requests(self, after).await
    }

    async fn state(
        &self,
        endpoint: &EndpointName,
        name: &str,
    ) -> Result<Option<StateValue>, StoreError> {
        links::state(self, endpoint, name).await
    }

    async fn set_state(
        &self,
        endpoint: &EndpointName,
        name: &str,
        revision: i64,
        value: Bytes,
    ) -> Result<Result<(), StateConflict>, StoreError> {
        let mut transaction = self.begin().await?;
        let result = links::set_state(&mut transaction, endpoint, name, revision, &value).await;
        end(transaction, result).await
    }
}
