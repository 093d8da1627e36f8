//! The production store: PostgreSQL 13 or later, any number of hubs.
//!
//! Every writing method is one transaction with limits of its own; a group is written by few
//! statements of many rows each. Times and days come from the database, by `pabal.time()`. Nothing
//! rests on a session: it works behind a transaction pooler, but for listening.

mod accept;
mod alongside;
mod claim;
mod dead_letters;
mod error;
mod housekeeping;
mod inbox;
mod links;
mod listen;
mod messages;
mod migrate;
mod nodes;
mod open;
mod probe;
mod pull;
mod replay;
mod route;
mod rows;
mod server;
mod settle;
mod story;
mod transaction;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use pabal_core::*;
use sqlx::{PgPool, postgres::PgRow};
use uuid::Uuid;

pub use crate::open::{OpenError, Options};
use crate::{
    listen::Ear,
    rows::Query,
    transaction::{Limits, Transaction, begin_and_end, execute, fetch, notify},
};

/// The store in one PostgreSQL database.
#[derive(Debug)]
pub struct PostgresStore {
    write: PgPool,
    /// For the engine, ...
    read: PgPool,
    /// ... and for operators, whose questions may take their time.
    operators: PgPool,
    ear: Ear,
    /// Whether statements are kept on a connection; not behind a pooler, where it is everybody's.
    named: bool,
    clock: Arc<dyn Clock>,
    /// How far housekeeping has come in the messages of dropped days.
    looked_at: Mutex<Uuid>,
}

impl PostgresStore {
    /// Closes all sessions.
    pub async fn close(&self) {
        self.read.close().await;
        self.operators.close().await;
        self.write.close().await;
    }

    async fn begin(&self) -> Result<Transaction, StoreError> {
        self.begin_with(&transaction::WRITE).await
    }

    async fn begin_with(&self, limits: &Limits) -> Result<Transaction, StoreError> {
        let begun = Transaction::begin(&self.write, limits, self.named, &self.clock).await;
        begun.map_err(|error| error::classify(&error))
    }

    async fn fetch(&self, query: Query<'_>) -> Result<Vec<PgRow>, StoreError> {
        self.look(&self.read, &transaction::READ, query).await
    }

    /// Like [`Self::fetch`], for a question that no send waits for.
    async fn ask(&self, query: Query<'_>) -> Result<Vec<PgRow>, StoreError> {
        self.look(&self.operators, &transaction::ASK, query).await
    }

    async fn look(
        &self,
        pool: &PgPool,
        limits: &Limits,
        query: Query<'_>,
    ) -> Result<Vec<PgRow>, StoreError> {
        let begun = Transaction::begin(pool, limits, self.named, &self.clock).await;
        let mut transaction = begun.map_err(|error| error::classify(&error))?;
        let rows = fetch(&mut transaction, query).await;
        transaction.take_back().await;
        rows
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn accept(&self, group: &[Entry]) -> Result<Vec<Accepted>, StoreError> {
        Ok(begin_and_end!(self, transaction => accept::accept(transaction, group)))
    }

    fn alongside(&self) -> bool {
        true
    }

    async fn fingerprints(
        &self,
        which: &[Identity],
    ) -> Result<Vec<Option<Fingerprint>>, StoreError> {
        inbox::fingerprints(self, which).await
    }

    async fn count_repeats(&self, repeats: &[(Identity, u32)]) -> Result<(), StoreError> {
        begin_and_end!(self, transaction => inbox::count(transaction, repeats));
        Ok(())
    }

    fn shared(&self) -> bool {
        true
    }

    async fn join(&self, node: &str, plan: &NodePlan) -> Result<Epoch, StoreError> {
        Ok(begin_and_end!(self, transaction => nodes::join(transaction, node, plan)))
    }

    async fn beat(&self, epoch: Epoch) -> Result<Vec<Beat>, StoreError> {
        Ok(begin_and_end!(self, transaction => nodes::beat(transaction, epoch)))
    }

    async fn leave(&self, epoch: Epoch) -> Result<bool, StoreError> {
        Ok(begin_and_end!(self, transaction => nodes::leave(transaction, epoch)))
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
            begin_and_end!(self, transaction => nodes::lay_out(transaction, destination, lanes, order)),
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
        Ok(begin_and_end!(self, transaction => nodes::take_lane(transaction, lane, from, to)))
    }

    async fn release_lane(&self, lane: &Lane, holder: Epoch) -> Result<bool, StoreError> {
        Ok(
            begin_and_end!(self, transaction => nodes::release_lane(transaction, lane, holder, true)),
        )
    }

    async fn give_up_lane(&self, lane: &Lane, holder: StandingStill) -> Result<bool, StoreError> {
        Ok(begin_and_end!(self, transaction => nodes::give_up_lane(transaction, lane, holder)))
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

    fn late_commits_for(&self) -> Duration {
        transaction::LATE
    }

    async fn load(&self, which: &[(Number, MessageId)]) -> Result<Vec<Option<Loaded>>, StoreError> {
        claim::load(self, which).await
    }

    async fn mark_started(&self, epoch: Epoch, starts: &[(Number, u32)]) -> Result<(), StoreError> {
        begin_and_end!(self, transaction => claim::mark_started(transaction, epoch, starts));
        Ok(())
    }

    async fn held(
        &self,
        destination: &EndpointName,
    ) -> Result<Vec<(Option<String>, Number)>, StoreError> {
        claim::held(self, destination).await
    }

    async fn settle(&self, epoch: Epoch, group: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        Ok(begin_and_end!(self, transaction => settle::settle(transaction, epoch, group)))
    }

    async fn pull(
        &self,
        destination: &EndpointName,
        ask: &PullAsk,
    ) -> Result<PullPage, StoreError> {
        Ok(begin_and_end!(self, transaction => pull::pull(transaction, destination, ask)))
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
        Ok(begin_and_end!(self, transaction => replay::replay(transaction, ids, act)))
    }

    async fn discard(&self, ids: &[i64], act: &OperatorAct) -> Result<Vec<DeadLetter>, StoreError> {
        Ok(begin_and_end!(self, transaction => replay::discard(transaction, ids, act)))
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
        Ok(begin_and_end!(self, transaction => route::route(transaction, routings, act)))
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
        begin_and_end!(self, transaction => links::set_link_state(transaction, endpoint, &change, act));
        Ok(())
    }

    async fn note(&self, act: &OperatorAct) -> Result<(), StoreError> {
        begin_and_end!(self, transaction => links::note(transaction, act));
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
        let set = begin_and_end!(self, transaction =>
            links::set_state(transaction, endpoint, name, revision, &value));
        Ok(set)
    }
}
