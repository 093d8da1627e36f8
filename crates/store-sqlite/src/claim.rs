//! What may go out next, and what goes with it.

use std::collections::{HashMap, HashSet};

use pabal_core::{
    Delivery, EndpointName, Epoch, Loaded, Message, MessageId, Number, StoreError, Which, Written,
    slot,
};
use sqlx::{QueryBuilder, SqliteConnection, sqlite::SqliteRow};

use crate::{
    SqliteStore, execute,
    nodes::Held,
    rows::{Columns, ENVELOPE, envelope, ids, numbers, span},
};

pub(crate) async fn deliveries(
    store: &SqliteStore,
    which: Which<'_>,
    limit: usize,
) -> Result<Vec<Delivery>, StoreError> {
    let mut sql = QueryBuilder::new(format!("SELECT {DELIVERY} FROM outbox WHERE "));
    match which {
        Which::Tail { after } => sql.push("number > ").push_bind(after),
        Which::Destination { destination, after } => sql
            .push("destination = ")
            .push_bind(destination.as_str())
            .push(" AND number > ")
            .push_bind(after),
        Which::Key { destination, key, after } => sql
            .push("destination = ")
            .push_bind(destination.as_str())
            .push(" AND slot = ")
            .push_bind(i64::from(slot(key)))
            .push(" AND key = ")
            .push_bind(key)
            .push(" AND number > ")
            .push_bind(after),
        Which::Numbers(these) => sql
            .push("number IN (SELECT value FROM json_each(")
            .push_bind(numbers(these.iter().copied()))
            .push("))"),
    };
    sql.push(" ORDER BY number LIMIT ").push_bind(i64::try_from(limit).unwrap_or(i64::MAX));
    let rows = store.fetch(sql.build()).await?;
    let now = store.now();
    rows.iter().map(|row| delivery(row, now)).collect()
}

/// The columns of [`delivery`].
pub(crate) const DELIVERY: &str =
    "number, message, destination, slot, key, attempts, round, started, due, accepted, size";

/// Reads the columns of [`DELIVERY`].
pub(crate) fn delivery(row: &SqliteRow, now: i64) -> Result<Delivery, StoreError> {
    let mut row = Columns::of(row);
    Ok(Delivery {
        number: row.next()?,
        message: row.id()?,
        destination: row.endpoint()?,
        slot: row.count()?,
        key: row.next::<Option<&str>>()?.map(Into::into),
        attempts: row.count()?,
        round: row.count()?,
        started: row.count()?,
        due_in: span(now, row.next()?),
        age: span(row.next()?, now),
        size: row.next::<i64>()?.unsigned_abs(),
    })
}

pub(crate) async fn load(
    store: &SqliteStore,
    which: &[(Number, MessageId)],
) -> Result<Vec<Option<Loaded>>, StoreError> {
    let sql = format!(
        "SELECT {ENVELOPE} FROM message \
         WHERE id IN (SELECT DISTINCT unhex(value) FROM json_each(?))"
    );
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(ids(which.iter().map(|(_, id)| *id)));
    let mut messages: HashMap<MessageId, Message> = HashMap::with_capacity(which.len());
    for row in store.fetch(query).await? {
        let message = envelope(&mut Columns::of(&row))?;
        messages.insert(message.id, message);
    }
    let query = sqlx::query(
        "SELECT number, content_type, body FROM written \
         WHERE number IN (SELECT value FROM json_each(?))",
    )
    .bind(numbers(which.iter().map(|(number, _)| *number)));
    let mut pinned = HashMap::new();
    for row in store.fetch(query).await? {
        let mut row = Columns::of(&row);
        let number: Number = row.next()?;
        let content_type = row.next()?;
        let body = row.next::<Vec<u8>>()?.into();
        pinned.insert(number, Written { body, content_type });
    }
    let query =
        sqlx::query("SELECT number FROM outbox WHERE number IN (SELECT value FROM json_each(?))")
            .bind(numbers(which.iter().map(|(number, _)| *number)));
    let mut there = HashSet::new();
    for row in store.fetch(query).await? {
        there.insert(Columns::of(&row).next::<Number>()?);
    }
    Ok(which
        .iter()
        .map(|(number, id)| {
            there.contains(number).then_some(())?;
            Some(Loaded { message: messages.get(id)?.clone(), written: pinned.remove(number) })
        })
        .collect())
}

pub(crate) async fn mark_started(
    connection: &mut SqliteConnection,
    epoch: Epoch,
    starts: &[(Number, u32)],
) -> Result<(), StoreError> {
    let these = numbers(starts.iter().map(|(number, _)| *number));
    let query = sqlx::query(
        "SELECT DISTINCT destination, slot FROM outbox \
         WHERE number IN (SELECT value FROM json_each(?))",
    )
    .bind(&these);
    let held = Held::by(connection, epoch).await?;
    for row in crate::fetch(connection, query).await? {
        let mut row = Columns::of(&row);
        if !held.holds(row.next()?, row.next()?) {
            return Err(StoreError::Fenced);
        }
    }
    // The count is set and not raised: done twice, because a commit's outcome was unknown, it says
    // the same.
    for (number, start) in starts {
        let query = sqlx::query("UPDATE outbox SET started = ? WHERE number = ?")
            .bind(i64::from(*start))
            .bind(number);
        execute(connection, query).await?;
    }
    Ok(())
}

/// A dead letter that holds a whole destination stands without a key. A message without a key is
/// its own key: nothing waits behind it, and it is never noted as holding.
pub(crate) async fn held(
    store: &SqliteStore,
    destination: &EndpointName,
) -> Result<Vec<(Option<String>, Number)>, StoreError> {
    let query = sqlx::query(
        "SELECT CASE holds WHEN 'key' THEN key END AS held, min(number) FROM dead_letter \
         WHERE endpoint = ? AND holds <> 'nothing' AND number IS NOT NULL \
         GROUP BY held ORDER BY 2",
    )
    .bind(destination.as_str());
    let rows = store.fetch(query).await?;
    rows.iter()
        .map(|row| {
            let mut row = Columns::of(row);
            Ok((row.next()?, row.next()?))
        })
        .collect()
}
