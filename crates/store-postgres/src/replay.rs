//! The operators' verbs on dead letters.

use std::collections::{BTreeSet, HashMap};

use pabal_core::{DeadKind, DeadLetter, EndpointName, Number, OperatorAct, Request, StoreError};
use sqlx::AssertSqlSafe;

use crate::{
    Transaction, execute, fetch,
    links::{note, post},
    rows::{DEAD_LETTER, dead_letter},
    settle::{WRITTEN, remove},
};

/// Back into the outbox with the old number, so that a held key goes on at its place. Arrivals and
/// routing questions are left out: the engine asks for them with `dead_message` and hands them in
/// again.
pub(crate) async fn replay(
    transaction: &mut Transaction,
    which: &[i64],
    act: &OperatorAct,
) -> Result<Vec<DeadLetter>, StoreError> {
    note(transaction, act).await?;
    let letters = taken(transaction, which, "AND kind = 'delivery' AND number IS NOT NULL").await?;
    if letters.is_empty() {
        return Ok(letters);
    }
    let ids: Vec<_> = letters.iter().map(|letter| letter.id).collect();
    let query = sqlx::query(
        "INSERT INTO pabal.outbox (number, day, message, destination, slot, key, attempts, round, \
         due, started, accepted, size) SELECT number, day, message, endpoint, slot, key, 0, \
         round + 1, pabal.time(), 0, accepted, coalesce((SELECT size FROM pabal.message m \
         WHERE m.id = d.message AND m.day = d.day UNION ALL SELECT size FROM pabal.message_kept m \
         WHERE m.id = d.message LIMIT 1), 0) FROM pabal.dead_letter d WHERE id = ANY($1)",
    )
    .bind(&ids);
    execute(transaction, query).await?;
    log(transaction, "replayed", &ids, act).await?;
    forget(transaction, &ids).await?;

    let mut back: HashMap<EndpointName, Vec<Number>> = HashMap::new();
    for letter in &letters {
        let numbers = back.entry(letter.endpoint.clone()).or_default();
        numbers.extend(letter.number);
    }
    post(transaction, &Request::Requeued(back)).await?;
    Ok(letters)
}

/// Gives them up; the log keeps that it was done.
pub(crate) async fn discard(
    transaction: &mut Transaction,
    which: &[i64],
    act: &OperatorAct,
) -> Result<Vec<DeadLetter>, StoreError> {
    note(transaction, act).await?;
    let letters = taken(transaction, which, "").await?;
    if letters.is_empty() {
        return Ok(letters);
    }
    give_up(transaction, &letters, act).await?;
    let freed: BTreeSet<_> = letters
        .iter()
        .filter(|letter| letter.kind == DeadKind::Delivery)
        .map(|letter| letter.endpoint.clone())
        .collect();
    if !freed.is_empty() {
        post(transaction, &Request::Freed(freed.into_iter().collect())).await?;
    }
    Ok(letters)
}

/// Gives up those whose time is over: as many as are still there and hold nothing, so that there is
/// nobody to be told.
pub(crate) async fn expire(
    transaction: &mut Transaction,
    before: i64,
    most: i64,
    act: &OperatorAct,
) -> Result<usize, StoreError> {
    let sql = format!(
        "SELECT {DEAD_LETTER} FROM pabal.dead_letter WHERE holds = 'nothing' \
         AND at < pabal.time() - $1 * interval '1 microsecond' ORDER BY id LIMIT $2 \
         FOR UPDATE SKIP LOCKED"
    );
    let query = sqlx::query(AssertSqlSafe(sql)).bind(before).bind(most);
    let rows = fetch(transaction, query).await?;
    let letters: Vec<_> = rows.iter().map(dead_letter).collect::<Result<_, _>>()?;
    if !letters.is_empty() {
        give_up(transaction, &letters, act).await?;
    }
    Ok(letters.len())
}

async fn give_up(
    transaction: &mut Transaction,
    letters: &[DeadLetter],
    act: &OperatorAct,
) -> Result<(), StoreError> {
    let ids: Vec<_> = letters.iter().map(|letter| letter.id).collect();
    log(transaction, "discarded", &ids, act).await?;
    remove(transaction, WRITTEN, letters.iter().filter_map(|it| it.number)).await?;
    let arrivals = sqlx::query("DELETE FROM pabal.arrival WHERE dead_letter = ANY($1)").bind(&ids);
    execute(transaction, arrivals).await?;
    forget(transaction, &ids).await
}

/// Those that are still there, locked: whoever comes second finds nothing.
async fn taken(
    transaction: &mut Transaction,
    which: &[i64],
    narrow: &str,
) -> Result<Vec<DeadLetter>, StoreError> {
    let sql = format!(
        "SELECT {DEAD_LETTER} FROM pabal.dead_letter WHERE superseded IS NULL {narrow} \
         AND id = ANY($1) ORDER BY id FOR UPDATE"
    );
    let query = sqlx::query(AssertSqlSafe(sql)).bind(which);
    let rows = fetch(transaction, query).await?;
    rows.iter().map(dead_letter).collect()
}

async fn log(
    transaction: &mut Transaction,
    outcome: &'static str,
    ids: &[i64],
    act: &OperatorAct,
) -> Result<(), StoreError> {
    let query = sqlx::query(
        "INSERT INTO pabal.delivery_log (day, at, message, number, destination, round, outcome, \
         duration, cause, detail) SELECT pabal.today(), pabal.time(), message, number, endpoint, \
         round, $1, 0, $2, $3 FROM pabal.dead_letter WHERE message IS NOT NULL AND id = ANY($4) \
         ORDER BY id",
    )
    .bind(outcome)
    .bind(format!("by {}", act.by))
    .bind(act.why.as_deref())
    .bind(ids);
    execute(transaction, query).await.map(drop)
}

async fn forget(transaction: &mut Transaction, ids: &[i64]) -> Result<(), StoreError> {
    let query = sqlx::query("DELETE FROM pabal.dead_letter WHERE id = ANY($1)").bind(ids);
    execute(transaction, query).await.map(drop)
}
