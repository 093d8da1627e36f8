//! What SQLite's errors mean to the engine, decided in one place.

use pabal_core::StoreError;

// Primary result codes, https://sqlite.org/rescode.html
const TOOBIG: i64 = 18;
const CONSTRAINT: i64 = 19;
const MISMATCH: i64 = 20;
const BUSY: i64 = 5;
const LOCKED: i64 = 6;

/// What an error before the commit means: nothing was written, and the question is whether the same
/// can ever go better.
pub(crate) fn classify(error: &sqlx::Error) -> StoreError {
    match error {
        sqlx::Error::Database(database) => match code(database.as_ref()) {
            TOOBIG | CONSTRAINT | MISMATCH => StoreError::Rejected(error.to_string()),
            // Also what looks like our own mistake: to call it refused would make dead letters of
            // messages that a corrected hub can take.
            _ => StoreError::Unavailable(error.to_string()),
        },
        sqlx::Error::Encode(_) => StoreError::Rejected(error.to_string()),
        _ => StoreError::Unavailable(error.to_string()),
    }
}

/// What an error of the commit itself means.
pub(crate) fn commit(error: &sqlx::Error) -> StoreError {
    StoreError::Unknown(error.to_string())
}

/// Whether another connection holds the write lock.
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(database) => matches!(code(database.as_ref()), BUSY | LOCKED),
        _ => false,
    }
}

/// A row that this version of the store cannot make sense of.
pub(crate) fn unreadable(what: &str, error: impl std::fmt::Display) -> StoreError {
    StoreError::Unavailable(format!("a stored {what} cannot be read: {error}"))
}

fn code(error: &dyn sqlx::error::DatabaseError) -> i64 {
    error.code().and_then(|code| code.parse::<i64>().ok()).map_or(0, |code| code & 0xff)
}
