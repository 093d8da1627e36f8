//! The production store: PostgreSQL 13 or later, any number of hubs.
//!
//! Every writing method is one transaction with limits of its own; a group is written by few
//! statements of many rows each. Times and days come from the database, by `pabal.time()`. Nothing
//! rests on a session: it works behind a transaction pooler, but for listening.

mod accept;
mod claim;
mod dead_letters;
mod error;
mod housekeeping;
mod links;
mod listen;
mod messages;
mod nodes;
mod open;
mod replay;
mod route;
mod rows;
mod settle;
mod story;

use std::time::Duration;

use async_trait::async_trait;
use pabal_core::*;
use sqlx::{PgConnection, PgPool, Postgres, Transaction, postgres::PgRow};

pub use crate::open::{OpenError, Options};
use crate::{listen::Ear, rows::Query};

/// The store in one PostgreSQL database.
#[derive(Debug)]
pub struct PostgresStore {
    write: PgPool,
    /// For the engine, ...
    read: PgPool,
    /// ... and for operators, whose questions may take their time.
    operators: PgPool,
    ear: Ear,
}

/// Limits of every transaction that writes. They also bound for how long a number that was given may
/// stay unseen.
///
/// The planner is told to use indexes: the outbox is empty most of the time, and what was counted then
/// says nothing of the moment when a million rows wait. Everything that runs here is written for an
/// index.
const BEGIN: &str = "BEGIN; SET LOCAL statement_timeout = '10s'; \
    SET LOCAL lock_timeout = '5s'; SET LOCAL idle_in_transaction_session_timeout = '5s'; \
    SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off";
/// The same for what is read to be sent.
const BEGIN_CLAIM: &str = "BEGIN READ ONLY; SET LOCAL statement_timeout = '30s'; \
    SET LOCAL idle_in_transaction_session_timeout = '5s'; \
    SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off";
/// After numbers were taken at most so many statements follow, each with a pause before it.
const LATE_STATEMENTS: u32 = 4;
const LATE: Duration = Duration::from_secs(15 * LATE_STATEMENTS as u64);

/// While somebody else holds what a missing partition needs, it is asked for so often.
const PARTITION_ATTEMPTS: u32 = 10;

