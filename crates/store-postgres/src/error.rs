//! What PostgreSQL's errors mean to the engine, decided in one place.

use pabal_core::StoreError;

// Classes and codes of SQLSTATE, https://www.postgresql.org/docs/current/errcodes-appendix.html
/// Values that no row can hold: too long, out of range, not text.
const DATA: &str = "22";
/// What a constraint forbids.
const INTEGRITY: &str = "23";
/// A broken check; and, with no constraint named, that no partition takes the row.
const CHECK: &str = "23514";
/// The transaction lost a race; the same again may win it.
const SERIALIZATION: [&str; 2] = ["40001", "40P01"];
/// Larger than what PostgreSQL can work with.
const PROGRAM_LIMIT: &str = "54";
/// The role lacks a right.
const INSUFFICIENT_PRIVILEGE: &str = "42501";
/// A lock was not to be had in time.
const LOCK_NOT_AVAILABLE: &str = "55P03";

const NO_PARTITION: &str = "no partition takes the row";

/// What an error before the commit means: nothing was written, and the question is whether the same
/// can ever go better.
pub(crate) fn classify(error: &sqlx::Error) -> StoreError {
    match error {
        sqlx::Error::Database(database) => match database.code().as_deref() {
            // By what it names, and not by its text, which is in the server's language.
            Some(CHECK) if database.constraint().is_none() => {
                StoreError::Unavailable(format!("{NO_PARTITION}: {error}"))
            }
            Some(CHECK) => StoreError::Unavailable(error.to_string()),
            Some(code)
                if [DATA, INTEGRITY, PROGRAM_LIMIT].iter().any(|it| code.starts_with(it)) =>
            {
                StoreError::Rejected(error.to_string())
            }
            // Also what looks like our own mistake: to call it refused would make dead letters of
            // messages that a corrected hub can take.
            _ => StoreError::Unavailable(error.to_string()),
        },
        sqlx::Error::Encode(_) => StoreError::Rejected(error.to_string()),
        _ => StoreError::Unavailable(error.to_string()),
    }
}

/// What an error of the commit itself means: with the answer lost nobody knows, but what the server
/// itself refuses did not happen.
pub(crate) fn commit(error: &sqlx::Error) -> StoreError {
    match code(error) {
        Some(code) if SERIALIZATION.contains(&code.as_str()) || code.starts_with(INTEGRITY) => {
            classify(error)
        }
        _ => StoreError::Unknown(error.to_string()),
    }
}

/// Whether a row found no partition of its day.
pub(crate) fn is_without_partition(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable(text) if text.starts_with(NO_PARTITION))
}

/// Whether the role lacks a right.
pub(crate) fn is_forbidden(error: &sqlx::Error) -> bool {
    code(error).as_deref() == Some(INSUFFICIENT_PRIVILEGE)
}

/// Whether somebody else held a lock for too long.
pub(crate) fn is_locked(error: &sqlx::Error) -> bool {
    code(error).as_deref() == Some(LOCK_NOT_AVAILABLE)
}

/// A row that this version of the store cannot make sense of.
pub(crate) fn unreadable(what: &str, error: impl std::fmt::Display) -> StoreError {
    StoreError::Unavailable(format!("a stored {what} cannot be read: {error}"))
}

pub(crate) fn code(error: &sqlx::Error) -> Option<String> {
    error.as_database_error()?.code().map(|code| code.into_owned())
}

#[cfg(test)]
mod tests {
    use std::{borrow::Cow, error::Error, fmt, io};

    use sqlx::error::{DatabaseError, ErrorKind};

    use super::*;

    /// An error of PostgreSQL with this code, at this constraint.
    #[derive(Debug)]
    struct Code(&'static str, Option<&'static str>);

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
            Some(self.0.into())
        }
        fn constraint(&self) -> Option<&str> {
            self.1
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

    type Meaning = fn(String) -> StoreError;

    #[test]
    fn every_error_has_its_meaning() {
        use StoreError::{Rejected, Unavailable, Unknown};
        let at = |code, constraint| sqlx::Error::Database(Box::new(Code(code, constraint)));
        let of = |code| at(code, None);
        let table: [(&str, sqlx::Error, Meaning, Meaning); 15] = [
            ("a NUL in text", of("22021"), Rejected, Unknown),
            ("out of range", of("22003"), Rejected, Unknown),
            ("not null", of("23502"), Rejected, Rejected),
            ("unique", of("23505"), Rejected, Rejected),
            ("a broken check", at("23514", Some("of_ours")), Unavailable, Unavailable),
            ("serialization", of("40001"), Unavailable, Unavailable),
            ("deadlock", of("40P01"), Unavailable, Unavailable),
            ("index row too large", of("54000"), Rejected, Unknown),
            ("disk full", of("53100"), Unavailable, Unknown),
            ("too many connections", of("53300"), Unavailable, Unknown),
            ("lock timeout", of("55P03"), Unavailable, Unknown),
            ("statement timeout", of("57014"), Unavailable, Unknown),
            ("shut down", of("57P01"), Unavailable, Unknown),
            ("read only standby", of("25006"), Unavailable, Unknown),
            (
                "no connection",
                sqlx::Error::Io(io::ErrorKind::BrokenPipe.into()),
                Unavailable,
                Unknown,
            ),
        ];
        for (what, error, meaning, at_commit) in table {
            assert_eq!(classify(&error), meaning(error.to_string()), "{what}");
            assert_eq!(commit(&error), at_commit(error.to_string()), "{what} at commit");
        }
        assert!(is_locked(&of("55P03")) && !is_locked(&of("57014")));
        assert!(is_without_partition(&classify(&of("23514"))));
        assert!(!is_without_partition(&classify(&at("23514", Some("of_ours")))));
    }
}
