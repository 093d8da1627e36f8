//! The outbox in an SQLite database. Begin with `pool.begin_with("BEGIN IMMEDIATE")`: a transaction that
//! reads first and writes later fails when another one wrote in between.
//!
//! All of this takes `&mut SqliteConnection` and not any `Executor`: an executor may be a pool, which
//! would commit the message by itself. A `&mut Transaction` becomes a connection by itself.

use sqlx::{Connection, SqliteConnection};

use crate::{Error, Message, Table, insert::insert, write};

/// Writes a message into the table `outbox`.
///
/// # Errors
/// [`Error::NoTransaction`], [`Error::NotTaken`], [`Error::Database`]: roll back.
pub async fn enqueue(connection: &mut SqliteConnection, message: &Message) -> Result<(), Error> {
    enqueue_all(connection, std::slice::from_ref(message)).await
}

/// Writes messages into the table `outbox`, in this order, in few statements.
///
/// # Errors
/// As [`enqueue`].
pub async fn enqueue_all(
    connection: &mut SqliteConnection,
    messages: &[Message],
) -> Result<(), Error> {
    enqueue_into(connection, &Table::default(), messages).await
}

/// [`enqueue_all`] into another table.
///
/// # Errors
/// As [`enqueue`].
pub async fn enqueue_into(
    connection: &mut SqliteConnection,
    table: &Table,
    messages: &[Message],
) -> Result<(), Error> {
    if !connection.is_in_transaction() {
        return Err(Error::NoTransaction);
    }
    let table = table.quoted('"');
    for statement in write::statements(messages) {
        let mut insert = insert(&table, statement);
        // Only the statement for one message is worth keeping prepared.
        let query = insert.build().persistent(statement.len() == 1);
        let taken = query.execute(&mut *connection).await?.rows_affected();
        write::all_taken(table.clone(), taken, statement)?;
    }
    Ok(())
}
