//! The way in: inbox rows, messages, deliveries and state writes of one group, all or nothing.

use std::collections::HashMap;

use jiff::Timestamp;
use pabal_core::{
    Accepted, Cause, DeadKind, DeadReason, EndpointName, Entry, Message, MessageId, NewMessage,
    Number, StoreError,
};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use crate::{
    Transaction, alongside,
    dead_letters::{NewDeadLetter, set_aside},
    execute, fetch,
    inbox::{claim_ids, compare, count_repeats},
    notify,
    rows::{Columns, ENVELOPE, Envelopes, at, envelope_arguments, identity, saturate},
};

const ANOTHER_CONTENT: &str = "another content under the same id";
const NOT_DECIDED: &str = "its `when` could not be evaluated";
/// Bodies of one statement: one of more would need more memory on both sides than it saves time.
const BYTES_MAX: u64 = 32 * 1024 * 1024;

pub(crate) async fn accept(
    transaction: &mut Transaction,
    group: &[Entry],
) -> Result<Vec<Accepted>, StoreError> {
    let messages = messages(group)?;
    let mut answers = vec![Accepted::SetAside; group.len()];

    let received = claim_ids(transaction, &messages, &mut answers).await?;
    let met: Vec<_> = of(&messages, &answers, |answer| *answer != Accepted::Stored);
    if !met.is_empty() {
        compare(transaction, &met, &mut answers).await?;
        let repeated = of(&met, &answers, |answer| *answer == Accepted::Duplicate);
        let repeated = repeated.iter().map(|(_, identity, new)| (*identity, 1 + new.repeats));
        count_repeats(transaction, repeated).await?;
    }
    let stored = of(&messages, &answers, |answer| *answer == Accepted::Stored);
    put_aside(transaction, group, &answers).await?;
    supersede(transaction, &stored).await?;
    write_states(transaction, group).await?;
    alongside::run(transaction, group, &answers).await?;
    if let Some(received) = received {
        // Numbers are taken as late as can be: until the commit, others with higher ones are seen
        // first.
        store(transaction, &stored, received).await?;
    }
    Ok(answers)
}

/// A message of the group, its place there, and its identity.
pub(crate) type Placed<'a> = (usize, Uuid, &'a NewMessage);

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
        if seen.insert(id, index).is_some() {
            return Err(StoreError::Rejected(format!("message {id} stands twice in a group")));
        }
        messages.push((index, identity(&new.message), new));
    }
    Ok(messages)
}

fn of<'a>(
    messages: &[Placed<'a>],
    answers: &[Accepted],
    wanted: impl Fn(&Accepted) -> bool,
) -> Vec<Placed<'a>> {
    messages.iter().filter(|(index, ..)| wanted(&answers[*index])).copied().collect()
}

/// Writes messages, their deliveries in hand-over order, and what became of those without.
async fn store(
    transaction: &mut Transaction,
    stored: &[Placed<'_>],
    received: Timestamp,
) -> Result<(), StoreError> {
    let faults = stored
        .iter()
        .flat_map(|(.., new)| new.faults.iter().map(|fault| (&new.message, fault)))
        .collect();
    set_aside_questions(transaction, faults, Some(received)).await?;
    let unrouted = stored
        .iter()
        .filter(|(.., new)| new.destinations.is_empty() && new.faults.is_empty())
        .map(|(.., new)| new.message.id);
    insert_unrouted(transaction, unrouted.collect(), received).await?;

    let deliveries: Vec<_> = stored
        .iter()
        .flat_map(|(.., new)| new.destinations.iter().map(|to| (&new.message, to)))
        .collect();
    let numbers = numbers(transaction, deliveries.len()).await?;
    insert_messages(transaction, stored, &numbers, received).await?;
    insert_deliveries(transaction, &deliveries, &numbers, received).await?;
    if deliveries.is_empty() { Ok(()) } else { notify(transaction).await }
}

/// The next order numbers, rising.
pub(crate) async fn numbers(
    transaction: &mut Transaction,
    count: usize,
) -> Result<Vec<Number>, StoreError> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let query = sqlx::query(
        "SELECT nextval('pabal.outbox_number_seq') FROM generate_series(1, $1::bigint)",
    )
    .bind(saturate(count as u64));
    let rows = fetch(transaction, query).await?;
    let mut numbers =
        rows.iter().map(|row| Columns::of(row).next()).collect::<Result<Vec<Number>, _>>()?;
    numbers.sort_unstable();
    Ok(numbers)
}

async fn insert_messages(
    transaction: &mut Transaction,
    stored: &[Placed<'_>],
    numbers: &[Number],
    received: Timestamp,
) -> Result<(), StoreError> {
    let sql = format!(
        "INSERT INTO pabal.message (day, received, numbers, {ENVELOPE}) \
         SELECT ($1::timestamptz AT TIME ZONE 'UTC')::date, $1, ($2::bigint[])[start:stop], \
         {ENVELOPE} FROM unnest($3::integer[], $4::integer[], {}) WITH ORDINALITY \
         AS new (start, stop, {ENVELOPE}, place) ORDER BY place",
        envelope_arguments(5)
    );
    let mut rest = stored;
    let mut start = 1;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |(.., new): &&Placed<'_>| {
            let before = bytes;
            bytes += new.message.body.size();
            before == 0 || bytes <= BYTES_MAX
        };
        let (chunk, left) = rest.split_at(rest.iter().take_while(fits).count().max(1));
        rest = left;
        let (mut starts, mut stops) = (Vec::new(), Vec::new());
        for (.., new) in chunk {
            let count = i32::try_from(new.destinations.len()).unwrap_or(i32::MAX);
            starts.push(start);
            start += count;
            stops.push(start - 1);
        }
        let query = sqlx::query(AssertSqlSafe(sql.clone()))
            .bind(at(received))
            .bind(numbers)
            .bind(starts)
            .bind(stops);
        let envelopes = Envelopes::of(chunk.iter().map(|(.., new)| &new.message));
        execute(transaction, envelopes.bind(query)).await?;
    }
    Ok(())
}

