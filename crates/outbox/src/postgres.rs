//! The outbox in a PostgreSQL database.
//!
//! All of this takes `&mut PgConnection` and not any `Executor`: an executor may be a pool, which
//! would commit the message by itself. A `&mut Transaction` becomes a connection by itself, so that
//! `enqueue(&mut transaction, …)` is what one writes, in a savepoint as well.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::{Error, Message, Table, write};

/// Writes a message into the table `outbox`.
///
/// # Errors
/// [`Error::NoTransaction`], [`Error::NotTaken`], [`Error::Database`]: roll back.
pub async fn enqueue(connection: &mut PgConnection, message: &Message) -> Result<(), Error> {
    enqueue_all(connection, std::slice::from_ref(message)).await
}

/// Writes messages into the table `outbox`, in this order, in few statements.
///
/// # Errors
/// As [`enqueue`].
pub async fn enqueue_all(connection: &mut PgConnection, messages: &[Message]) -> Result<(), Error> {
    enqueue_into(connection, &Table::default(), messages).await
}

/// [`enqueue_all`] into another table.
///
/// # Errors
/// As [`enqueue`].
pub async fn enqueue_into(
    connection: &mut PgConnection,
    table: &Table,
    messages: &[Message],
) -> Result<(), Error> {
    if !connection.is_in_transaction() {
        return Err(Error::NoTransaction);
    }
    let table = table.quoted('"');
    for statement in write::statements(messages) {
        let taken = insert(connection, &table, statement).await?;
        write::all_taken(table.clone(), taken, statement)?;
    }
    Ok(())
}

/// One statement for any number of rows, so that the server prepares it once.
async fn insert(
    connection: &mut PgConnection,
    table: &str,
    messages: &[Message],
) -> sqlx::Result<u64> {
    // PostgreSQL would write bytes into a column of text as `\x7b…`, and say nothing: no row then.
    let sql = format!(
        "INSERT INTO {table} ({columns}) \
         SELECT {columns_but_headers}, headers::json \
         FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], \
                     $7::text[], $8::bigint[], $9::text[], $10::text[], $11::text[], $12::text[], \
                     $13::text[]) WITH ORDINALITY AS message ({columns}, number) \
         WHERE (SELECT atttypid = 'bytea'::regtype FROM pg_attribute \
                WHERE attrelid = $14::text::regclass AND attname = 'payload') \
         ORDER BY number",
        columns = write::COLUMNS,
        columns_but_headers = write::COLUMNS.trim_end_matches(", headers"),
    );
    macro_rules! each {
        ($field:expr) => {
            messages.iter().map($field).collect::<Vec<_>>()
        };
    }
    let query = sqlx::query(AssertSqlSafe(sql))
        .bind(each!(|message| message.id))
        .bind(each!(|message| message.aggregate_type.as_str()))
        .bind(each!(|message| message.aggregate_id.as_str()))
        .bind(each!(|message| message.event_type.as_str()))
        .bind(each!(|message| message.payload.as_slice()))
        .bind(each!(|message| message.content_type.as_str()))
        .bind(each!(|message| message.schema.as_deref()))
        .bind(each!(|message| message.version))
        .bind(each!(|message| message.correlation.as_deref()))
        .bind(each!(|message| message.causation.as_deref()))
        .bind(each!(|message| message.traceparent.as_deref()))
        .bind(each!(|message| message.destination.as_deref()))
        .bind(each!(|message| message.headers.as_deref()))
        .bind(table);
    Ok(query.execute(connection).await?.rows_affected())
}
