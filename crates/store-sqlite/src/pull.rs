//! Handing out to a partner that fetches its messages.

use std::{collections::HashSet, sync::Arc};

use pabal_core::{
    Delivery, EndpointName, LAPSED, Number, Order, PullAsk, PullPage, Scan, StoreError,
};
use sqlx::{AssertSqlSafe, SqliteConnection};

use crate::{
    claim::{DELIVERY, delivery},
    execute, fetch,
    rows::{Columns, Query, micros, numbers, saturate, span},
};

/// Deliveries or keys looked at in one page.
const PAGE: usize = 500;

pub(crate) async fn pull(
    connection: &mut SqliteConnection,
    destination: &EndpointName,
    ask: &PullAsk,
    now: i64,
) -> Result<PullPage, StoreError> {
    let seen = look(connection, destination, ask).await?;
    let candidates = candidates(&seen, ask.order, now);
    let (taken, spent) = match candidates.is_empty() {
        true => Default::default(),
        false => ask.choose(free(connection, ask, candidates, now).await?),
    };
    hand_out(connection, ask, &taken, now).await?;
    let last = seen.last().filter(|_| seen.len() == PAGE);
    Ok(PullPage {
        taken,
        spent,
        next: last.map(|last| match (&ask.scan, &last.key) {
            (Scan::Keys(_), Some(key)) => Scan::Keys(Some((last.slot, Arc::clone(key)))),
            _ => Scan::Numbers(last.number),
        }),
        due_in: seen.iter().map(|it| it.due).filter(|due| *due > now).min().map(|it| span(now, it)),
    })
}

/// A delivery that was looked at.
struct Seen {
    number: Number,
    slot: u8,
    key: Option<Arc<str>>,
    due: i64,
}

async fn look(
    connection: &mut SqliteConnection,
    destination: &EndpointName,
    ask: &PullAsk,
) -> Result<Vec<Seen>, StoreError> {
    let page = if ask.order == Order::All { 1 } else { saturate(PAGE as u64) };
    let query = match &ask.scan {
        Scan::Numbers(after) => sqlx::query(
            "SELECT number, slot, key, due FROM outbox WHERE destination = ? AND number > ? \
             ORDER BY number LIMIT ?",
        )
        .bind(destination.as_str())
        .bind(after)
        .bind(page),
        // From each key to the next one, past all that stands behind its first.
        Scan::Keys(after) => {
            let (slot, key) =
                after.as_ref().map_or((-1, ""), |(slot, key)| (i64::from(*slot), key));
            sqlx::query(
                "WITH RECURSIVE head (number, place) AS (SELECT (SELECT number FROM outbox \
                 WHERE destination = ?1 AND key IS NOT NULL AND (slot, key) > (?2, ?3) \
                 ORDER BY slot, key, number LIMIT 1), 1 \
                 UNION ALL SELECT (SELECT e.number FROM outbox e WHERE e.destination = ?1 \
                 AND e.key IS NOT NULL AND (e.slot, e.key) > (o.slot, o.key) \
                 ORDER BY e.slot, e.key, e.number LIMIT 1), place + 1 \
                 FROM head JOIN outbox o ON o.number = head.number WHERE place < ?4) \
                 SELECT o.number, o.slot, o.key, o.due FROM head \
                 JOIN outbox o ON o.number = head.number ORDER BY place",
            )
            .bind(destination.as_str())
            .bind(slot)
            .bind(key)
            .bind(page)
        }
    };
    let rows = fetch(connection, query).await?;
    rows.iter()
        .map(|row| {
            let mut row = Columns::of(row);
            let (number, slot) = (row.next()?, row.count()?);
            let key = row.next::<Option<&str>>()?.map(Into::into);
            Ok(Seen { number, slot, key, due: row.next()? })
        })
        .collect()
}

/// Those that are due; of each key only the first can be the one that may go.
fn candidates(seen: &[Seen], order: Order, now: i64) -> Vec<Number> {
    let mut keys = HashSet::new();
    let first = |it: &&Seen| match (order, &it.key) {
        (Order::Key, Some(key)) => keys.insert(Arc::clone(key)),
        _ => true,
    };
    seen.iter().filter(first).filter(|it| it.due <= now).map(|it| it.number).collect()
}

/// Of the candidates those with nothing in front of them, the oldest first.
async fn free(
    connection: &mut SqliteConnection,
    ask: &PullAsk,
    candidates: Vec<Number>,
    now: i64,
) -> Result<Vec<Delivery>, StoreError> {
    let unblocked = match ask.order {
        Order::None => "",
        Order::All => {
            " AND NOT EXISTS (SELECT 1 FROM dead_letter d WHERE d.holds <> 'nothing' \
             AND d.endpoint = outbox.destination AND d.number < outbox.number)"
        }
        Order::Key => {
            " AND (key IS NULL OR (NOT EXISTS (SELECT 1 FROM outbox e WHERE e.key IS NOT NULL \
             AND e.destination = outbox.destination AND e.slot = outbox.slot \
             AND e.key = outbox.key AND e.number < outbox.number) \
             AND NOT EXISTS (SELECT 1 FROM dead_letter d WHERE d.holds <> 'nothing' \
             AND d.holds = 'key' AND d.endpoint = outbox.destination AND d.key = outbox.key \
             AND d.number < outbox.number)))"
        }
    };
    let unsuspected = if ask.unsuspected { " AND started = 0" } else { "" };
    let sql = format!(
        "SELECT {DELIVERY} FROM outbox WHERE number IN (SELECT value FROM json_each(?)) \
         AND due <= ?{unsuspected}{unblocked} ORDER BY number LIMIT ?"
    );
    let query: Query<'_> = sqlx::query(AssertSqlSafe(sql))
        .bind(numbers(candidates))
        .bind(now)
        .bind(saturate(ask.max as u64));
    let rows = fetch(connection, query).await?;
    rows.iter().map(|row| delivery(row, now)).collect()
}

/// What had lapsed is an attempt that failed; all are out from now on.
async fn hand_out(
    connection: &mut SqliteConnection,
    ask: &PullAsk,
    taken: &[Delivery],
    now: i64,
) -> Result<(), StoreError> {
    if taken.is_empty() {
        return Ok(());
    }
    let lapsed = taken.iter().filter(|it| it.started > 0).map(|it| it.number);
    let query = sqlx::query(
        "INSERT INTO delivery_log (at, message, number, destination, round, outcome, duration, \
         cause) SELECT ?, message, number, destination, round, 'transient', ?, ? FROM outbox \
         WHERE number IN (SELECT value FROM json_each(?)) ORDER BY number",
    )
    .bind(now)
    .bind(micros(ask.lease))
    .bind(LAPSED)
    .bind(numbers(lapsed));
    execute(connection, query).await?;
    let query = sqlx::query(
        "UPDATE outbox SET due = ?, attempts = attempts + started, started = 1 \
         WHERE number IN (SELECT value FROM json_each(?))",
    )
    .bind(now.saturating_add(micros(ask.lease)))
    .bind(numbers(taken.iter().map(|it| it.number)));
    execute(connection, query).await.map(drop)
}
