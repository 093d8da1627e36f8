//! Deliveries added to messages that are here already.

use std::collections::{HashMap, HashSet};

use pabal_core::{EndpointName, Message, MessageId, OperatorAct, Routing, StoreError};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use crate::{
    Transaction,
    accept::{numbers, set_aside_questions},
    execute, fetch,
    links::note,
    notify,
    rows::{Columns, ENVELOPE, envelope},
};

/// However many there are, few statements: those that follow the first number are bounded in time.
pub(crate) async fn route(
    transaction: &mut Transaction,
    routings: &[Routing],
    act: &OperatorAct,
) -> Result<u64, StoreError> {
    note(transaction, act).await?;
    lock(transaction, routings).await?;
    let routings = close(transaction, routings).await?;
    let messages = messages(transaction, &routings).await?;
    let mut known = known(transaction, &messages).await?;

    let (mut faults, mut new) = (Vec::new(), Vec::new());
    for routing in routings {
        let Some(message) = messages.get(&routing.message) else { continue };
        let known = known.entry(message.id).or_default();
        let open = routing.faults.iter().filter(|(destination, _)| !known.contains(destination));
        let open: Vec<_> = open.collect();
        faults.extend(open.iter().map(|fault| (message, *fault)));
        for destination in &routing.destinations {
            if known.insert(destination.clone()) {
                new.push((message, destination));
            }
        }
        known.extend(open.into_iter().map(|(destination, _)| destination.clone()));
    }
    set_aside_questions(transaction, faults, None).await?;
    note_unrouted(transaction, &messages, &new).await?;
    insert(transaction, &new).await?;
    Ok(new.len() as u64)
}

/// Two operators, or two nodes, route one message one after the other.
async fn lock(transaction: &mut Transaction, routings: &[Routing]) -> Result<(), StoreError> {
    let query = sqlx::query(
        "SELECT pg_advisory_xact_lock(hashtextextended(id::text, 8032)) FROM \
         (SELECT DISTINCT id FROM unnest($1::uuid[]) AS asked (id) ORDER BY id) asked",
    )
    .bind(routings.iter().map(|routing| routing.message.0).collect::<Vec<_>>());
    fetch(transaction, query).await.map(drop)
}

/// Closes the questions that are answered here; what somebody else has answered is left out.
async fn close<'r>(
    transaction: &mut Transaction,
    routings: &'r [Routing],
) -> Result<Vec<&'r Routing>, StoreError> {
    let answers = routings.iter().filter_map(|it| it.dead_letter.map(|id| (id, it.message.0)));
    let (ids, messages): (Vec<i64>, Vec<Uuid>) = answers.unzip();
    let mut closed = HashSet::new();
    if !ids.is_empty() {
        let query = sqlx::query(
            "DELETE FROM pabal.dead_letter d USING unnest($1::bigint[], $2::uuid[]) \
             AS answer (id, message) WHERE d.id = answer.id AND d.kind = 'routing' \
             AND d.message = answer.message RETURNING d.id, d.message",
        )
        .bind(ids)
        .bind(messages);
        for row in fetch(transaction, query).await? {
            let mut row = Columns::of(&row);
            closed.insert((row.next::<i64>()?, row.id()?));
        }
    }
    let counts =
        |it: &&Routing| it.dead_letter.is_none_or(|letter| closed.remove(&(letter, it.message)));
    Ok(routings.iter().filter(counts).collect())
}

/// The messages that are here, without their bodies.
async fn messages(
    transaction: &mut Transaction,
    routings: &[&Routing],
) -> Result<HashMap<MessageId, Message>, StoreError> {
    let columns = format!("{} NULL::bytea", ENVELOPE.trim_end_matches("body"));
    let sql = format!(
        "SELECT {columns} FROM pabal.message WHERE id = ANY($1) \
         UNION ALL SELECT {columns} FROM pabal.message_kept WHERE id = ANY($1)"
    );
    let ids: Vec<_> = routings.iter().map(|routing| routing.message.0).collect();
    let rows = fetch(transaction, sqlx::query(AssertSqlSafe(sql)).bind(ids)).await?;
    let read = rows.iter().map(|row| {
        let message = envelope(&mut Columns::of(row))?;
        Ok((message.id, message))
    });
    read.collect()
}

fn ids(messages: &HashMap<MessageId, Message>) -> Vec<Uuid> {
    messages.keys().map(|id| id.0).collect()
}

