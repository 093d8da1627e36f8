//! Deliveries added to messages that are here already.

use pabal_core::{EndpointName, Message, MessageId, OperatorAct, Routing, StoreError};
use sqlx::AssertSqlSafe;

use crate::{
    Transaction,
    accept::{insert_routed, set_aside_questions},
    execute, fetch,
    links::note,
    rows::{Columns, ENVELOPE, envelope},
};

pub(crate) async fn route(
    transaction: &mut Transaction,
    routings: &[Routing],
    act: &OperatorAct,
) -> Result<u64, StoreError> {
    note(transaction, act).await?;
    let mut added = 0;
    for routing in routings {
        // Two operators, or two nodes, route one message one after the other.
        let lock = sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 8032))")
            .bind(routing.message.to_string());
        fetch(transaction, lock).await?;
        if let Some(id) = routing.dead_letter
            && !close(transaction, id, routing.message).await?
        {
            // Somebody else has answered it.
            continue;
        }
        let Some(message) = message(transaction, routing.message).await? else {
            continue;
        };
        added += add(transaction, &message, routing).await?;
        let sql = if is_taken(transaction, message.id).await? {
            "DELETE FROM pabal.unrouted WHERE message = $1"
        } else {
            "INSERT INTO pabal.unrouted (message, day, at) SELECT id, day, pabal.time() FROM \
             (SELECT id, day FROM pabal.message WHERE id = $1 \
             UNION ALL SELECT id, day FROM pabal.message_kept WHERE id = $1 LIMIT 1) m \
             ON CONFLICT DO NOTHING"
        };
        execute(transaction, sqlx::query(sql).bind(message.id.0)).await?;
    }
    Ok(added)
}

/// Closes the routing question; false if it is not there.
async fn close(
    transaction: &mut Transaction,
    id: i64,
    message: MessageId,
) -> Result<bool, StoreError> {
    let query = sqlx::query(
        "DELETE FROM pabal.dead_letter WHERE id = $1 AND kind = 'routing' AND message = $2",
    )
    .bind(id)
    .bind(message.0);
    Ok(execute(transaction, query).await? == 1)
}

/// The message without its body.
async fn message(
    transaction: &mut Transaction,
    id: MessageId,
) -> Result<Option<Message>, StoreError> {
    let columns = format!("{} NULL::bytea", ENVELOPE.trim_end_matches("body"));
    let sql = format!(
        "SELECT {columns} FROM pabal.message WHERE id = $1 \
         UNION ALL SELECT {columns} FROM pabal.message_kept WHERE id = $1 LIMIT 1"
    );
    match fetch(transaction, sqlx::query(AssertSqlSafe(sql)).bind(id.0)).await?.first() {
        Some(row) => envelope(&mut Columns::of(row)).map(Some),
        None => Ok(None),
    }
}

/// Adds what is new. A destination has a message once: waiting, dead, delivered or given up.
async fn add(
    transaction: &mut Transaction,
    message: &Message,
    routing: &Routing,
) -> Result<u64, StoreError> {
    let query = sqlx::query(
        "WITH numbers AS (SELECT unnest(numbers) AS number FROM pabal.message WHERE id = $1 \
         UNION SELECT unnest(numbers) FROM pabal.message_kept WHERE id = $1) \
         SELECT o.destination FROM numbers JOIN pabal.outbox o USING (number) WHERE o.message = $1 \
         UNION SELECT destination FROM pabal.routed WHERE message = $1 \
         UNION SELECT endpoint FROM pabal.dead_letter WHERE message = $1 AND kind <> 'source' \
         UNION SELECT l.destination FROM numbers JOIN pabal.delivery_log l USING (number) \
         WHERE l.outcome IN ('delivered', 'duplicate', 'discarded') \
         UNION SELECT destination FROM pabal.delivery_log WHERE message = $1 AND number IS NULL",
    )
    .bind(message.id.0);
    let mut known = Vec::new();
    for row in fetch(transaction, query).await? {
        known.push(Columns::of(&row).endpoint()?);
    }
    let faults = routing.faults.iter().filter(|(destination, _)| !known.contains(destination));
    set_aside_questions(transaction, faults.map(|fault| (message, fault)).collect(), None).await?;
    let mut new: Vec<&EndpointName> = Vec::new();
    for destination in &routing.destinations {
        if !known.contains(destination) {
            known.push(destination.clone());
            new.push(destination);
        }
    }
    insert_routed(transaction, message, &new).await?;
    Ok(new.len() as u64)
}

/// Whether any destination has, had or may get the message.
async fn is_taken(transaction: &mut Transaction, id: MessageId) -> Result<bool, StoreError> {
    let query = sqlx::query(
        "SELECT 1 FROM pabal.message WHERE id = $1 AND cardinality(numbers) > 0 \
         UNION ALL SELECT 1 FROM pabal.message_kept WHERE id = $1 AND cardinality(numbers) > 0 \
         UNION ALL SELECT 1 FROM pabal.routed WHERE message = $1 \
         UNION ALL SELECT 1 FROM pabal.dead_letter WHERE message = $1 LIMIT 1",
    )
    .bind(id.0);
    Ok(!fetch(transaction, query).await?.is_empty())
}
