//! What was set aside: writing it down, and showing it.

use std::collections::HashSet;

use pabal_core::{
    Cause, DeadKind, DeadLetter, DeadLetterGroup, DeadLetterQuery, DeadReason, EndpointName,
    Fingerprint, Message, StoreError,
};
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

use crate::{
    SqliteStore,
    accept::last_number,
    execute, fetch,
    rows::{
        CHUNK, Columns, DEAD_LETTER, ENVELOPE, bind_envelope, dead_letter, envelope, json, numbers,
        word,
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

/// Writes them down; an arrival is kept whole, because there is no message of it.
pub(crate) async fn set_aside(
    connection: &mut SqliteConnection,
    letters: &[NewDeadLetter<'_>],
    now: i64,
) -> Result<(), StoreError> {
    if letters.is_empty() {
        return Ok(());
    }
    let known = known(connection, letters).await?;
    let letters: Vec<_> = letters.iter().filter(|letter| !known.contains(&key(letter))).collect();
    let first = last_number(connection, "dead_letter").await? + 1;
    let numbered: Vec<_> = (first..).zip(letters).collect();
    for chunk in numbered.chunks(CHUNK) {
        let mut sql = QueryBuilder::new(
            "INSERT INTO dead_letter (id, kind, endpoint, message, origin_source, origin_id, \
             type, key, reason, cause, detail, attempts, round, holds, at, accepted, fingerprint) ",
        );
        sql.push_values(chunk, |mut row, (id, letter)| {
            let message = letter.message;
            let taken = letter.kind != DeadKind::Source;
            row.push_bind(*id)
                .push_bind(word(letter.kind))
                .push_bind(letter.endpoint.as_str())
                .push_bind(taken.then_some(message.id.0))
                .push_bind(message.origin.source.as_str())
                .push_bind(message.origin.id.as_deref())
                .push_bind(message.message_type.as_str())
                .push_bind(message.key.as_deref())
                .push_bind(word(letter.reason))
                .push_bind(letter.cause.summary.as_ref())
                .push_bind(letter.cause.detail.as_deref())
                .push("0, 0, 'nothing'")
                .push_bind(now)
                .push_bind(now)
                .push_bind(letter.fingerprint.as_ref().map(|it| &it.0[..]));
        });
        execute(connection, sql.build().persistent(false)).await?;
    }
    let arrivals: Vec<_> =
        numbered.iter().filter(|(_, letter)| letter.kind == DeadKind::Source).collect();
    for chunk in arrivals.chunks(CHUNK) {
        let mut sql = QueryBuilder::new(format!("INSERT INTO arrival (dead_letter, {ENVELOPE}) "));
        sql.push_values(chunk, |mut row, (id, letter)| {
            row.push_bind(*id);
            bind_envelope(&mut row, letter.message);
        });
        execute(connection, sql.build().persistent(false)).await?;
    }
    Ok(())
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
    connection: &mut SqliteConnection,
    letters: &[NewDeadLetter<'_>],
) -> Result<HashSet<Key>, StoreError> {
    let keys: Vec<_> = letters
        .iter()
        .filter(|letter| letter.kind == DeadKind::Source && letter.message.origin.id.is_some())
        .map(|letter| (letter.endpoint, &letter.message.origin.source, &letter.message.origin.id))
        .collect();
    let mut known = HashSet::new();
    if keys.is_empty() {
        return Ok(known);
    }
    let query = sqlx::query(
        "SELECT d.endpoint, d.origin_source, d.origin_id, d.fingerprint, d.reason \
         FROM json_each(?) k CROSS JOIN dead_letter d ON d.endpoint = k.value ->> 0 \
         AND d.origin_source = k.value ->> 1 AND d.origin_id = k.value ->> 2 \
         WHERE d.kind = 'source' AND d.superseded IS NULL",
    )
    .bind(json(keys));
    for row in fetch(connection, query).await? {
        let mut row = Columns::of(&row);
        known.insert((row.next()?, row.next()?, row.next()?, row.next()?, row.next()?));
    }
    Ok(known)
}

/// The conditions of a query; superseded ones are shown nowhere.
fn narrow(sql: &mut QueryBuilder<Sqlite>, query: &DeadLetterQuery) {
    sql.push(" FROM dead_letter WHERE superseded IS NULL AND id > ").push_bind(query.after);
    if !query.ids.is_empty() {
        sql.push(" AND id IN (SELECT value FROM json_each(")
            .push_bind(numbers(query.ids.iter().copied()))
            .push("))");
    }
    if let Some(kind) = query.kind {
        sql.push(" AND kind = ").push_bind(word(kind));
    }
    if let Some(endpoint) = &query.endpoint {
        sql.push(" AND endpoint = ").push_bind(endpoint.as_str());
    }
    if let Some(reason) = query.reason {
        sql.push(" AND reason = ").push_bind(word(reason));
    }
    if let Some(cause) = &query.cause {
        sql.push(" AND cause = ").push_bind(cause.as_str());
    }
    if let Some(message) = query.message {
        sql.push(" AND message = ").push_bind(message.0);
    }
}

pub(crate) async fn list(
    store: &SqliteStore,
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
    store: &SqliteStore,
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
                count: row.count()?,
                holding: row.count()?,
                oldest: row.time()?,
                newest: row.time()?,
            })
        })
        .collect()
}

/// The arrival behind a dead letter of kind source, the message behind the others.
pub(crate) async fn message(store: &SqliteStore, id: i64) -> Result<Option<Message>, StoreError> {
    for sql in [
        format!("SELECT {ENVELOPE} FROM arrival WHERE dead_letter = "),
        format!(
            "SELECT {ENVELOPE} FROM message WHERE id = (SELECT message FROM dead_letter \
             WHERE id = "
        ),
    ] {
        let close = if sql.contains('(') { ")" } else { "" };
        let mut sql = QueryBuilder::new(sql);
        sql.push_bind(id).push(close);
        if let Some(row) = store.ask(sql.build()).await?.first() {
            return envelope(&mut Columns::of(row)).map(Some);
        }
    }
    Ok(None)
}
