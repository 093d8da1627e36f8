//! Lists of messages, and where each of their deliveries stands.

use std::collections::HashMap;

use pabal_core::{
    DeliveryState, DeliverySummary, EndpointName, Message, MessageId, MessageQuery, MessageSummary,
    StoreError,
};
use sqlx::{AssertSqlSafe, QueryBuilder, postgres::PgRow};
use uuid::Uuid;

use crate::{
    PostgresStore,
    rows::{Columns, ENVELOPE, at, envelope},
};

const LIST_DEFAULT: u32 = 50;
const LIST_MAX: u32 = 1000;

/// The columns of [`summary`].
pub(crate) const SUMMARY: &str =
    "sequence, id, source, origin_id, type, key, correlation, received, size";

/// All messages: those of dropped days that are still needed stand in a table of their own.
pub(crate) const ALL: &str =
    "(SELECT * FROM pabal.message UNION ALL SELECT * FROM pabal.message_kept) message";

/// Reads the columns of [`SUMMARY`]; the deliveries come from elsewhere.
pub(crate) fn summary(row: &PgRow) -> Result<MessageSummary, StoreError> {
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
        size: row.large()?,
        deliveries: Vec::new(),
    })
}

pub(crate) async fn list(
    store: &PostgresStore,
    query: &MessageQuery,
) -> Result<Vec<MessageSummary>, StoreError> {
    let mut sql = QueryBuilder::new(format!("SELECT {SUMMARY} FROM {ALL} WHERE true"));
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
        // By the day as well: partitions of other days are not opened.
        sql.push(" AND received >= ")
            .push_bind(at(since))
            .push(" AND day >= (")
            .push_bind(at(since))
            .push(" AT TIME ZONE 'UTC')::date");
    }
    if let Some(until) = query.until {
        sql.push(" AND received < ")
            .push_bind(at(until))
            .push(" AND day <= (")
            .push_bind(at(until))
            .push(" AT TIME ZONE 'UTC')::date");
    }
    if query.unrouted {
        sql.push(" AND id IN (SELECT message FROM pabal.unrouted)");
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
    store: &PostgresStore,
    id: MessageId,
) -> Result<Option<Message>, StoreError> {
    let sql = format!("SELECT {ENVELOPE} FROM {ALL} WHERE id = $1 LIMIT 1");
    match store.ask(sqlx::query(AssertSqlSafe(sql)).bind(id.0)).await?.first() {
        Some(row) => envelope(&mut Columns::of(row)).map(Some),
        None => Ok(None),
    }
}

/// The numbers of all deliveries of the messages in `$1`.
pub(crate) const NUMBERS: &str = "\
    numbers AS MATERIALIZED (SELECT id, unnest(numbers) AS number FROM pabal.message \
    WHERE id = ANY($1) \
    UNION SELECT id, unnest(numbers) FROM pabal.message_kept WHERE id = ANY($1) \
    UNION SELECT message, number FROM pabal.routed WHERE message = ANY($1))";

/// From the outbox, the dead letters and the log. Later lines of one destination win: a delivery
/// that is back in the outbox was dead before.
const DELIVERIES: &str = "\
    lines AS (SELECT l.* FROM numbers JOIN pabal.delivery_log l USING (number) \
    UNION ALL SELECT l.* FROM pabal.delivery_log l \
    WHERE l.message = ANY($1) AND l.number IS NULL) \
    SELECT l.message, l.destination, \
        CASE WHEN l.outcome IN ('discarded', 'stale') THEN l.outcome ELSE 'delivered' END, 0, \
        l.round, \
        NULL::timestamptz, l.id AS place, 0 AS part \
    FROM lines l WHERE l.outcome IN ('delivered', 'duplicate', 'stale', 'discarded') \
    UNION ALL SELECT d.message, d.endpoint, 'dead', d.attempts, d.round, NULL, d.id, 1 \
    FROM pabal.dead_letter d WHERE d.message = ANY($1) \
    UNION ALL SELECT o.message, o.destination, 'waiting', o.attempts, o.round, \
        CASE WHEN o.due > pabal.time() THEN o.due END, o.number, 2 \
    FROM numbers JOIN pabal.outbox o ON o.number = numbers.number AND o.message = numbers.id \
    ORDER BY part, place";

/// Fills in where the deliveries of each message stand.
pub(crate) async fn add_deliveries(
    store: &PostgresStore,
    list: &mut [MessageSummary],
) -> Result<(), StoreError> {
    if list.is_empty() {
        return Ok(());
    }
    let places: HashMap<MessageId, usize> =
        list.iter().enumerate().map(|(place, summary)| (summary.id, place)).collect();
    let ids: Vec<_> = list.iter().map(|summary| summary.id.0).collect();
    let sql = format!("WITH {NUMBERS}, {DELIVERIES}");
    for row in store.ask(sqlx::query(AssertSqlSafe(sql)).bind(ids)).await? {
        let mut row = Columns::of(&row);
        let Some(place) = places.get(&row.id()?) else {
            continue;
        };
        let destination: EndpointName = row.endpoint()?;
        let state: DeliveryState = row.word()?;
        let (attempts, round, due) = (row.count()?, row.count()?, row.optional_time()?);
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
