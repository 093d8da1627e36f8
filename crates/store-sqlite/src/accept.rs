//! The way in: inbox rows, messages, deliveries and state writes of one group, all or nothing.

use std::collections::HashMap;

use pabal_core::{
    Accepted, Cause, DeadKind, DeadReason, EndpointName, Entry, Message, MessageId, NewMessage,
    Number, StoreError,
};
use sqlx::{QueryBuilder, SqliteConnection};

use crate::{
    dead_letters::{NewDeadLetter, set_aside},
    execute, fetch,
    inbox::{claim_ids, compare, count_repeats, identity},
    rows::{CHUNK, Columns, ENVELOPE, bind_envelope, json, numbers},
};

const ANOTHER_CONTENT: &str = "another content under the same id";
const NOT_DECIDED: &str = "its `when` could not be evaluated";

pub(crate) async fn accept(
    connection: &mut SqliteConnection,
    group: &[Entry],
    now: i64,
) -> Result<Vec<Accepted>, StoreError> {
    let messages = messages(group)?;
    let mut answers = vec![Accepted::SetAside; group.len()];

    claim_ids(connection, &messages, now, &mut answers).await?;
    let met: Vec<_> = of(&messages, &answers, |answer| *answer != Accepted::Stored);
    if !met.is_empty() {
        compare(connection, &met, &mut answers).await?;
        let repeated = of(&met, &answers, |answer| *answer == Accepted::Duplicate);
        let repeated = repeated.iter().map(|(_, new)| (identity(&new.message), 1 + new.repeats));
        count_repeats(connection, repeated, now).await?;
    }
    let stored = of(&messages, &answers, |answer| *answer == Accepted::Stored);
    store(connection, &stored, now).await?;
    put_aside(connection, group, &answers, now).await?;
    supersede(connection, &stored, now).await?;
    write_states(connection, group).await?;
    Ok(answers)
}

/// A message of the group and its place there.
pub(crate) type Placed<'a> = (usize, &'a NewMessage);

/// The messages to be taken, in hand-over order.
fn messages(group: &[Entry]) -> Result<Vec<Placed<'_>>, StoreError> {
    let mut seen = HashMap::with_capacity(group.len());
    let mut messages = Vec::with_capacity(group.len());
    for (index, entry) in group.iter().enumerate() {
        let Entry::Message(new) = entry else { continue };
        let id = new.message.id;
        if new.message.origin.id.is_none() || id == MessageId::UNASSIGNED {
            return Err(StoreError::Rejected("a message without an id".to_owned()));
        }
        if new.message.arrival.alongside.is_some() {
            let text = "this store is in no origin's database";
            return Err(StoreError::Rejected(text.to_owned()));
        }
        if seen.insert(id, index).is_some() {
            return Err(StoreError::Rejected(format!("message {id} stands twice in a group")));
        }
        messages.push((index, new));
    }
    Ok(messages)
}

fn of<'a>(
    messages: &[Placed<'a>],
    answers: &[Accepted],
    wanted: impl Fn(&Accepted) -> bool,
) -> Vec<Placed<'a>> {
    messages.iter().filter(|(index, _)| wanted(&answers[*index])).copied().collect()
}

