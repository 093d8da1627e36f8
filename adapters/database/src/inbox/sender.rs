//! Many messages in one transaction; if that fails, each in one of its own, so that one spares the
//! others.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use pabal_core::{Clock, Finding, Limits, Message, Receipt, SendError, Sender, Verdict, by_key};

use super::{
    mysql::MySql, parameter::Values, postgres::Postgres, settings::Plan, sqlite::Sqlite,
    transaction::Transaction,
};
use crate::connect::Pool;

/// Envelope and headers come on top of the body.
const ENVELOPE_BYTES_MAX: usize = 128 * 1024;
/// The bodies of one transaction together.
const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Puts messages into the inbox table of one application.
#[derive(Debug)]
pub(crate) struct InboxSender {
    pub(super) plan: Arc<Plan>,
    pub(super) place: Place,
    clock: Arc<dyn Clock>,
    body_bytes_max: usize,
}

/// One of the three kinds of database.
#[derive(Debug)]
pub(super) enum Place {
    Postgres(Postgres),
    MySql(MySql),
    Sqlite(Sqlite),
}

/// What became of a message in a transaction that is not committed yet.
enum Done {
    Applied,
    Repeat,
    Stale,
}

impl InboxSender {
    pub(crate) fn new(
        plan: Plan,
        pool: Pool,
        clock: Arc<dyn Clock>,
        body_bytes_max: usize,
    ) -> Self {
        let plan = Arc::new(plan);
        let place = match pool {
            Pool::Postgres(pool) => Place::Postgres(Postgres::new(pool, Arc::clone(&plan))),
            Pool::MySql(pool) => Place::MySql(MySql::new(pool, Arc::clone(&plan))),
            Pool::Sqlite(pool) => Place::Sqlite(Sqlite::new(pool, Arc::clone(&plan))),
        };
        Self { plan, place, clock, body_bytes_max }
    }

    async fn begin(&self, alone: bool) -> Result<Box<dyn Transaction>, SendError> {
        // Beside neighbours nobody waits long for a lock: they would wait, too.
        let lock = if alone { self.plan.timeout } else { self.plan.timeout / 10 };
        let lock = lock.max(Duration::from_secs(1));
        Ok(match &self.place {
            Place::Postgres(it) => Box::new(it.begin(lock).await?),
            Place::MySql(it) => Box::new(it.begin(lock).await?),
            Place::Sqlite(it) => Box::new(it.begin().await?),
        })
    }

    /// All of them in one transaction, within the limit.
    async fn together(&self, values: &[Values<'_>], alone: bool) -> Result<Vec<Receipt>, Broken> {
        let within = async {
            let mut transaction = self.begin(alone).await.map_err(Broken::before)?;
            let done = match work(&mut *transaction, values, self.plan.held.is_some()).await {
                Ok(done) => done,
                Err(error) => {
                    transaction.take_back().await;
                    return Err(Broken::before(error));
                }
            };
            let silent = |error| Broken { error, in_commit: true };
            transaction.commit().await.map_err(silent)?;
            Ok(done)
        };
        match self.clock.timeout(self.plan.timeout, within).await {
            Some(Ok(done)) => Ok(done.into_iter().map(receipt).collect()),
            Some(Err(broken)) => Err(broken),
            None => {
                let cause = "the transaction took too long; a repeat will tell whether it happened";
                Err(Broken { error: SendError::transient(cause), in_commit: true })
            }
        }
    }

    async fn alone(&self, message: &Message) -> Verdict {
        let values = [Values::new(message)?];
        match self.together(&values, true).await {
            Ok(mut receipts) => Ok(receipts.pop().unwrap_or_default()),
            Err(broken) => Err(broken.error),
        }
    }
}

/// Why a transaction failed.
struct Broken {
    error: SendError,
    /// Whether it may have happened all the same.
    in_commit: bool,
}

impl Broken {
    fn before(error: SendError) -> Self {
        Self { error, in_commit: false }
    }

    /// Whether it was one of them that the others need not suffer from.
    fn may_be_one(&self) -> bool {
        let about_a_message =
            matches!(self.error, SendError::Permanent { .. } | SendError::Transient { .. });
        about_a_message && (!self.in_commit || matches!(self.error, SendError::Permanent { .. }))
    }
}

async fn work(
    transaction: &mut dyn Transaction,
    values: &[Values<'_>],
    versions: bool,
) -> Result<Vec<Done>, SendError> {
    let new = transaction.insert(values).await?;
    let mut all = Vec::with_capacity(values.len());
    let mut told = Vec::new();
    for (values, new) in values.iter().zip(new) {
        if !new {
            all.push(Done::Repeat);
            continue;
        }
        if versions && !transaction.raise(values).await? {
            all.push(Done::Stale);
            continue;
        }
        transaction.apply(values).await?;
        told.push(values.message().id);
        all.push(Done::Applied);
    }
    if !told.is_empty() {
        transaction.tell(&told).await?;
    }
    Ok(all)
}

fn receipt(done: Done) -> Receipt {
    Receipt {
        duplicate: matches!(done, Done::Repeat),
        stale: matches!(done, Done::Stale),
        ..Receipt::default()
    }
}

/// The same error for all, but of each key only the first was tried.
fn all_failed(batch: &[Message], error: &SendError) -> Vec<Verdict> {
    let mut keys = HashSet::new();
    let verdict = |message: &Message| match &message.key {
        Some(key) if !keys.insert(key.clone()) => Err(SendError::NotSent),
        _ => Err(error.clone()),
    };
    batch.iter().map(verdict).collect()
}

#[async_trait]
impl Sender for InboxSender {
    fn limits(&self) -> Limits {
        let message_bytes_max = self.body_bytes_max.saturating_add(ENVELOPE_BYTES_MAX);
        Limits {
            batch_max: self.plan.batch,
            batch_bytes_max: message_bytes_max.max(BATCH_BYTES_MAX),
            message_bytes_max,
        }
    }

    fn wire_size(&self, message: &Message) -> usize {
        let parts = [
            Some(&message.message_type),
            message.key.as_ref(),
            message.schema.as_ref(),
            message.content_type.as_ref(),
            message.correlation.as_ref(),
            message.causation.as_ref(),
            message.trace.as_ref(),
            message.origin.id.as_ref(),
        ];
        let envelope: usize = parts.into_iter().flatten().map(String::len).sum();
        let body = usize::try_from(message.body.size()).unwrap_or(usize::MAX);
        body.saturating_add(envelope + message.headers.size())
    }

    async fn send(&self, batch: &[Message]) -> Vec<Verdict> {
        if batch.len() > 1 {
            let values: Result<Vec<_>, _> = batch.iter().map(Values::new).collect();
            if let Ok(values) = values {
                match self.together(&values, false).await {
                    Ok(receipts) => return receipts.into_iter().map(Ok).collect(),
                    Err(broken) if !broken.may_be_one() => return all_failed(batch, &broken.error),
                    Err(_) => {}
                }
            }
        }
        by_key(batch, |message| self.alone(message)).await
    }

    async fn probe(&self) -> Vec<Finding> {
        super::probe::probe(self).await
    }
}
