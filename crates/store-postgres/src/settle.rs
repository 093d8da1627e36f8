//! What became of deliveries: out of the outbox, on with a later time, or set aside.

use std::collections::{BTreeSet, HashMap};

use pabal_core::{
    Attempt, Cause, DeadReason, EndpointName, Epoch, Fate, Holds, MessageId, Number, Request,
    Settled, Settlement, StoreError, Written,
};

use crate::{
    Transaction, execute, fetch,
    links::post,
    nodes::Held,
    rows::{Columns, micros, saturate, small, word},
};

pub(crate) async fn settle(
    transaction: &mut Transaction,
    epoch: Epoch,
    group: &[Settlement],
) -> Result<Vec<Settled>, StoreError> {
    let mut answers = vec![Settled::NotThere; group.len()];
    let failed = group.iter().filter(|it| !matches!(it.fate, Fate::Delivered));
    let failed = failed.filter(|it| it.handout.is_none());
    let failed: BTreeSet<_> = failed.map(|it| it.destination.to_string()).collect();
    let held = match failed.is_empty() {
        true => Held::default(),
        false => Held::by(transaction, epoch, failed.into_iter().collect()).await?,
    };

    let mut waiting = standing(transaction, WAITING, group.iter()).await?;
    let mut hit = Hit::default();
    let mut missed = Vec::new();
    for (index, it) in group.iter().enumerate() {
        let delivered = matches!(it.fate, Fate::Delivered);
        let standing = waiting.get(&it.number);
        let ours = |(.., to, slot, handout): &Standing| match it.handout {
            Some(last) => small(last) == *handout,
            None => held.holds(to.as_str(), *slot),
        };
        let counts = delivered || standing.is_some_and(ours);
        // Taken out: what stands twice in a group hits once.
        if counts && fits(it, standing) && waiting.remove(&it.number).is_some() {
            answers[index] = Settled::Done;
            hit.add(it);
        } else if delivered {
            missed.push(index);
        }
    }
    let mut revived = BTreeSet::new();
    if !missed.is_empty() {
        let these = missed.iter().map(|index| &group[*index]);
        let mut dead = standing(transaction, DEAD, these).await?;
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
    hit.write(transaction).await?;
    if !revived.is_empty() {
        // The partner has it after all: whoever holds the lane learns that the key may be free.
        let freed: Vec<EndpointName> = revived.into_iter().collect();
        post(transaction, &Request::Freed(freed)).await?;
    }
    Ok(answers)
}

/// What stands under a number: message, round, destination, slot, and for the so-manieth time it is
/// handed out, -1 if it is not.
type Standing = (MessageId, u32, EndpointName, i16, i32);

// Locked in one order, so that two nodes that settle the same deliveries decide one after the other.
const WAITING: &str = "SELECT number, message, round, destination, slot, \
    CASE WHEN started > 0 THEN attempts + started ELSE -1 END FROM pabal.outbox \
    WHERE number = ANY($1) ORDER BY number FOR UPDATE";
const DEAD: &str = "SELECT number, message, round, endpoint, slot, -1 FROM pabal.dead_letter \
    WHERE kind = 'delivery' AND number = ANY($1) ORDER BY number FOR UPDATE";

async fn standing(
    transaction: &mut Transaction,
    sql: &'static str,
    settlements: impl Iterator<Item = &Settlement>,
) -> Result<HashMap<Number, Standing>, StoreError> {
    let numbers: Vec<_> = settlements.map(|it| it.number).collect();
    let rows = fetch(transaction, sqlx::query(sql).bind(numbers)).await?;
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
    /// Number, wait in microseconds, attempts spent.
    retries: Vec<(Number, i64, i32)>,
    dead: Vec<Dying<'a>>,
    pins: Vec<(Number, &'a Written)>,
    log: Vec<(&'a Settlement, &'a Attempt)>,
}

/// Number, reason, cause, what it holds, and whether it was tried.
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
    fn add(&mut self, it: &'a Settlement) {
        match &it.fate {
            Fate::Delivered => self.delivered.push(it.number),
            Fate::Retry { after, spend, pin } => {
                self.retries.push((it.number, micros(*after), i32::from(*spend)));
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

    async fn write(&self, transaction: &mut Transaction) -> Result<(), StoreError> {
        self.pin(transaction).await?;
        self.retry(transaction).await?;
        self.bury(transaction).await?;
        let dead = self.dead.iter().map(|(number, ..)| *number);
        remove(transaction, OUTBOX, self.delivered.iter().copied().chain(dead)).await?;
        remove(transaction, DEAD_LETTER, self.late.iter().copied()).await?;
        let gone = self.delivered.iter().chain(&self.late).copied();
        remove(transaction, WRITTEN, gone).await?;
        self.write_log(transaction).await
    }

    async fn retry(&self, transaction: &mut Transaction) -> Result<(), StoreError> {
        if self.retries.is_empty() {
            return Ok(());
        }
        let query = sqlx::query(
            "UPDATE pabal.outbox SET due = pabal.time() + wait * interval '1 microsecond', \
             attempts = attempts + spent, started = 0 \
             FROM unnest($1::bigint[], $2::bigint[], $3::integer[]) AS it (of, wait, spent) \
             WHERE number = of",
        )
        .bind(self.retries.iter().map(|(number, ..)| *number).collect::<Vec<_>>())
        .bind(self.retries.iter().map(|(_, wait, _)| *wait).collect::<Vec<_>>())
        .bind(self.retries.iter().map(|(.., spent)| *spent).collect::<Vec<_>>());
        execute(transaction, query).await.map(drop)
    }

    /// The first form pinned stays: it is the one that may have reached the partner.
    async fn pin(&self, transaction: &mut Transaction) -> Result<(), StoreError> {
        for (number, written) in &self.pins {
            let query = sqlx::query(
                "INSERT INTO pabal.written (number, content_type, body) VALUES ($1, $2, $3) \
                 ON CONFLICT DO NOTHING",
            )
            .bind(number)
            .bind(written.content_type.as_deref())
            .bind(written.body.as_ref());
            execute(transaction, query).await?;
        }
        Ok(())
    }

    /// Copies rows into `dead_letter` under their own numbers.
    async fn bury(&self, transaction: &mut Transaction) -> Result<(), StoreError> {
        if self.dead.is_empty() {
            return Ok(());
        }
        let each = |text: fn(&Dying<'a>) -> String| -> Vec<String> {
            self.dead.iter().map(text).collect()
        };
        let query = sqlx::query(
            "INSERT INTO pabal.dead_letter (kind, endpoint, day, message, origin_source, origin_id, \
             type, key, slot, number, reason, cause, detail, attempts, round, holds, at, accepted) \
             SELECT 'delivery', o.destination, o.day, o.message, coalesce(m.origin_source, ''), \
             m.origin_id, coalesce(m.type, ''), o.key, o.slot, o.number, it.reason, it.cause, \
             it.detail, o.attempts + it.tried, o.round, \
             CASE WHEN o.key IS NULL AND it.holds = 'key' THEN 'nothing' ELSE it.holds END, \
             pabal.time(), o.accepted \
             FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], \
             $6::integer[]) WITH ORDINALITY \
             AS it (number, reason, cause, detail, holds, tried, place) \
             JOIN pabal.outbox o ON o.number = it.number \
             LEFT JOIN LATERAL (SELECT origin_source, origin_id, type FROM pabal.message \
             WHERE id = o.message AND day = o.day \
             UNION ALL SELECT origin_source, origin_id, type FROM pabal.message_kept \
             WHERE id = o.message LIMIT 1) m ON true ORDER BY it.place",
        )
        .bind(self.dead.iter().map(|(number, ..)| *number).collect::<Vec<_>>())
        .bind(each(|(_, reason, ..)| word(reason)))
        .bind(each(|(_, _, cause, ..)| cause.summary.as_ref().to_owned()))
        .bind(self.dead.iter().map(|(_, _, cause, ..)| cause.detail.clone()).collect::<Vec<_>>())
        .bind(each(|(_, _, _, holds, _)| word(holds)))
        .bind(self.dead.iter().map(|(.., tried)| i32::from(*tried)).collect::<Vec<_>>());
        execute(transaction, query).await.map(drop)
    }

    async fn write_log(&self, transaction: &mut Transaction) -> Result<(), StoreError> {
        if self.log.is_empty() {
            return Ok(());
        }
        let log = &self.log;
        let answer = |attempt: &'a Attempt| attempt.answer.as_ref();
        let cause = |attempt: &'a Attempt| attempt.cause.as_ref();
        let query = sqlx::query(
            "INSERT INTO pabal.delivery_log (day, at, message, number, destination, round, outcome, \
             duration, status, cause, detail, answer, sha256, size) \
             SELECT pabal.today(), pabal.time(), message, number, destination, round, outcome, \
             duration, status, cause, detail, answer, sha256, size \
             FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::integer[], $5::text[], \
             $6::bigint[], $7::integer[], $8::text[], $9::text[], $10::bytea[], $11::bytea[], \
             $12::bigint[]) WITH ORDINALITY AS new (message, number, destination, round, outcome, \
             duration, status, cause, detail, answer, sha256, size, place) ORDER BY place",
        )
        .bind(log.iter().map(|(it, _)| it.message.0).collect::<Vec<_>>())
        .bind(log.iter().map(|(it, _)| it.number).collect::<Vec<_>>())
        .bind(log.iter().map(|(it, _)| it.destination.as_str()).collect::<Vec<_>>())
        .bind(log.iter().map(|(it, _)| small(it.round)).collect::<Vec<_>>())
        .bind(log.iter().map(|(_, attempt)| attempt.outcome).collect::<Vec<_>>())
        .bind(log.iter().map(|(_, attempt)| micros(attempt.duration)).collect::<Vec<_>>())
        .bind(
            log.iter()
                .map(|(_, attempt)| answer(attempt).and_then(|it| it.status).map(i32::from))
                .collect::<Vec<_>>(),
        )
        .bind(
            log.iter()
                .map(|(_, attempt)| cause(attempt).map(|it| it.summary.as_ref()))
                .collect::<Vec<_>>(),
        )
        .bind(
            log.iter()
                .map(|(_, attempt)| cause(attempt).and_then(|it| it.detail.as_deref()))
                .collect::<Vec<_>>(),
        )
        .bind(
            log.iter()
                .map(|(_, attempt)| answer(attempt).map(|it| it.body.as_ref()))
                .collect::<Vec<_>>(),
        )
        .bind(
            log.iter()
                .map(|(_, attempt)| attempt.sha256.as_ref().map(|it| &it[..]))
                .collect::<Vec<_>>(),
        )
        .bind(log.iter().map(|(_, attempt)| saturate(attempt.size)).collect::<Vec<_>>());
        execute(transaction, query).await.map(drop)
    }
}

pub(crate) const OUTBOX: &str = "DELETE FROM pabal.outbox WHERE number = ANY($1)";
pub(crate) const DEAD_LETTER: &str = "DELETE FROM pabal.dead_letter WHERE number = ANY($1)";
pub(crate) const WRITTEN: &str = "DELETE FROM pabal.written WHERE number = ANY($1)";

/// Deletes the rows of these numbers; `sql` is one of the constants above.
pub(crate) async fn remove(
    transaction: &mut Transaction,
    sql: &'static str,
    which: impl Iterator<Item = Number>,
) -> Result<(), StoreError> {
    let which: Vec<_> = which.collect();
    if which.is_empty() {
        return Ok(());
    }
    execute(transaction, sqlx::query(sql).bind(which)).await.map(drop)
}
