//! The rows by which repeats are known.

use std::collections::HashMap;

use jiff::Timestamp;
use pabal_core::{Accepted, Fingerprint, Identity, Message, StoreError};
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::{
    PostgresStore, Transaction,
    accept::Placed,
    error::unreadable,
    execute, fetch,
    rows::{Columns, identity_of},
};

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
    let rows = fetch(transaction, query).await?;
    let known = rows.iter().map(held).collect::<Result<HashMap<_, _>, _>>()?;
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

fn identity(of: &Identity) -> Uuid {
    identity_of([of.source.as_str(), &of.origin_source, &of.origin_id])
}

/// The fingerprints held under these identities.
pub(crate) async fn fingerprints(
    store: &PostgresStore,
    which: &[Identity],
) -> Result<Vec<Option<Fingerprint>>, StoreError> {
    let identities: Vec<Uuid> = which.iter().map(identity).collect();
    let query = sqlx::query(
        "SELECT identity, source, origin_source, origin_id, fingerprint FROM pabal.inbox \
         WHERE identity = ANY($1)",
    )
    .bind(identities.clone());
    let rows = store.fetch(query).await?;
    let held = rows.iter().map(held).collect::<Result<HashMap<_, _>, _>>()?;
    let found = which.iter().zip(identities).map(|(which, identity)| {
        let (names, fingerprint) = held.get(&identity)?;
        let same = *names == [which.source.as_str(), &which.origin_source, &which.origin_id];
        same.then_some(*fingerprint)
    });
    Ok(found.collect())
}

/// One row of the inbox.
fn held(row: &PgRow) -> Result<(Uuid, ([String; 3], Fingerprint)), StoreError> {
    let mut row = Columns::of(row);
    let identity: Uuid = row.next()?;
    let names: [String; 3] = [row.next()?, row.next()?, row.next()?];
    let bytes: &[u8] = row.next()?;
    let held = bytes.try_into().map_err(|_| unreadable("fingerprint", "not 32 bytes"))?;
    Ok((identity, (names, Fingerprint(held))))
}

/// Counts repeats that were recognised without an accept.
pub(crate) async fn count(
    transaction: &mut Transaction,
    repeats: &[(Identity, u32)],
) -> Result<(), StoreError> {
    count_repeats(transaction, repeats.iter().map(|(of, times)| (identity(of), *times))).await
}

/// Counts how often these came again.
pub(crate) async fn count_repeats(
    transaction: &mut Transaction,
    repeated: impl Iterator<Item = (Uuid, u32)>,
) -> Result<(), StoreError> {
    let mut sorted: Vec<_> = repeated.collect();
    if sorted.is_empty() {
        return Ok(());
    }
    // In the order of the keys, as everywhere: repeats on two nodes must not wait for each other.
    sorted.sort_unstable();
    let (identities, times): (Vec<Uuid>, Vec<i64>) =
        sorted.into_iter().map(|(identity, times)| (identity, i64::from(times))).unzip();
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
    .bind(times);
    execute(transaction, query).await.map(drop)
}
