//! What became of deliveries: out of the outbox, on with a later time, or set aside.

use std::collections::{BTreeSet, HashMap};

use pabal_core::{
    Attempt, Cause, DeadReason, EndpointName, Epoch, Fate, Holds, MessageId, Number, Request,
    Settled, Settlement, StoreError, Written,
};
use sqlx::{QueryBuilder, SqliteConnection};

use crate::{
    execute, fetch,
    links::post,
    nodes::Held,
    rows::{CHUNK, Columns, json, micros, numbers, saturate, word},
};

pub(crate) async fn settle(
    connection: &mut SqliteConnection,
    epoch: Epoch,
    group: &[Settlement],
    now: i64,
) -> Result<Vec<Settled>, StoreError> {
    let mut answers = vec![Settled::NotThere; group.len()];
    let failures = group.iter().any(|it| !matches!(it.fate, Fate::Delivered));
    let held = if failures { Held::by(connection, epoch).await? } else { Held::default() };

    let mut waiting = standing(connection, WAITING, group.iter()).await?;
    let mut hit = Hit::default();
    let mut missed = Vec::new();
    for (index, it) in group.iter().enumerate() {
        let delivered = matches!(it.fate, Fate::Delivered);
        let standing = waiting.get(&it.number);
        let ours = |(.., to, slot, handout): &Standing| match it.handout {
            Some(last) => i64::from(last) == *handout,
            None => held.holds(to.as_str(), *slot),
        };
        let counts = delivered || standing.is_some_and(ours);
        // Taken out: what stands twice in a group hits once.
        if counts && fits(it, standing) && waiting.remove(&it.number).is_some() {
            answers[index] = Settled::Done;
            hit.add(it, now);
        } else if delivered {
            missed.push(index);
        }
    }
    let mut revived = BTreeSet::new();
    if !missed.is_empty() {
        let these = missed.iter().map(|index| &group[*index]);
        let mut dead = standing(connection, DEAD, these).await?;
        for index in missed {
            let it = &group[index];
            if fits(it, dead.get(&it.number)) && dead.remove(&it.number).is_some() {
                answers[index] = Settled::Done;
                hit.late.push(it.number);
                hit.log(it);
                revived.insert(it.destination.clone());
            }
        }
    }
    hit.write(connection, now).await?;
    if !revived.is_empty() {
        // The partner has it after all: whoever holds the lane learns that the key may be free.
        let freed: Vec<EndpointName> = revived.into_iter().collect();
        post(connection, &Request::Freed(freed), now).await?;
    }
    Ok(answers)
}

/// What stands under a number: message, round, destination, slot, and for the so-manieth time it is
/// handed out, -1 if it is not.
type Standing = (MessageId, u32, EndpointName, i64, i64);

const WAITING: &str = "SELECT number, message, round, destination, slot, \
    iif(started > 0, attempts + started, -1) FROM outbox \
    WHERE number IN (SELECT value FROM json_each(?))";
const DEAD: &str = "SELECT number, message, round, endpoint, slot, -1 FROM dead_letter \
    WHERE kind = 'delivery' AND number IN (SELECT value FROM json_each(?))";

async fn standing(
    connection: &mut SqliteConnection,
    sql: &'static str,
    settlements: impl Iterator<Item = &Settlement>,
) -> Result<HashMap<Number, Standing>, StoreError> {
    let query = sqlx::query(sql).bind(numbers(settlements.map(|it| it.number)));
    let rows = fetch(connection, query).await?;
    rows.iter()
        .map(|row| {
            let mut row = Columns::of(row);
            let number = row.next()?;
            Ok((number, (row.id()?, row.count()?, row.endpoint()?, row.next()?, row.next()?)))
        })
        .collect()
}

fn fits(it: &Settlement, standing: Option<&Standing>) -> bool {
    standing.is_some_and(|(message, round, destination, ..)| {
        *message == it.message && *round == it.round && *destination == it.destination
    })
}

/// The settlements that hit, by what is to be written.
#[derive(Debug, Default)]
struct Hit<'a> {
    delivered: Vec<Number>,
    late: Vec<Number>,
    /// Number, due time, attempts spent.
    retries: Vec<(Number, i64, u8)>,
    dead: Vec<Dying<'a>>,
    pins: Vec<(Number, &'a Written)>,
    log: Vec<(&'a Settlement, &'a Attempt)>,
}

/// Number, reason, cause and what it holds.
type Dying<'a> = (Number, DeadReason, &'a Cause, Holds, bool);

/// What is logged of a delivery that ended without an attempt.
static WITHOUT_ATTEMPT: Attempt = Attempt {
    outcome: "delivered",
    duration: std::time::Duration::ZERO,
    cause: None,
    answer: None,
    sha256: None,
    size: 0,
};

impl<'a> Hit<'a> {
    fn add(&mut self, it: &'a Settlement, now: i64) {
        match &it.fate {
            Fate::Delivered => self.delivered.push(it.number),
            Fate::Retry { after, spend, pin } => {
                let due = now.saturating_add(micros(*after));
                self.retries.push((it.number, due, u8::from(*spend)));
                self.pins.extend(pin.as_ref().map(|pin| (it.number, pin)));
            }
            Fate::Dead { reason, cause, holds, pin } => {
                let tried = it.attempt.is_some();
                self.dead.push((it.number, *reason, cause, *holds, tried));
                self.pins.extend(pin.as_ref().map(|pin| (it.number, pin)));
            }
        }
        self.log(it);
    }

