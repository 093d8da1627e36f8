//! The rows by which repeats are known.

use std::collections::HashMap;

use pabal_core::{Accepted, Fingerprint, Identity, Message, MessageId, StoreError};
use sqlx::{QueryBuilder, SqliteConnection, sqlite::SqliteRow};

use crate::{
    SqliteStore,
    accept::Placed,
    error::unreadable,
    execute, fetch,
    rows::{CHUNK, Columns, json},
};

/// The primary key of the inbox.
pub(crate) fn identity(message: &Message) -> (&str, &str, &str) {
    (
        message.source.as_str(),
        message.origin.source.as_str(),
        message.origin.id.as_deref().unwrap_or_default(),
    )
}

/// Inserts what is new and marks it [`Accepted::Stored`].
pub(crate) async fn claim_ids(
    connection: &mut SqliteConnection,
    messages: &[Placed<'_>],
    now: i64,
    answers: &mut [Accepted],
) -> Result<(), StoreError> {
    let places: HashMap<MessageId, usize> =
        messages.iter().map(|(index, new)| (new.message.id, *index)).collect();
    // By key: neighbours in the index are written together, and on a store with several writers no
    // two groups can wait for each other.
    let mut sorted = messages.to_vec();
    sorted.sort_by(|(_, a), (_, b)| identity(&a.message).cmp(&identity(&b.message)));
    for chunk in sorted.chunks(CHUNK) {
        let mut sql = QueryBuilder::new(
            "INSERT INTO inbox (source, origin_source, origin_id, message, fingerprint, received, \
             last_seen, duplicates) ",
        );
        sql.push_values(chunk, |mut row, (_, new)| {
            let (source, origin_source, origin_id) = identity(&new.message);
            row.push_bind(source)
                .push_bind(origin_source)
                .push_bind(origin_id)
                .push_bind(new.message.id.0)
                .push_bind(&new.fingerprint.0[..])
                .push_bind(now)
                .push_bind(now)
                .push_bind(i64::from(new.repeats));
        });
        sql.push(" ON CONFLICT DO NOTHING RETURNING message");
        let query = sql.build().persistent(chunk.len() == CHUNK);
        for row in fetch(connection, query).await? {
            let id = Columns::of(&row).id()?;
            if let Some(index) = places.get(&id) {
                answers[*index] = Accepted::Stored;
            }
        }
    }
    Ok(())
}

/// The place of each wanted identity that is there, and its fingerprint.
const HELD: &str = "SELECT wanted.key, inbox.fingerprint FROM json_each(?) wanted \
    CROSS JOIN inbox ON inbox.source = wanted.value ->> 0 \
    AND inbox.origin_source = wanted.value ->> 1 AND inbox.origin_id = wanted.value ->> 2";

fn held(row: &SqliteRow) -> Result<(usize, Fingerprint), StoreError> {
    let mut row = Columns::of(row);
    let place: usize = row.count()?;
    let held = row.next::<&[u8]>()?.try_into().map(Fingerprint);
    Ok((place, held.map_err(|error| unreadable("fingerprint", error))?))
}

/// Reads what was there. It takes a second statement: the one that found it there says nothing of
/// it.
pub(crate) async fn compare(
    connection: &mut SqliteConnection,
    met: &[Placed<'_>],
    answers: &mut [Accepted],
) -> Result<(), StoreError> {
    let keys = json(met.iter().map(|(_, new)| identity(&new.message)).collect::<Vec<_>>());
    let query = sqlx::query(HELD).bind(keys);
    let mut found = 0;
    for row in fetch(connection, query).await? {
        let (place, held) = held(&row)?;
        let (index, new) = met[place];
        answers[index] =
            if held == new.fingerprint { Accepted::Duplicate } else { Accepted::Conflict { held } };
        found += 1;
    }
    if found != met.len() {
        return Err(StoreError::Unavailable("an arrival was neither new nor known".to_owned()));
    }
    Ok(())
}

/// The fingerprints held under these identities.
pub(crate) async fn fingerprints(
    store: &SqliteStore,
    which: &[Identity],
) -> Result<Vec<Option<Fingerprint>>, StoreError> {
    let names = which.iter().map(|of| (of.source.as_str(), &of.origin_source, &of.origin_id));
    let query = sqlx::query(HELD).bind(json(names.collect::<Vec<_>>()));
    let mut found = vec![None; which.len()];
    for row in store.fetch(query).await? {
        let (place, held) = held(&row)?;
        found[place] = Some(held);
    }
    Ok(found)
}

/// Counts repeats that were recognised without an accept.
pub(crate) async fn count(
    connection: &mut SqliteConnection,
    repeats: &[(Identity, u32)],
    now: i64,
) -> Result<(), StoreError> {
    let repeats = repeats.iter().map(|(of, times)| {
        ((of.source.as_str(), of.origin_source.as_str(), of.origin_id.as_str()), *times)
    });
    count_repeats(connection, repeats, now).await
}

/// Counts how often these came again.
pub(crate) async fn count_repeats<'a>(
    connection: &mut SqliteConnection,
    repeated: impl Iterator<Item = ((&'a str, &'a str, &'a str), u32)>,
    now: i64,
) -> Result<(), StoreError> {
    let counts: Vec<_> = repeated
        .map(|((source, origin_source, origin_id), times)| {
            (source, origin_source, origin_id, times)
        })
        .collect();
    if counts.is_empty() {
        return Ok(());
    }
    let query = sqlx::query(
        "UPDATE inbox SET duplicates = duplicates + (seen.value ->> 3), last_seen = ? \
         FROM json_each(?) seen WHERE inbox.source = seen.value ->> 0 \
         AND inbox.origin_source = seen.value ->> 1 AND inbox.origin_id = seen.value ->> 2",
    )
    .bind(now)
    .bind(json(counts));
    execute(connection, query).await.map(drop)
}
