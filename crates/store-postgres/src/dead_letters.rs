//! What was set aside: writing it down, and showing it.

use std::collections::HashSet;

use jiff::Timestamp;
use pabal_core::{
    Cause, DeadKind, DeadLetter, DeadLetterGroup, DeadLetterQuery, DeadReason, EndpointName,
    Fingerprint, Message, StoreError,
};
use sqlx::{AssertSqlSafe, Postgres, QueryBuilder};

use crate::{
    PostgresStore, Transaction, execute, fetch,
    rows::{
        Columns, DEAD_LETTER, ENVELOPE, Envelopes, at, dead_letter, envelope, envelope_arguments,
        saturate, word,
    },
};

/// As many as one answer holds.
const LIST_MAX: u32 = 1000;

/// A dead letter of kind source or routing. Those of kind delivery come from the outbox.
#[derive(Debug)]
pub(crate) struct NewDeadLetter<'a> {
    pub(crate) kind: DeadKind,
    pub(crate) endpoint: &'a EndpointName,
    pub(crate) message: &'a Message,
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) reason: DeadReason,
    pub(crate) cause: Cause,
}

/// Writes them down; an arrival is kept whole, because there is no message of it. `received`: when, of
/// messages that are received in this transaction.
pub(crate) async fn set_aside(
    transaction: &mut Transaction,
    letters: &[NewDeadLetter<'_>],
    received: Option<Timestamp>,
) -> Result<(), StoreError> {
    if letters.is_empty() {
        return Ok(());
    }
    let known = known(transaction, letters).await?;
    let letters: Vec<_> = letters.iter().filter(|letter| !known.contains(&key(letter))).collect();
    let ids = numbers(transaction, letters.len()).await?;
    insert(transaction, &letters, &ids, received).await?;
    let arrivals: Vec<_> = ids
        .into_iter()
        .zip(&letters)
        .filter(|(_, letter)| letter.kind == DeadKind::Source)
        .collect();
    if arrivals.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "INSERT INTO pabal.arrival (dead_letter, {ENVELOPE}) SELECT * FROM unnest($1::bigint[], {})",
        envelope_arguments(2)
    );
    let ids: Vec<_> = arrivals.iter().map(|(id, _)| *id).collect();
    let query = sqlx::query(AssertSqlSafe(sql)).bind(ids);
    let envelopes = Envelopes::of(arrivals.iter().map(|(_, letter)| letter.message));
    execute(transaction, envelopes.bind(query)).await.map(drop)
}

async fn insert(
    transaction: &mut Transaction,
    letters: &[&NewDeadLetter<'_>],
    ids: &[i64],
    received: Option<Timestamp>,
) -> Result<(), StoreError> {
    if letters.is_empty() {
        return Ok(());
    }
    let id_of = |letter: &&NewDeadLetter<'_>| {
        (letter.kind != DeadKind::Source).then_some(letter.message.id.0)
    };
    let query = sqlx::query(
        "INSERT INTO pabal.dead_letter (id, kind, endpoint, day, message, origin_source, origin_id, \
         type, key, reason, cause, detail, attempts, round, holds, at, accepted, fingerprint) \
         SELECT new.id, kind, endpoint, CASE WHEN message IS NOT NULL THEN \
         coalesce(($13::timestamptz AT TIME ZONE 'UTC')::date, \
         (SELECT day FROM pabal.message m WHERE m.id = message \
         UNION ALL SELECT day FROM pabal.message_kept m WHERE m.id = message LIMIT 1)) END, \
         message, origin_source, origin_id, type, key, reason, cause, detail, 0, 0, 'nothing', pabal.time(), pabal.time(), \
         fingerprint FROM unnest($1::bigint[], $2::text[], $3::text[], $4::uuid[], $5::text[], \
         $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::bytea[]) \
         AS new (id, kind, endpoint, message, origin_source, origin_id, type, key, reason, cause, \
         detail, fingerprint)",
    )
    .bind(ids)
    .bind(letters.iter().map(|it| word(it.kind)).collect::<Vec<_>>())
    .bind(letters.iter().map(|it| it.endpoint.as_str()).collect::<Vec<_>>())
    .bind(letters.iter().map(id_of).collect::<Vec<_>>())
    .bind(letters.iter().map(|it| it.message.origin.source.as_str()).collect::<Vec<_>>())
    .bind(letters.iter().map(|it| it.message.origin.id.as_deref()).collect::<Vec<_>>())
    .bind(letters.iter().map(|it| it.message.message_type.as_str()).collect::<Vec<_>>())
    .bind(letters.iter().map(|it| it.message.key.as_deref()).collect::<Vec<_>>())
    .bind(letters.iter().map(|it| word(it.reason)).collect::<Vec<_>>())
    .bind(letters.iter().map(|it| it.cause.summary.as_ref()).collect::<Vec<_>>())
    .bind(letters.iter().map(|it| it.cause.detail.as_deref()).collect::<Vec<_>>())
    .bind(
        letters
            .iter()
            .map(|it| it.fingerprint.as_ref().map(|it| &it.0[..]))
            .collect::<Vec<_>>(),
    )
    .bind(received.map(at));
    execute(transaction, query).await.map(drop)
}

async fn numbers(transaction: &mut Transaction, count: usize) -> Result<Vec<i64>, StoreError> {
    let query = sqlx::query(
        "SELECT nextval('pabal.dead_letter_id_seq') FROM generate_series(1, $1::bigint)",
    )
    .bind(saturate(count as u64));
    let rows = fetch(transaction, query).await?;
    rows.iter().map(|row| Columns::of(row).next()).collect()
}