/// Writes messages, their deliveries in hand-over order, and what became of those without.
async fn store(
    connection: &mut SqliteConnection,
    stored: &[Placed<'_>],
    now: i64,
) -> Result<(), StoreError> {
    if stored.is_empty() {
        return Ok(());
    }
    let first = last_number(connection, "outbox").await? + 1;
    let mut next = first;
    for chunk in stored.chunks(CHUNK) {
        let mut sql = QueryBuilder::new(format!(
            "INSERT INTO message (received, first_number, deliveries, {ENVELOPE}) "
        ));
        sql.push_values(chunk, |mut row, (_, new)| {
            let deliveries = new.destinations.len() as i64;
            row.push_bind(now).push_bind(next).push_bind(deliveries);
            bind_envelope(&mut row, &new.message);
            next += deliveries;
        });
        let query = sql.build().persistent(chunk.len() == CHUNK);
        execute(connection, query).await?;
    }
    let deliveries: Vec<_> = stored
        .iter()
        .flat_map(|(_, new)| new.destinations.iter().map(|to| (&new.message, to)))
        .collect();
    insert_deliveries(connection, first, &deliveries, now).await?;

    let unrouted = stored
        .iter()
        .filter(|(_, new)| new.destinations.is_empty() && new.faults.is_empty())
        .map(|(_, new)| new.message.id);
    insert_unrouted(connection, unrouted.collect(), now).await?;

    let faults = stored
        .iter()
        .flat_map(|(_, new)| new.faults.iter().map(|fault| (&new.message, fault)))
        .collect();
    set_aside_questions(connection, faults, now).await
}

/// Keeps the questions whether a destination takes a message that could not be answered.
pub(crate) async fn set_aside_questions(
    connection: &mut SqliteConnection,
    faults: Vec<(&Message, &(EndpointName, String))>,
    now: i64,
) -> Result<(), StoreError> {
    let faults: Vec<_> = faults
        .into_iter()
        .map(|(message, (destination, detail))| NewDeadLetter {
            kind: DeadKind::Routing,
            endpoint: destination,
            message,
            fingerprint: None,
            reason: DeadReason::Routing,
            cause: Cause::with(NOT_DECIDED, detail),
        })
        .collect();
    set_aside(connection, &faults, now).await
}

/// Numbers are given out here, not by SQLite, so that the message can know them; the table's
/// AUTOINCREMENT keeps the highest one, also after its row is gone.
pub(crate) async fn last_number(
    connection: &mut SqliteConnection,
    table: &'static str,
) -> Result<Number, StoreError> {
    let query = sqlx::query("SELECT seq FROM sqlite_sequence WHERE name = ?").bind(table);
    match fetch(connection, query).await?.first() {
        Some(row) => Columns::of(row).next(),
        None => Ok(0),
    }
}

/// Inserts deliveries with the numbers from `first` on, due at once.
pub(crate) async fn insert_deliveries(
    connection: &mut SqliteConnection,
    first: Number,
    deliveries: &[(&Message, &EndpointName)],
    now: i64,
) -> Result<(), StoreError> {
    let mut number = first;
    for chunk in deliveries.chunks(CHUNK) {
        let mut sql = QueryBuilder::new(
            "INSERT INTO outbox (number, message, destination, slot, key, attempts, round, due, \
             started, accepted, size) ",
        );
        sql.push_values(chunk, |mut row, (message, destination)| {
            row.push_bind(number)
                .push_bind(message.id.0)
                .push_bind(destination.as_str())
                .push_bind(i64::from(message.slot()))
                .push_bind(message.key.as_deref())
                .push("0, 0")
                .push_bind(now)
                .push("0")
                .push_bind(now)
                .push_bind(message.body.size().cast_signed());
            number += 1;
        });
        let query = sql.build().persistent(chunk.len() == CHUNK);
        execute(connection, query).await?;
    }
    Ok(())
}

pub(crate) async fn insert_unrouted(
    connection: &mut SqliteConnection,
    messages: Vec<MessageId>,
    now: i64,
) -> Result<(), StoreError> {
    if messages.is_empty() {
        return Ok(());
    }
    let query = sqlx::query(
        "INSERT INTO unrouted (message, at) SELECT unhex(value), ? FROM json_each(?) WHERE true \
         ON CONFLICT DO NOTHING",
    )
    .bind(now)
    .bind(crate::rows::ids(messages));
    execute(connection, query).await.map(drop)
}

/// Keeps what was not taken: what the engine set aside, and conflicts.
async fn put_aside(
    connection: &mut SqliteConnection,
    group: &[Entry],
    answers: &[Accepted],
    now: i64,
) -> Result<(), StoreError> {
    let mut letters = Vec::new();
    for (entry, answer) in group.iter().zip(answers) {
        let (message, fingerprint, reason, cause) = match (entry, answer) {
            (Entry::SetAside(it), _) => (&it.message, it.fingerprint, it.reason, it.cause.clone()),
            (Entry::Message(new), Accepted::Conflict { held }) => {
                let given = new.fingerprint;
                let detail = format!("held: SHA-256 {held}, now: SHA-256 {given}");
                let cause = Cause::with(ANOTHER_CONTENT, detail);
                (&new.message, given, DeadReason::Conflict, cause)
            }
            (Entry::Message(_), _) => continue,
        };
        letters.push(NewDeadLetter {
            kind: DeadKind::Source,
            endpoint: &message.source,
            message,
            fingerprint: Some(fingerprint),
            reason,
            cause,
        });
    }
    set_aside(connection, &letters, now).await
}

/// Closes what was set aside under an identity that is now taken: there is nothing left to do.
async fn supersede(
    connection: &mut SqliteConnection,
    stored: &[Placed<'_>],
    now: i64,
) -> Result<(), StoreError> {
    let any = "SELECT id FROM dead_letter WHERE kind = 'source' AND superseded IS NULL LIMIT 1";
    if stored.is_empty() || fetch(connection, sqlx::query(any)).await?.is_empty() {
        return Ok(());
    }
    let keys = json(stored.iter().map(|(_, new)| identity(&new.message)).collect::<Vec<_>>());
    let query = sqlx::query(
        "SELECT dead_letter.id FROM json_each(?) taken CROSS JOIN dead_letter \
         ON dead_letter.endpoint = taken.value ->> 0 \
         AND dead_letter.origin_source = taken.value ->> 1 \
         AND dead_letter.origin_id = taken.value ->> 2 \
         WHERE dead_letter.kind = 'source' AND dead_letter.superseded IS NULL",
    )
    .bind(keys);
    let mut closed = Vec::new();
    for row in fetch(connection, query).await? {
        closed.push(Columns::of(&row).next()?);
    }
    if closed.is_empty() {
        return Ok(());
    }
    let query = sqlx::query(
        "UPDATE dead_letter SET superseded = ? WHERE id IN (SELECT value FROM json_each(?))",
    )
    .bind(now)
    .bind(numbers(closed));
    execute(connection, query).await.map(drop)
}

/// Resume points of receivers: the last write of a group wins, also if it came with a repeat.
async fn write_states(
    connection: &mut SqliteConnection,
    group: &[Entry],
) -> Result<(), StoreError> {
    let mut last = HashMap::new();
    for entry in group {
        let message = match entry {
            Entry::Message(new) => &new.message,
            Entry::SetAside(it) => &it.message,
        };
        if let Some(state) = &message.arrival.state {
            last.insert((message.source.as_str(), state.name.as_str()), &state.value);
        }
    }
    for ((source, name), value) in last {
        let query = sqlx::query(
            "INSERT INTO adapter_state (endpoint, name, revision, value) VALUES (?, ?, 1, ?) \
             ON CONFLICT DO UPDATE SET revision = revision + 1, value = excluded.value",
        )
        .bind(source)
        .bind(name)
        .bind(value.as_ref());
        execute(connection, query).await?;
    }
    Ok(())
}
