//! The rows by which repeats are known.

use std::collections::HashMap;

use jiff::Timestamp;
use pabal_core::{Accepted, Fingerprint, Message, StoreError};
use uuid::Uuid;

use crate::{Transaction, accept::Placed, error::unreadable, execute, fetch, rows::Columns};

/// Inserts what is new and marks it [`Accepted::Stored`]; when that was, if anything was. Whatever is
/// written of it is of this moment's day: a later statement may be of the next one.
pub(crate) async fn claim_ids(
    transaction: &mut Transaction,
    messages: &[Placed<'_>],
    answers: &mut [Accepted],
) -> Result<Option<Timestamp>, StoreError> {
    if messages.is_empty() {
        return Ok(None);
    }
    // By key, so that no two groups can wait for each other; as one statement of many rows.
    let mut sorted = messages.to_vec();
    sorted.sort_by_key(|(_, identity, _)| *identity);
    let places: HashMap<Uuid, usize> =
        sorted.iter().map(|(index, identity, _)| (*identity, *index)).collect();
    let text = |text: fn(&Message) -> &str| -> Vec<&str> {
        sorted.iter().map(|(.., new)| text(&new.message)).collect()
    };
    let query = sqlx::query(
        "INSERT INTO pabal.inbox (identity, source, origin_source, origin_id, message, day, \
         fingerprint, received, last_seen, duplicates) \
         SELECT identity, source, origin_source, origin_id, message, pabal.today(), fingerprint, \
         pabal.time(), pabal.time(), repeats FROM unnest($1::uuid[], $2::text[], $3::text[], \
         $4::text[], $5::uuid[], $6::bytea[], $7::bigint[]) \
         AS new (identity, source, origin_source, origin_id, message, fingerprint, repeats) \
         ON CONFLICT DO NOTHING RETURNING identity, received",
    )
    .bind(sorted.iter().map(|(_, identity, _)| *identity).collect::<Vec<_>>())
    .bind(text(|message| message.source.as_str()))
    .bind(text(|message| message.origin.source.as_str()))
    .bind(text(|message| message.origin.id.as_deref().unwrap_or_default()))
    .bind(sorted.iter().map(|(.., new)| new.message.id.0).collect::<Vec<_>>())
    .bind(sorted.iter().map(|(.., new)| &new.fingerprint.0[..]).collect::<Vec<_>>())
    .bind(sorted.iter().map(|(.., new)| i64::from(new.repeats)).collect::<Vec<_>>());
    let mut received = None;
    for row in fetch(transaction, query).await? {
        let mut row = Columns::of(&row);
        let identity: Uuid = row.next()?;
        if let Some(index) = places.get(&identity) {
            answers[*index] = Accepted::Stored;
            received = Some(row.time()?);
        }
    }
    Ok(received)
}

/// Reads what was there. It takes a second statement: the one that found it there says nothing of
/// it, and does not even see it if it was committed meanwhile.
pub(crate) async fn compare(
    transaction: &mut Transaction,
    met: &[Placed<'_>],
    answers: &mut [Accepted],
) -> Result<(), StoreError> {
    let query = sqlx::query(
        "SELECT identity, source, origin_source, origin_id, fingerprint FROM pabal.inbox \
         WHERE identity = ANY($1)",
    )
    .bind(met.iter().map(|(_, identity, _)| *identity).collect::<Vec<_>>());
    let mut known = HashMap::with_capacity(met.len());
    for row in fetch(transaction, query).await? {
        let mut row = Columns::of(&row);
        let identity: Uuid = row.next()?;
        let names: [String; 3] = [row.next()?, row.next()?, row.next()?];
        let bytes: &[u8] = row.next()?;
        let held =
            Fingerprint(bytes.try_into().map_err(|_| unreadable("fingerprint", "not 32 bytes"))?);
        known.insert(identity, (names, held));
    }
    for (index, identity, new) in met {
        let message = &new.message;
        let given = [
            message.source.as_str(),
            message.origin.source.as_str(),
            message.origin.id.as_deref().unwrap_or_default(),
        ];
        answers[*index] = match known.get(identity) {
            None => {
                let text = "an arrival was neither new nor known";
                return Err(StoreError::Unavailable(text.to_owned()));
            }
            Some((names, _)) if *names != given => {
                let text = format!("two identities share a hash: {names:?} and {given:?}");
                return Err(StoreError::Rejected(text));
            }
            Some((_, held)) if *held == new.fingerprint => Accepted::Duplicate,
            Some((_, held)) => Accepted::Conflict { held: *held },
        };
    }
    Ok(())
}

pub(crate) async fn count_repeats(
    transaction: &mut Transaction,
    repeated: &[Placed<'_>],
) -> Result<(), StoreError> {
    if repeated.is_empty() {
        return Ok(());
    }
    // In the order of the keys, as everywhere: repeats on two nodes must not wait for each other.
    let mut sorted = repeated.to_vec();
    sorted.sort_by_key(|(_, identity, _)| *identity);
    let identities: Vec<_> = sorted.iter().map(|(_, identity, _)| *identity).collect();
    let lock = sqlx::query(
        "SELECT 1 FROM pabal.inbox WHERE identity = ANY($1) ORDER BY identity FOR NO KEY UPDATE",
    )
    .bind(identities.clone());
    fetch(transaction, lock).await?;
    let query = sqlx::query(
        "UPDATE pabal.inbox SET duplicates = duplicates + times, last_seen = pabal.time() \
         FROM unnest($1::uuid[], $2::bigint[]) AS seen (of, times) WHERE identity = of",
    )
    .bind(identities)
    .bind(sorted.iter().map(|(.., new)| 1 + i64::from(new.repeats)).collect::<Vec<_>>());
    execute(transaction, query).await.map(drop)
}
