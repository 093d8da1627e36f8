//! What may go out next, and what goes with it.

use std::collections::HashMap;

use pabal_core::{
    Delivery, EndpointName, Epoch, Loaded, MessageId, Number, StoreError, Which, Written, slot,
};
use sqlx::{QueryBuilder, postgres::PgRow};

use crate::{
    PostgresStore, Transaction, execute,
    nodes::Held,
    rows::{Columns, ENVELOPE, envelope, saturate, small, span},
};

pub(crate) async fn deliveries(
    store: &PostgresStore,
    which: Which<'_>,
    limit: usize,
) -> Result<Vec<Delivery>, StoreError> {
    let mut sql = QueryBuilder::new(format!("SELECT {DELIVERY} FROM pabal.outbox WHERE "));
    // Written as one range of an index, from its first column on: a planner that judged the columns
    // one by one would expect a handful of rows, fetch a deep key whole, and sort it.
    match which {
        Which::Tail { after } => {
            sql.push("number > ").push_bind(after).push(" ORDER BY number");
        }
        Which::Destination { destination, after } => {
            let destination = destination.as_str();
            sql.push("(destination, number) > (")
                .push_bind(destination)
                .push(", ")
                .push_bind(after)
                .push(") AND destination <= ")
                .push_bind(destination)
                .push(" ORDER BY destination, number");
        }
        Which::Key { destination, key, after } => {
            let (destination, slot) = (destination.as_str(), i16::from(slot(key)));
            sql.push("key IS NOT NULL AND (destination, slot, key, number) > (")
                .push_bind(destination)
                .push(", ")
                .push_bind(slot)
                .push(", ")
                .push_bind(key)
                .push(", ")
                .push_bind(after)
                .push(") AND (destination, slot, key) <= (")
                .push_bind(destination)
                .push(", ")
                .push_bind(slot)
                .push(", ")
                .push_bind(key)
                .push(") ORDER BY destination, slot, key, number");
        }
        Which::Numbers(these) => {
            sql.push("number = ANY(").push_bind(these).push(") ORDER BY number");
        }
    }
    sql.push(" LIMIT ").push_bind(saturate(limit as u64));
    let rows = store.fetch(sql.build()).await?;
    rows.iter().map(delivery).collect()
}

/// The columns of [`delivery`].
pub(crate) const DELIVERY: &str = "number, message, destination, slot, key, attempts, round, \
    started, due, accepted, size, pabal.time()";

/// Reads the columns of [`DELIVERY`].
pub(crate) fn delivery(row: &PgRow) -> Result<Delivery, StoreError> {
    let mut row = Columns::of(row);
    let (number, message, destination) = (row.next()?, row.id()?, row.endpoint()?);
    let slot = u8::try_from(row.next::<i16>()?).unwrap_or_default();
    let key = row.next::<Option<&str>>()?.map(Into::into);
    let (attempts, round, started) = (row.count()?, row.count()?, row.count()?);
    let (due, accepted) = (row.time()?, row.time()?);
    let (size, now) = (row.large()?, row.time()?);
    Ok(Delivery {
        number,
        message,
        destination,
        slot,
        key,
        attempts,
        round,
        started,
        due_in: span(now, due),
        age: span(accepted, now),
        size,
    })
}

/// Each delivery's message is found by its day, so that one partition is asked; what was moved out of
/// a dropped one stands in `message_kept`.
pub(crate) async fn load(
    store: &PostgresStore,
    which: &[(Number, MessageId)],
) -> Result<Vec<Option<Loaded>>, StoreError> {
    let numbers: Vec<_> = which.iter().map(|(number, _)| *number).collect();
    let of = |table: &str| {
        let columns: Vec<_> = ENVELOPE.split(", ").map(|it| format!("m.{it}")).collect();
        format!(
            "SELECT o.number, w.number, w.content_type, w.body, {} FROM pabal.outbox o \
             JOIN pabal.{table} m ON m.id = o.message AND m.day = o.day \
             LEFT JOIN pabal.written w ON w.number = o.number WHERE o.number = ANY($1)",
            columns.join(", ")
        )
    };
    let mut loaded: HashMap<Number, Loaded> = HashMap::with_capacity(which.len());
    for table in ["message", "message_kept"] {
        let missing: Vec<_> =
            numbers.iter().copied().filter(|number| !loaded.contains_key(number)).collect();
        if missing.is_empty() {
            break;
        }
        let query = sqlx::query(sqlx::AssertSqlSafe(of(table))).bind(missing);
        for row in store.fetch(query).await? {
            let mut row = Columns::of(&row);
            let number = row.next()?;
            let pinned = row.next::<Option<Number>>()?.is_some();
            let content_type = row.next()?;
            let body = row.next::<Option<Vec<u8>>>()?.unwrap_or_default().into();
            let written = pinned.then_some(Written { body, content_type });
            loaded.insert(number, Loaded { message: envelope(&mut row)?, written });
        }
    }
    let fits = |id: MessageId| move |loaded: &Loaded| loaded.message.id == id;
    Ok(which.iter().map(|(number, id)| loaded.remove(number).filter(fits(*id))).collect())
}

pub(crate) async fn mark_started(
    transaction: &mut Transaction,
    epoch: Epoch,
    starts: &[(Number, u32)],
) -> Result<(), StoreError> {
    let numbers: Vec<_> = starts.iter().map(|(number, _)| *number).collect();
    let query =
        sqlx::query("SELECT DISTINCT destination, slot FROM pabal.outbox WHERE number = ANY($1)")
            .bind(numbers.clone());
    let rows = crate::fetch(transaction, query).await?;
    let places = rows.iter().map(|row| {
        let mut row = Columns::of(row);
        Ok((row.next()?, row.next()?))
    });
    let places: Vec<(String, i16)> = places.collect::<Result<_, StoreError>>()?;
    let destinations = places.iter().map(|(destination, _)| destination.clone()).collect();
    let held = Held::by(transaction, epoch, destinations).await?;
    if !places.iter().all(|(destination, slot)| held.holds(destination, *slot)) {
        return Err(StoreError::Fenced);
    }
    // The count is set and not raised: done twice, because a commit's outcome was unknown, it says
    // the same.
    let query = sqlx::query(
        "UPDATE pabal.outbox SET started = start FROM unnest($1::bigint[], $2::integer[]) \
         AS new (of, start) WHERE number = of",
    )
    .bind(numbers)
    .bind(starts.iter().map(|(_, start)| small(*start)).collect::<Vec<_>>());
    execute(transaction, query).await.map(drop)
}

/// A dead letter that holds a whole destination stands without a key. A message without a key is
/// its own key: nothing waits behind it, and it is never noted as holding.
pub(crate) async fn held(
    store: &PostgresStore,
    destination: &EndpointName,
) -> Result<Vec<(Option<String>, Number)>, StoreError> {
    let query = sqlx::query(
        "SELECT CASE holds WHEN 'key' THEN key END AS held, min(number) FROM pabal.dead_letter \
         WHERE endpoint = $1 AND holds <> 'nothing' AND number IS NOT NULL \
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