/// Inserts deliveries with these numbers, due at once.
async fn insert_deliveries(
    transaction: &mut Transaction,
    deliveries: &[(&Message, &EndpointName)],
    numbers: &[Number],
    received: Timestamp,
) -> Result<(), StoreError> {
    if deliveries.is_empty() {
        return Ok(());
    }
    let query = sqlx::query(
        "INSERT INTO pabal.outbox (number, day, message, destination, slot, key, attempts, round, \
         due, started, accepted, size) SELECT number, ($1::timestamptz AT TIME ZONE 'UTC')::date, \
         message, destination, slot, key, 0, 0, $1, 0, $1, size FROM unnest($2::bigint[], \
         $3::uuid[], $4::text[], $5::smallint[], $6::text[], $7::bigint[]) \
         AS new (number, message, destination, slot, key, size)",
    )
    .bind(at(received))
    .bind(numbers)
    .bind(deliveries.iter().map(|(message, _)| message.id.0).collect::<Vec<_>>())
    .bind(deliveries.iter().map(|(_, to)| to.as_str()).collect::<Vec<_>>())
    .bind(deliveries.iter().map(|(message, _)| i16::from(message.slot())).collect::<Vec<_>>())
    .bind(deliveries.iter().map(|(message, _)| message.key.as_deref()).collect::<Vec<_>>())
    .bind(deliveries.iter().map(|(message, _)| saturate(message.body.size())).collect::<Vec<_>>());
    execute(transaction, query).await.map(drop)
}

/// Keeps the questions whether a destination takes a message that could not be answered. `received`:
/// when, of messages that are received in this transaction.
pub(crate) async fn set_aside_questions(
    transaction: &mut Transaction,
    faults: Vec<(&Message, &(EndpointName, String))>,
    received: Option<Timestamp>,
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
    set_aside(transaction, &faults, received).await
}

/// Of messages that are received in this transaction.
async fn insert_unrouted(
    transaction: &mut Transaction,
    messages: Vec<MessageId>,
    received: Timestamp,
) -> Result<(), StoreError> {
    if messages.is_empty() {
        return Ok(());
    }
    let query = sqlx::query(
        "INSERT INTO pabal.unrouted (message, day, at) \
         SELECT message, ($1::timestamptz AT TIME ZONE 'UTC')::date, $1 \
         FROM unnest($2::uuid[]) AS new (message) ON CONFLICT DO NOTHING",
    )
    .bind(at(received))
    .bind(messages.iter().map(|id| id.0).collect::<Vec<_>>());
    execute(transaction, query).await.map(drop)
}

/// Keeps what was not taken: what the engine set aside, and conflicts.
async fn put_aside(
    transaction: &mut Transaction,
    group: &[Entry],
    answers: &[Accepted],
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
    set_aside(transaction, &letters, None).await
}

/// Closes what was set aside under an identity that is now taken: there is nothing left to do.
async fn supersede(transaction: &mut Transaction, stored: &[Placed<'_>]) -> Result<(), StoreError> {
    let any =
        "SELECT 1 FROM pabal.dead_letter WHERE kind = 'source' AND superseded IS NULL LIMIT 1";
    if stored.is_empty() || fetch(transaction, sqlx::query(any)).await?.is_empty() {
        return Ok(());
    }
    let text = |text: fn(&Message) -> &str| -> Vec<&str> {
        stored.iter().map(|(.., new)| text(&new.message)).collect()
    };
    let query = sqlx::query(
        "UPDATE pabal.dead_letter d SET superseded = pabal.time() \
         FROM unnest($1::text[], $2::text[], $3::text[]) AS taken (source, origin_source, origin_id) \
         WHERE d.kind = 'source' AND d.superseded IS NULL AND d.endpoint = taken.source \
         AND d.origin_source = taken.origin_source AND d.origin_id = taken.origin_id",
    )
    .bind(text(|message| message.source.as_str()))
    .bind(text(|message| message.origin.source.as_str()))
    .bind(text(|message| message.origin.id.as_deref().unwrap_or_default()));
    execute(transaction, query).await.map(drop)
}

/// Resume points of receivers: the last write of a group wins, also if it came with a repeat.
async fn write_states(transaction: &mut Transaction, group: &[Entry]) -> Result<(), StoreError> {
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
    let mut last: Vec<_> = last.into_iter().collect();
    last.sort_unstable_by_key(|(place, _)| *place);
    for ((source, name), value) in last {
        let query = sqlx::query(
            "INSERT INTO pabal.adapter_state AS state (endpoint, name, revision, value) \
             VALUES ($1, $2, 1, $3) ON CONFLICT (endpoint, name) \
             DO UPDATE SET revision = state.revision + 1, value = excluded.value",
        )
        .bind(source)
        .bind(name)
        .bind(value.as_ref());
        execute(transaction, query).await?;
    }
    Ok(())
}
