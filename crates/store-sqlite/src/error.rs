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

#[cfg(test)]
mod tests {
    use std::{borrow::Cow, error::Error, fmt};

    use sqlx::error::{DatabaseError, ErrorKind};

    use super::*;

    /// An error of SQLite with this extended result code.
    #[derive(Debug)]
    struct Code(i64);

    impl fmt::Display for Code {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "code {}", self.0)
        }
    }

    impl Error for Code {}

    impl DatabaseError for Code {
        fn message(&self) -> &str {
            "broken"
        }
        fn code(&self) -> Option<Cow<'_, str>> {
            Some(self.0.to_string().into())
        }
        fn as_error(&self) -> &(dyn Error + Send + Sync + 'static) {
            self
        }
        fn as_error_mut(&mut self) -> &mut (dyn Error + Send + Sync + 'static) {
            self
        }
        fn into_error(self: Box<Self>) -> Box<dyn Error + Send + Sync + 'static> {
            self
        }
        fn kind(&self) -> ErrorKind {
            ErrorKind::Other
        }
    }

    type Row = (&'static str, sqlx::Error, fn(String) -> StoreError);

    #[test]
    fn every_error_has_its_meaning() {
        use StoreError::{Rejected, Unavailable};
        let of = |code| sqlx::Error::Database(Box::new(Code(code)));
        let table: [Row; 14] = [
            ("SQLITE_ERROR", of(1), Unavailable),
            ("SQLITE_BUSY", of(5), Unavailable),
            ("SQLITE_BUSY_SNAPSHOT", of(5 | 2 << 8), Unavailable),
            ("SQLITE_LOCKED", of(6), Unavailable),
            ("SQLITE_READONLY", of(8), Unavailable),
            ("SQLITE_IOERR_FSYNC", of(10 | 4 << 8), Unavailable),
            ("SQLITE_CORRUPT", of(11), Unavailable),
            ("SQLITE_FULL", of(13), Unavailable),
            ("SQLITE_TOOBIG", of(18), Rejected),
            ("SQLITE_CONSTRAINT_NOTNULL", of(19 | 5 << 8), Rejected),
            ("SQLITE_MISMATCH", of(20), Rejected),
            ("no connection", sqlx::Error::PoolTimedOut, Unavailable),
            ("a lost thread", sqlx::Error::WorkerCrashed, Unavailable),
            ("an argument", sqlx::Error::Encode("bad".into()), Rejected),
        ];
        for (what, error, meaning) in table {
            assert_eq!(classify(&error), meaning(error.to_string()), "{what}");
            let unknown = StoreError::Unknown(error.to_string());
            assert_eq!(commit(&error), unknown, "{what} at commit");
        }
        assert!(is_busy(&of(5)) && is_busy(&of(5 | 2 << 8)) && is_busy(&of(6)));
        assert!(!is_busy(&of(13)) && !is_busy(&sqlx::Error::PoolTimedOut));
    }
}
