//! Deliveries added to messages that are here already.

use pabal_core::{EndpointName, Message, MessageId, OperatorAct, Routing, StoreError};
use sqlx::SqliteConnection;

use crate::{
    accept::{insert_deliveries, insert_unrouted, last_number, set_aside_questions},
    execute, fetch,
    links::note,
    rows::{Columns, ENVELOPE, envelope},
};

pub(crate) async fn route(
    connection: &mut SqliteConnection,
    routings: &[Routing],
    act: &OperatorAct,
    now: i64,
) -> Result<u64, StoreError> {
    note(connection, act, now).await?;
    let mut added = 0;
    for routing in routings {
        if let Some(id) = routing.dead_letter
            && !close(connection, id, routing.message).await?
        {
            // Somebody else has answered it.
            continue;
        }
        let Some(message) = message(connection, routing.message).await? else {
            continue;
        };
        added += add(connection, &message, routing, now).await?;
        let taken = is_taken(connection, message.id).await?;
        if taken {
            let query = sqlx::query("DELETE FROM unrouted WHERE message = ?").bind(message.id.0);
            execute(connection, query).await?;
        } else {
            insert_unrouted(connection, vec![message.id], now).await?;
        }
    }
    Ok(added)
}

/// Closes the routing question; false if it is not there.
async fn close(
    connection: &mut SqliteConnection,
    id: i64,
    message: MessageId,
) -> Result<bool, StoreError> {
    let query =
        sqlx::query("DELETE FROM dead_letter WHERE id = ? AND kind = 'routing' AND message = ?")
            .bind(id)
            .bind(message.0);
    Ok(execute(connection, query).await? == 1)
}

/// The message without its body.
async fn message(
    connection: &mut SqliteConnection,
    id: MessageId,
) -> Result<Option<Message>, StoreError> {
    let sql =
        format!("SELECT {} NULL FROM message WHERE id = ?", ENVELOPE.trim_end_matches("body"));
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id.0);
    match fetch(connection, query).await?.first() {
        Some(row) => envelope(&mut Columns::of(row)).map(Some),
        None => Ok(None),
    }
}

/// Adds what is new. A destination has a message once: waiting, dead, delivered or given up.
async fn add(
    connection: &mut SqliteConnection,
    message: &Message,
    routing: &Routing,
    now: i64,
) -> Result<u64, StoreError> {
    let query = sqlx::query(
        "SELECT o.destination FROM message m JOIN outbox o \
         ON o.number BETWEEN m.first_number AND m.first_number + m.deliveries - 1 \
         AND o.message = m.id WHERE m.id = ?1 \
         UNION SELECT destination FROM routed WHERE message = ?1 \
         UNION SELECT endpoint FROM dead_letter WHERE message = ?1 AND kind <> 'source' \
         UNION SELECT l.destination FROM message m JOIN delivery_log l \
         ON l.number BETWEEN m.first_number AND m.first_number + m.deliveries - 1 \
         WHERE m.id = ?1 AND l.outcome IN ('delivered', 'duplicate', 'stale', 'discarded') \
         UNION SELECT destination FROM delivery_log WHERE message = ?1 AND number IS NULL",
    )
    .bind(message.id.0);
    let mut known = Vec::new();
    for row in fetch(connection, query).await? {
        known.push(Columns::of(&row).endpoint()?);
    }
    let faults = routing.faults.iter().filter(|(destination, _)| !known.contains(destination));
    set_aside_questions(connection, faults.map(|fault| (message, fault)).collect(), now).await?;
    let mut new: Vec<(&Message, &EndpointName)> = Vec::new();
    for destination in &routing.destinations {
        if !known.contains(destination) {
            known.push(destination.clone());
            new.push((message, destination));
        }
    }
    let first = last_number(connection, "outbox").await? + 1;
    insert_deliveries(connection, first, &new, now).await?;
    for (number, (_, destination)) in (first..).zip(&new) {
        let query =
            sqlx::query("INSERT INTO routed (message, destination, number) VALUES (?, ?, ?)")
                .bind(message.id.0)
                .bind(destination.as_str())
                .bind(number);
        execute(connection, query).await?;
    }
    Ok(new.len() as u64)
}

/// Whether any destination has, had or may get the message.
async fn is_taken(connection: &mut SqliteConnection, id: MessageId) -> Result<bool, StoreError> {
    let query = sqlx::query(
        "SELECT 1 FROM message WHERE id = ?1 AND deliveries > 0 \
         UNION ALL SELECT 1 FROM routed WHERE message = ?1 \
         UNION ALL SELECT 1 FROM dead_letter WHERE message = ?1 LIMIT 1",
    )
    .bind(id.0);
    Ok(!fetch(connection, query).await?.is_empty())
}