/// What makes two arrivals the same dead letter.
type Key = (String, String, Option<String>, Option<Vec<u8>>, String);

fn key(letter: &NewDeadLetter<'_>) -> Key {
    (
        letter.endpoint.to_string(),
        letter.message.origin.source.clone(),
        letter.message.origin.id.clone(),
        letter.fingerprint.map(|it| it.0.to_vec()),
        word(letter.reason),
    )
}

/// Those that are here already: an origin that offers the same bytes again and again fills no disk.
async fn known(
    transaction: &mut Transaction,
    letters: &[NewDeadLetter<'_>],
) -> Result<HashSet<Key>, StoreError> {
    let asked: Vec<_> = letters
        .iter()
        .filter(|letter| letter.kind == DeadKind::Source && letter.message.origin.id.is_some())
        .collect();
    let mut known = HashSet::new();
    if asked.is_empty() {
        return Ok(known);
    }
    let query = sqlx::query(
        "SELECT d.endpoint, d.origin_source, d.origin_id, d.fingerprint, d.reason \
         FROM unnest($1::text[], $2::text[], $3::text[]) AS asked (endpoint, source, id) \
         JOIN pabal.dead_letter d ON d.endpoint = asked.endpoint \
         AND d.origin_source = asked.source AND d.origin_id = asked.id \
         WHERE d.kind = 'source' AND d.superseded IS NULL",
    )
    .bind(asked.iter().map(|it| it.endpoint.as_str()).collect::<Vec<_>>())
    .bind(asked.iter().map(|it| it.message.origin.source.as_str()).collect::<Vec<_>>())
    .bind(asked.iter().map(|it| it.message.origin.id.as_deref()).collect::<Vec<_>>());
    for row in fetch(transaction, query).await? {
        let mut row = Columns::of(&row);
        known.insert((row.next()?, row.next()?, row.next()?, row.next()?, row.next()?));
    }
    Ok(known)
}

/// The conditions of a query; superseded ones are shown nowhere.
fn narrow(sql: &mut QueryBuilder<Postgres>, query: &DeadLetterQuery) {
    sql.push(" FROM pabal.dead_letter WHERE superseded IS NULL AND id > ").push_bind(query.after);
    if !query.ids.is_empty() {
        sql.push(" AND id = ANY(").push_bind(query.ids.clone()).push(")");
    }
    if let Some(kind) = query.kind {
        sql.push(" AND kind = ").push_bind(word(kind));
    }
    if let Some(endpoint) = &query.endpoint {
        sql.push(" AND endpoint = ").push_bind(endpoint.as_str().to_owned());
    }
    if let Some(reason) = query.reason {
        sql.push(" AND reason = ").push_bind(word(reason));
    }
    if let Some(cause) = &query.cause {
        sql.push(" AND cause = ").push_bind(cause.clone());
    }
    if let Some(message) = query.message {
        sql.push(" AND message = ").push_bind(message.0);
    }
}

pub(crate) async fn list(
    store: &PostgresStore,
    query: &DeadLetterQuery,
) -> Result<Vec<DeadLetter>, StoreError> {
    let limit = match query.limit {
        0 => LIST_MAX,
        limit => limit.min(LIST_MAX),
    };
    let mut sql = QueryBuilder::new(format!("SELECT {DEAD_LETTER}"));
    narrow(&mut sql, query);
    sql.push(" ORDER BY id LIMIT ").push_bind(i64::from(limit));
    let rows = store.ask(sql.build()).await?;
    rows.iter().map(dead_letter).collect()
}

pub(crate) async fn groups(
    store: &PostgresStore,
    query: &DeadLetterQuery,
) -> Result<Vec<DeadLetterGroup>, StoreError> {
    let mut sql = QueryBuilder::new(
        "SELECT endpoint, kind, reason, cause, count(*), count(*) FILTER (WHERE holds <> 'nothing'), \
         min(at), max(at)",
    );
    narrow(&mut sql, query);
    sql.push(" GROUP BY endpoint, kind, reason, cause ORDER BY endpoint, kind, reason, cause");
    let rows = store.ask(sql.build()).await?;
    rows.iter()
        .map(|row| {
            let mut row = Columns::of(row);
            Ok(DeadLetterGroup {
                endpoint: row.endpoint()?,
                kind: row.word()?,
                reason: row.word()?,
                cause: row.next()?,
                count: row.large()?,
                holding: row.large()?,
                oldest: row.time()?,
                newest: row.time()?,
            })
        })
        .collect()
}

/// The arrival behind a dead letter of kind source, the message behind the others.
pub(crate) async fn message(store: &PostgresStore, id: i64) -> Result<Option<Message>, StoreError> {
    let of = |from: &str| format!("SELECT {ENVELOPE} FROM pabal.{from}");
    let message = "id = (SELECT message FROM pabal.dead_letter WHERE id = $1)";
    for sql in [
        of("arrival WHERE dead_letter = $1"),
        of(&format!("message WHERE {message}")),
        of(&format!("message_kept WHERE {message}")),
    ] {
        let query = sqlx::query(AssertSqlSafe(sql)).bind(id);
        if let Some(row) = store.ask(query).await?.first() {
            return envelope(&mut Columns::of(row)).map(Some);
        }
    }
    Ok(None)
}