/// Runs `$act` in a transaction. A row that finds no partition of its day gets one, and it is done
/// again.
macro_rules! begin_and_end {
    ($store:expr, $connection:ident => $act:expr) => {{
        let mut attempt = 1;
        loop {
            let mut transaction = $store.begin().await?;
            let $connection = &mut *transaction;
            let result = $act.await;
            match $crate::end(transaction, result).await {
                Err(error)
                    if attempt < $crate::PARTITION_ATTEMPTS
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

impl PostgresStore {
    /// Closes all connections.
    pub async fn close(&self) {
        self.read.close().await;
        self.operators.close().await;
        self.write.close().await;
    }

    async fn begin(&self) -> Result<Transaction<'static, Postgres>, StoreError> {
        self.write.begin_with(BEGIN).await.map_err(|error| error::classify(&error))
    }

    async fn fetch(&self, query: Query<'_>) -> Result<Vec<PgRow>, StoreError> {
        query.fetch_all(&self.read).await.map_err(|error| error::classify(&error))
    }

    /// Like [`Self::fetch`], of the hot table: by its indexes, whatever the planner thinks of it.
    async fn claim(&self, query: Query<'_>) -> Result<Vec<PgRow>, StoreError> {
        let classify = |error| error::classify(&error);
        let mut transaction = self.read.begin_with(BEGIN_CLAIM).await.map_err(classify)?;
        let rows = query.fetch_all(&mut *transaction).await.map_err(classify)?;
        transaction.commit().await.map_err(classify)?;
        Ok(rows)
    }

    /// Like [`Self::fetch`], for a question that no send waits for.
    async fn ask(&self, query: Query<'_>) -> Result<Vec<PgRow>, StoreError> {
        query.fetch_all(&self.operators).await.map_err(|error| error::classify(&error))
    }
}

/// Commits what went well and takes back what did not.
async fn end<T>(
    transaction: Transaction<'static, Postgres>,
    result: Result<T, StoreError>,
) -> Result<T, StoreError> {
    match result {
        Ok(value) => match transaction.commit().await {
            Ok(()) => Ok(value),
            Err(error) => Err(error::commit(&error)),
        },
        Err(error) => {
            // Should it fail, the connection is gone, and the server takes it back.
            if let Err(rollback) = transaction.rollback().await {
                tracing::debug!(%rollback, "a transaction could not be taken back");
            }
            Err(error)
        }
    }
}

/// Runs a statement; the number of rows it hit.
async fn execute(connection: &mut PgConnection, query: Query<'_>) -> Result<u64, StoreError> {
    query
        .execute(connection)
        .await
        .map(|done| done.rows_affected())
        .map_err(|error| error::classify(&error))
}

async fn fetch(connection: &mut PgConnection, query: Query<'_>) -> Result<Vec<PgRow>, StoreError> {
    query.fetch_all(connection).await.map_err(|error| error::classify(&error))
}

/// Wakes all nodes, once this transaction has committed; however often it is called, once.
async fn notify(connection: &mut PgConnection) -> Result<(), StoreError> {
    let query = sqlx::query("SELECT pg_notify($1, '')").bind(listen::CHANNEL);
    execute(connection, query).await.map(drop)
}

#[async_trait]
impl Store for PostgresStore {
    async fn accept(&self, group: &[Entry]) -> Result<Vec<Accepted>, StoreError> {
        Ok(begin_and_end!(self, connection => accept::accept(connection, group)))
    }

    fn shared(&self) -> bool {
        true
    }

    async fn join(&self, node: &str, plan: &NodePlan) -> Result<Epoch, StoreError> {
        Ok(begin_and_end!(self, connection => nodes::join(connection, node, plan)))
    }

    async fn beat(&self, epoch: Epoch) -> Result<Vec<Beat>, StoreError> {
        Ok(begin_and_end!(self, connection => nodes::beat(connection, epoch)))
    }

    async fn leave(&self, epoch: Epoch) -> Result<bool, StoreError> {
        Ok(begin_and_end!(self, connection => nodes::leave(connection, epoch)))
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
        Ok(
            begin_and_end!(self, connection => nodes::lay_out(connection, destination, lanes, order)),
        )
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
        Ok(begin_and_end!(self, connection => nodes::take_lane(connection, lane, from, to)))
    }

    async fn release_lane(&self, lane: &Lane, holder: Epoch) -> Result<bool, StoreError> {
        Ok(begin_and_end!(self, connection => nodes::release_lane(connection, lane, holder, true)))
    }

    async fn give_up_lane(&self, lane: &Lane, holder: StandingStill) -> Result<bool, StoreError> {
        Ok(begin_and_end!(self, connection => nodes::give_up_lane(connection, lane, holder)))
    }

    async fn changed(&self) {
        self.ear.changed().await;
    }

    async fn deliveries(
        &self,
        which: Which<'_>,
        limit: usize,
    ) -> Result<Vec<Delivery>, StoreError> {
        claim::deliveries(self, which, limit).await
    }

    /// As long as a transaction can live on after it was given its numbers.
    fn late_commits_for(&self) -> Duration {
        LATE
    }

    async fn load(&self, which: &[(Number, MessageId)]) -> Result<Vec<Option<Loaded>>, StoreError> {
        claim::load(self, which).await
    }

    async fn mark_started(&self, epoch: Epoch, starts: &[(Number, u32)]) -> Result<(), StoreError> {
        begin_and_end!(self, connection => claim::mark_started(connection, epoch, starts));
        Ok(())
    }

    async fn held(
        &self,
        destination: &EndpointName,
    ) -> Result<Vec<(Option<String>, Number)>, StoreError> {
        claim::held(self, destination).await
    }

    async fn settle(&self, epoch: Epoch, group: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        Ok(begin_and_end!(self, connection => settle::settle(connection, epoch, group)))
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
        Ok(begin_and_end!(self, connection => replay::replay(connection, ids, act)))
    }

    async fn discard(&self, ids: &[i64], act: &OperatorAct) -> Result<Vec<DeadLetter>, StoreError> {
        Ok(begin_and_end!(self, connection => replay::discard(connection, ids, act)))
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
        Ok(begin_and_end!(self, connection => route::route(connection, routings, act)))
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
        begin_and_end!(self, connection => links::set_link_state(connection, endpoint, &change, act));
        Ok(())
    }

    async fn note(&self, act: &OperatorAct) -> Result<(), StoreError> {
        begin_and_end!(self, connection => links::note(connection, act));
        Ok(())
    }

    async fn housekeep(&self, keep: &Retention) -> Result<Housekeeping, StoreError> {
        housekeeping::housekeep(self, keep).await
    }

    async fn vitals(&self) -> Result<Vitals, StoreError> {
        housekeeping::vitals(self).await
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
        let set = begin_and_end!(self, connection =>
            links::set_state(connection, endpoint, name, revision, &value));
        Ok(set)
    }
}