/// Who has each message. A destination has it once: waiting, dead, delivered or given up.
async fn known(
    transaction: &mut Transaction,
    messages: &HashMap<MessageId, Message>,
) -> Result<HashMap<MessageId, HashSet<EndpointName>>, StoreError> {
    let query = sqlx::query(
        "WITH numbers AS MATERIALIZED \
         (SELECT id, unnest(numbers) AS number FROM pabal.message WHERE id = ANY($1) \
         UNION SELECT id, unnest(numbers) FROM pabal.message_kept WHERE id = ANY($1)) \
         SELECT n.id, o.destination FROM numbers n JOIN pabal.outbox o \
         ON o.number = n.number AND o.message = n.id \
         UNION SELECT message, destination FROM pabal.routed WHERE message = ANY($1) \
         UNION SELECT message, endpoint FROM pabal.dead_letter \
         WHERE message = ANY($1) AND kind <> 'source' \
         UNION SELECT n.id, l.destination FROM numbers n JOIN pabal.delivery_log l \
         ON l.number = n.number WHERE l.outcome IN ('delivered', 'duplicate', 'stale', 'discarded') \
         UNION SELECT message, destination FROM pabal.delivery_log \
         WHERE message = ANY($1) AND number IS NULL",
    )
    .bind(ids(messages));
    let mut known: HashMap<MessageId, HashSet<EndpointName>> = HashMap::new();
    for row in fetch(transaction, query).await? {
        let mut row = Columns::of(&row);
        known.entry(row.id()?).or_default().insert(row.endpoint()?);
    }
    Ok(known)
}

/// Notes which messages still nobody has, had or may get.
async fn note_unrouted(
    transaction: &mut Transaction,
    messages: &HashMap<MessageId, Message>,
    new: &[(&Message, &EndpointName)],
) -> Result<(), StoreError> {
    let query = sqlx::query(
        "SELECT id FROM pabal.message WHERE id = ANY($1) AND cardinality(numbers) > 0 UNION ALL \
         SELECT id FROM pabal.message_kept WHERE id = ANY($1) AND cardinality(numbers) > 0 \
         UNION ALL SELECT message FROM pabal.routed WHERE message = ANY($1) \
         UNION ALL SELECT message FROM pabal.dead_letter WHERE message = ANY($1)",
    )
    .bind(ids(messages));
    let mut taken: HashSet<Uuid> = new.iter().map(|(message, _)| message.id.0).collect();
    for row in fetch(transaction, query).await? {
        taken.insert(Columns::of(&row).next()?);
    }
    let (taken, others): (Vec<_>, Vec<_>) =
        ids(messages).into_iter().partition(|id| taken.contains(id));
    let query = sqlx::query("DELETE FROM pabal.unrouted WHERE message = ANY($1)").bind(taken);
    execute(transaction, query).await?;
    let query = sqlx::query(
        "INSERT INTO pabal.unrouted (message, day, at) SELECT id, day, pabal.time() FROM \
         (SELECT id, day FROM pabal.message WHERE id = ANY($1) \
         UNION ALL SELECT id, day FROM pabal.message_kept WHERE id = ANY($1)) m \
         ON CONFLICT DO NOTHING",
    )
    .bind(others);
    execute(transaction, query).await.map(drop)
}

/// Adds deliveries to messages of any day.
async fn insert(
    transaction: &mut Transaction,
    new: &[(&Message, &EndpointName)],
) -> Result<(), StoreError> {
    if new.is_empty() {
        return Ok(());
    }
    let numbers = numbers(transaction, new.len()).await?;
    let query = sqlx::query(
        "WITH new AS (SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::smallint[]) \
         AS new (number, message, destination, slot)), \
         routed AS (INSERT INTO pabal.routed (message, destination, number, at) \
         SELECT message, destination, number, pabal.time() FROM new) \
         INSERT INTO pabal.outbox (number, day, message, destination, slot, key, attempts, round, \
         due, started, accepted, size) SELECT number, m.day, message, destination, slot, m.key, 0, \
         0, pabal.time(), 0, pabal.time(), m.size FROM new CROSS JOIN LATERAL \
         (SELECT day, key, size FROM pabal.message WHERE id = new.message UNION ALL \
         SELECT day, key, size FROM pabal.message_kept WHERE id = new.message LIMIT 1) m",
    )
    .bind(numbers)
    .bind(new.iter().map(|(message, _)| message.id.0).collect::<Vec<_>>())
    .bind(new.iter().map(|(_, destination)| destination.as_str()).collect::<Vec<_>>())
    .bind(new.iter().map(|(message, _)| i16::from(message.slot())).collect::<Vec<_>>());
    execute(transaction, query).await?;
    notify(transaction).await
}