    fn log(&mut self, it: &'a Settlement) {
        match (&it.attempt, &it.fate) {
            (Some(attempt), _) => self.log.push((it, attempt)),
            // The log alone knows of a delivery that it ended well.
            (None, Fate::Delivered) => self.log.push((it, &WITHOUT_ATTEMPT)),
            (None, _) => {}
        }
    }

    async fn write(&self, connection: &mut SqliteConnection, now: i64) -> Result<(), StoreError> {
        self.pin(connection).await?;
        self.retry(connection).await?;
        self.bury(connection, now).await?;
        let dead = self.dead.iter().map(|(number, ..)| *number);
        remove(connection, OUTBOX, self.delivered.iter().copied().chain(dead)).await?;
        remove(connection, DEAD_LETTER, self.late.iter().copied()).await?;
        let gone = self.delivered.iter().chain(&self.late).copied();
        remove(connection, WRITTEN, gone).await?;
        self.write_log(connection, now).await
    }

    async fn retry(&self, connection: &mut SqliteConnection) -> Result<(), StoreError> {
        if self.retries.is_empty() {
            return Ok(());
        }
        let query = sqlx::query(
            "UPDATE outbox SET due = it.value ->> 1, attempts = attempts + (it.value ->> 2), \
             started = 0 FROM json_each(?) it WHERE outbox.number = it.value ->> 0",
        )
        .bind(json(&self.retries));
        execute(connection, query).await.map(drop)
    }

    /// The first form pinned stays: it is the one that may have reached the partner.
    async fn pin(&self, connection: &mut SqliteConnection) -> Result<(), StoreError> {
        for chunk in self.pins.chunks(CHUNK) {
            let mut sql = QueryBuilder::new("INSERT INTO written (number, content_type, body) ");
            sql.push_values(chunk, |mut row, (number, written)| {
                row.push_bind(*number)
                    .push_bind(written.content_type.as_deref())
                    .push_bind(written.body.as_ref());
            });
            sql.push(" ON CONFLICT DO NOTHING");
            execute(connection, sql.build().persistent(false)).await?;
        }
        Ok(())
    }

    /// Copies rows into `dead_letter` under their own numbers.
    async fn bury(&self, connection: &mut SqliteConnection, now: i64) -> Result<(), StoreError> {
        if self.dead.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = self
            .dead
            .iter()
            .map(|(number, reason, cause, holds, tried)| {
                let summary = cause.summary.as_ref();
                let tried = u8::from(*tried);
                (*number, word(reason), summary, &cause.detail, word(holds), tried)
            })
            .collect();
        let query = sqlx::query(
            "INSERT INTO dead_letter (kind, endpoint, message, origin_source, origin_id, type, key, \
             slot, number, reason, cause, detail, attempts, round, holds, at, accepted) \
             SELECT 'delivery', o.destination, o.message, coalesce(m.origin_source, ''), \
             m.origin_id, coalesce(m.type, ''), o.key, o.slot, o.number, it.value ->> 1, \
             it.value ->> 2, it.value ->> 3, o.attempts + (it.value ->> 5), o.round, \
             CASE WHEN o.key IS NULL AND it.value ->> 4 = 'key' THEN 'nothing' \
             ELSE it.value ->> 4 END, ?, o.accepted \
             FROM json_each(?) it CROSS JOIN outbox o ON o.number = it.value ->> 0 \
             LEFT JOIN message m ON m.id = o.message ORDER BY it.key",
        )
        .bind(now)
        .bind(json(rows));
        execute(connection, query).await.map(drop)
    }

    async fn write_log(
        &self,
        connection: &mut SqliteConnection,
        now: i64,
    ) -> Result<(), StoreError> {
        for chunk in self.log.chunks(CHUNK) {
            let mut sql = QueryBuilder::new(
                "INSERT INTO delivery_log (at, message, number, destination, round, outcome, \
                 duration, status, cause, detail, answer, sha256, size) ",
            );
            sql.push_values(chunk, |mut row, (it, attempt)| {
                let cause = attempt.cause.as_ref();
                let answer = attempt.answer.as_ref();
                row.push_bind(now)
                    .push_bind(it.message.0)
                    .push_bind(it.number)
                    .push_bind(it.destination.as_str())
                    .push_bind(i64::from(it.round))
                    .push_bind(attempt.outcome)
                    .push_bind(micros(attempt.duration))
                    .push_bind(answer.and_then(|it| it.status).map(i64::from))
                    .push_bind(cause.map(|it| it.summary.as_ref()))
                    .push_bind(cause.and_then(|it| it.detail.as_deref()))
                    .push_bind(answer.map(|it| it.body.as_ref()))
                    .push_bind(attempt.sha256.as_ref().map(|it| &it[..]))
                    .push_bind(saturate(attempt.size));
            });
            let query = sql.build().persistent(chunk.len() == CHUNK);
            execute(connection, query).await?;
        }
        Ok(())
    }
}

pub(crate) const OUTBOX: &str =
    "DELETE FROM outbox WHERE number IN (SELECT value FROM json_each(?))";
pub(crate) const DEAD_LETTER: &str =
    "DELETE FROM dead_letter WHERE number IN (SELECT value FROM json_each(?))";
pub(crate) const WRITTEN: &str =
    "DELETE FROM written WHERE number IN (SELECT value FROM json_each(?))";

/// Deletes the rows of these numbers; `sql` is one of the constants above.
pub(crate) async fn remove(
    connection: &mut SqliteConnection,
    sql: &'static str,
    which: impl Iterator<Item = Number>,
) -> Result<(), StoreError> {
    let which: Vec<_> = which.collect();
    if which.is_empty() {
        return Ok(());
    }
    execute(connection, sqlx::query(sql).bind(numbers(which))).await.map(drop)
}
