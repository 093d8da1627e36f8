//! The statement of databases that have no arrays.

use sqlx::{Database, Encode, QueryBuilder, Type};

use crate::{Message, write::COLUMNS};

/// Writes these messages into a table, whose name is quoted. The values are copied.
pub(crate) fn insert<DB>(table: &str, messages: &[Message]) -> QueryBuilder<DB>
where
    DB: Database,
    for<'q> String: Encode<'q, DB> + Type<DB>,
    for<'q> Option<String>: Encode<'q, DB> + Type<DB>,
    for<'q> Option<i64>: Encode<'q, DB> + Type<DB>,
    for<'q> Vec<u8>: Encode<'q, DB> + Type<DB>,
{
    let mut insert = QueryBuilder::new(format!("INSERT INTO {table} ({COLUMNS}) "));
    insert.push_values(messages, |mut row, message| {
        row.push_bind(message.id.to_string())
            .push_bind(message.aggregate_type.clone())
            .push_bind(message.aggregate_id.clone())
            .push_bind(message.event_type.clone())
            .push_bind(message.payload.clone())
            .push_bind(message.content_type.clone())
            .push_bind(message.schema.clone())
            .push_bind(message.version)
            .push_bind(message.correlation.clone())
            .push_bind(message.causation.clone())
            .push_bind(message.traceparent.clone())
            .push_bind(message.destination.clone())
            .push_bind(message.headers.clone());
    });
    insert
}
