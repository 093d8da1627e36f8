//! The operators' verbs on dead letters.

use std::collections::{BTreeSet, HashMap};

use pabal_core::{DeadKind, DeadLetter, EndpointName, Number, OperatorAct, Request, StoreError};
use sqlx::SqliteConnection;

use crate::{
    execute, fetch,
    links::{note, post},
    rows::{DEAD_LETTER, dead_letter, numbers},
    settle::{WRITTEN, remove},
};

/// Back into the outbox with the old number, so that a held key goes on at its place. Arrivals and
/// routing questions are left out: the engine asks for them with `dead_message` and hands them in
/// again.
pub(crate) async fn replay(
    connection: &mut SqliteConnection,
    which: &[i64],
    act: &OperatorAct,
    now: i64,
) -> Result<Vec<DeadLetter>, StoreError> {
    note(connection, act, now).await?;
    let letters = taken(connection, which, "AND kind = 'delivery' AND number IS NOT NULL").await?;
    if letters.is_empty() {
        return Ok(letters);
    }
    let ids = numbers(letters.iter().map(|letter| letter.id));
    let query = sqlx::query(
        "INSERT INTO outbox (number, message, destination, slot, key, attempts, round, due, \
         started, accepted, size) SELECT number, message, endpoint, slot, key, 0, round + 1, ?, \
         0, accepted, (SELECT size FROM message WHERE message.id = dead_letter.message) \
         FROM dead_letter WHERE id IN (SELECT value FROM json_each(?))",
    )
    .bind(now)
    .bind(&ids);
    execute(connection, query).await?;
    log(connection, "replayed", &ids, act, now).await?;
    forget(connection, &ids).await?;

    let mut back: HashMap<EndpointName, Vec<Number>> = HashMap::new();
    for letter in &letters {
        let numbers = back.entry(letter.endpoint.clone()).or_default();
        numbers.extend(letter.number);
    }
    post(connection, &Request::Requeued(back), now).await?;
    Ok(letters)
}

/// Gives them up; the log keeps that it was done.
pub(crate) async fn discard(
    connection: &mut SqliteConnection,
    which: &[i64],
    act: &OperatorAct,
    now: i64,
) -> Result<Vec<DeadLetter>, StoreError> {
    note(connection, act, now).await?;
    let letters = taken(connection, which, "").await?;
    if letters.is_empty() {
        return Ok(letters);
    }
    give_up(connection, &letters, act, now).await?;
    let freed: BTreeSet<_> = letters
        .iter()
        .filter(|letter| letter.kind == DeadKind::Delivery)
        .map(|letter| letter.endpoint.clone())
        .collect();
    if !freed.is_empty() {
        post(connection, &Request::Freed(freed.into_iter().collect()), now).await?;
    }
    Ok(letters)
}

/// Gives up those whose time is over. They hold nothing, so there is nobody to be told.
pub(crate) async fn expire(
    connection: &mut SqliteConnection,
    which: &[i64],
    act: &OperatorAct,
    now: i64,
) -> Result<(), StoreError> {
    let sql = format!(
        "SELECT {DEAD_LETTER} FROM dead_letter WHERE holds = 'nothing' \
         AND id IN (SELECT value FROM json_each(?))"
    );
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(numbers(which.iter().copied()));
    let rows = fetch(connection, query).await?;
    let letters: Vec<_> = rows.iter().map(dead_letter).collect::<Result<_, _>>()?;
    if letters.is_empty() {
        return Ok(());
    }
    give_up(connection, &letters, act, now).await
}

async fn give_up(
    connection: &mut SqliteConnection,
    letters: &[DeadLetter],
    act: &OperatorAct,
    now: i64,
) -> Result<(), StoreError> {
    let ids = numbers(letters.iter().map(|letter| letter.id));
    log(connection, "discarded", &ids, act, now).await?;
    remove(connection, WRITTEN, letters.iter().filter_map(|it| it.number)).await?;
    let arrivals =
        sqlx::query("DELETE FROM arrival WHERE dead_letter IN (SELECT value FROM json_each(?))")
            .bind(&ids);
    execute(connection, arrivals).await?;
    forget(connection, &ids).await
}

/// Those that are still there: whoever comes second finds nothing.
async fn taken(
    connection: &mut SqliteConnection,
    which: &[i64],
    narrow: &str,
) -> Result<Vec<DeadLetter>, StoreError> {
    let sql = format!(
        "SELECT {DEAD_LETTER} FROM dead_letter WHERE superseded IS NULL {narrow} \
         AND id IN (SELECT value FROM json_each(?)) ORDER BY id"
    );
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(numbers(which.iter().copied()));
    let rows = fetch(connection, query).await?;
    rows.iter().map(dead_letter).collect()
}

async fn log(
    connection: &mut SqliteConnection,
    outcome: &'static str,
    ids: &str,
    act: &OperatorAct,
    now: i64,
) -> Result<(), StoreError> {
    let query = sqlx::query(
        "INSERT INTO delivery_log (at, message, number, destination, round, outcome, duration, \
         cause, detail) SELECT ?, message, number, endpoint, round, ?, 0, ?, ? FROM dead_letter \
         WHERE message IS NOT NULL AND id IN (SELECT value FROM json_each(?)) ORDER BY id",
    )
    .bind(now)
    .bind(outcome)
    .bind(format!("by {}", act.by))
    .bind(act.why.as_deref())
    .bind(ids);
    execute(connection, query).await.map(drop)
}

async fn forget(connection: &mut SqliteConnection, ids: &str) -> Result<(), StoreError> {
    let query = sqlx::query("DELETE FROM dead_letter WHERE id IN (SELECT value FROM json_each(?))")
        .bind(ids);
    execute(connection, query).await.map(drop)
}
