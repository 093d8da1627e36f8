//! Lists of messages, and where each of their deliveries stands.

use std::collections::HashMap;

use pabal_core::{
    DeliveryState, DeliverySummary, EndpointName, Message, MessageId, MessageQuery, MessageSummary,
    StoreError,
};
use sqlx::{QueryBuilder, sqlite::SqliteRow};
use uuid::Uuid;

use crate::{
    SqliteStore,
    rows::{Columns, ENVELOPE, envelope, ids},
};

const LIST_DEFAULT: u32 = 50;
const LIST_MAX: u32 = 1000;

/// The columns of [`summary`].
pub(crate) const SUMMARY: &str =
    "sequence, id, source, origin_id, type, key, correlation, received, size";

/// Reads the columns of [`SUMMARY`]; the deliveries come from elsewhere.
pub(crate) fn summary(row: &SqliteRow) -> Result<MessageSummary, StoreError> {
    let mut row = Columns::of(row);
    Ok(MessageSummary {
        sequence: row.next()?,
        id: row.id()?,
        source: row.endpoint()?,
        origin_id: row.next::<Option<String>>()?.unwrap_or_default(),
        message_type: row.next()?,
        key: row.next()?,
        correlation: row.next()?,
        received: row.time()?,
        size: row.count()?,
        deliveries: Vec::new(),
    })
}

pub(crate) async fn list(
    store: &SqliteStore,
    query: &MessageQuery,
) -> Result<Vec<MessageSummary>, StoreError> {
    let mut sql = QueryBuilder::new(format!("SELECT {SUMMARY} FROM message WHERE true"));
    if let Some(id) = &query.id {
        sql.push(" AND (origin_id = ")
            .push_bind(id.as_str())
            .push(" OR correlation = ")
            .push_bind(id.as_str());
        if let Ok(id) = id.parse::<Uuid>() {
            sql.push(" OR id = ").push_bind(id);
        }
        sql.push(")");
    }
    if let Some(key) = &query.key {
        sql.push(" AND key = ").push_bind(key.as_str());
    }
    if let Some(message_type) = &query.message_type {
        sql.push(" AND type = ").push_bind(message_type.as_str());
    }
    if let Some(source) = &query.source {
        sql.push(" AND source = ").push_bind(source.as_str());
    }
    if let Some(since) = query.since {
        let since = since.as_microsecond();
        // Rows stand in the order they came: where the time begins, the list ends.
        sql.push(" AND received >= ")
            .push_bind(since)
            .push(" AND sequence >= coalesce((SELECT sequence FROM message WHERE received >= ");
        sql.push_bind(since).push(" ORDER BY received, sequence LIMIT 1), 9223372036854775807)");
    }
    if let Some(until) = query.until {
        let until = until.as_microsecond();
        sql.push(" AND received < ")
            .push_bind(until)
            .push(" AND sequence <= coalesce((SELECT sequence FROM message WHERE received < ");
        sql.push_bind(until).push(" ORDER BY received DESC, sequence DESC LIMIT 1), 0)");
    }
    if query.unrouted {
        sql.push(" AND id IN (SELECT message FROM unrouted)");
    }
    if let Some(after) = query.after {
        sql.push(" AND sequence < ").push_bind(after);
    }
    let limit = match query.limit {
        0 => LIST_DEFAULT,
        limit => limit.min(LIST_MAX),
    };
    sql.push(" ORDER BY sequence DESC LIMIT ").push_bind(i64::from(limit));
    let rows = store.ask(sql.build()).await?;
    let mut list = rows.iter().map(summary).collect::<Result<Vec<_>, _>>()?;
    add_deliveries(store, &mut list).await?;
    Ok(list)
}

pub(crate) async fn content(
    store: &SqliteStore,
    id: MessageId,
) -> Result<Option<Message>, StoreError> {
    let sql = format!("SELECT {ENVELOPE} FROM message WHERE id = ?");
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id.0);
    match store.ask(query).await?.first() {
        Some(row) => envelope(&mut Columns::of(row)).map(Some),
        None => Ok(None),
    }
}

/// From the outbox, the dead letters and the log. Later lines of one destination win: a delivery
/// that is back in the outbox was dead before.
const DELIVERIES: &str = "\
    WITH wanted AS MATERIALIZED (SELECT unhex(value) AS id FROM json_each(?)), \
    lines AS (SELECT l.* FROM wanted CROSS JOIN message m ON m.id = wanted.id \
    CROSS JOIN delivery_log l \
    ON l.number BETWEEN m.first_number AND m.first_number + m.deliveries - 1 \
    UNION ALL SELECT l.* FROM wanted CROSS JOIN routed r ON r.message = wanted.id \
    CROSS JOIN delivery_log l ON l.number = r.number \
    UNION ALL SELECT l.* FROM wanted CROSS JOIN delivery_log l \
    ON l.message = wanted.id AND l.number IS NULL) \
    SELECT l.message, l.destination, \
        CASE WHEN l.outcome IN ('discarded', 'stale') THEN l.outcome ELSE 'delivered' END, 0, \
        l.round, NULL, l.id AS place, 0 AS part \
    FROM lines l WHERE l.outcome IN ('delivered', 'duplicate', 'stale', 'discarded') \
    UNION ALL SELECT d.message, d.endpoint, 'dead', d.attempts, d.round, NULL, d.id, 1 \
    FROM wanted CROSS JOIN dead_letter d ON d.message = wanted.id \
    UNION ALL SELECT o.message, o.destination, 'waiting', o.attempts, o.round, o.due, o.number, 2 \
    FROM wanted CROSS JOIN message m ON m.id = wanted.id CROSS JOIN outbox o \
    ON o.number BETWEEN m.first_number AND m.first_number + m.deliveries - 1 AND o.message = m.id \
    UNION ALL SELECT o.message, o.destination, 'waiting', o.attempts, o.round, o.due, o.number, 2 \
    FROM wanted CROSS JOIN routed r ON r.message = wanted.id CROSS JOIN outbox o \
    ON o.number = r.number AND o.message = r.message \
    ORDER BY part, place";

/// Fills in where the deliveries of each message stand.
pub(crate) async fn add_deliveries(
    store: &SqliteStore,
    list: &mut [MessageSummary],
) -> Result<(), StoreError> {
    if list.is_empty() {
        return Ok(());
    }
    let places: HashMap<MessageId, usize> =
        list.iter().enumerate().map(|(place, summary)| (summary.id, place)).collect();
    let now = store.now();
    let query = sqlx::query(DELIVERIES).bind(ids(list.iter().map(|summary| summary.id)));
    for row in store.ask(query).await? {
        let mut row = Columns::of(&row);
        let Some(place) = places.get(&row.id()?) else {
            continue;
        };
        let destination: EndpointName = row.endpoint()?;
        let state: DeliveryState = row.word()?;
        let (attempts, round) = (row.count()?, row.count()?);
        let due = row.next::<Option<i64>>()?.filter(|due| *due > now);
        let due = due.map(crate::rows::time).transpose()?;
        let delivery = DeliverySummary { destination, state, attempts, round, due };
        let deliveries = &mut list[*place].deliveries;
        match deliveries.iter_mut().find(|known| known.destination == delivery.destination) {
            Some(known) => *known = delivery,
            None => deliveries.push(delivery),
        }
    }
    for summary in list {
        summary.deliveries.sort_by(|a, b| a.destination.cmp(&b.destination));
    }
    Ok(())
}
