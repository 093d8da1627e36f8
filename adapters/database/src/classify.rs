//! The one place where what a database says becomes a verdict.
//!
//! Three questions, in this order: was it about the place (no connection, no right, no such table:
//! nothing is known of this message)? Was it about the data (a constraint, a value that is none)? All
//! else is for this time: a deadlock, a lock, a connection that ended in the middle.

use pabal_core::{Cause, Reason, SendError};
use sqlx::{Error, error::DatabaseError, mysql::MySqlDatabaseError};

/// What an error says of the message in hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// About the place.
    Place,
    /// This message, this time.
    Again,
    /// Never as it stands.
    Never(Reason),
}

impl Fate {
    /// By what the library gives, once a connection was there.
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::Database(error) => match error.try_downcast_ref::<MySqlDatabaseError>() {
                Some(mysql) => Self::of_mysql(mysql.number(), mysql.code().unwrap_or_default()),
                None => Self::of_code(&error.code().unwrap_or_default(), error.message()),
            },
            // What is no database, or none that can be spoken to.
            Error::Configuration(_)
            | Error::InvalidArgument(_)
            | Error::Tls(_)
            | Error::PoolTimedOut
            | Error::PoolClosed => Self::Place,
            // A value that cannot be put on the wire, or an answer of another type than wanted.
            Error::Encode(_)
            | Error::Decode(_)
            | Error::ColumnDecode { .. }
            | Error::ColumnIndexOutOfBounds { .. }
            | Error::ColumnNotFound(_)
            | Error::TypeNotFound { .. } => Self::Never(Reason::Invalid),
            _ => Self::Again,
        }
    }

    /// SQLSTATE of PostgreSQL has five characters, what SQLite has is a number.
    fn of_code(code: &str, message: &str) -> Self {
        match code.parse::<u32>() {
            Ok(number) if code.len() < 5 => Self::of_sqlite(number, message),
            _ => Self::of_sqlstate(code),
        }
    }

    fn of_sqlstate(code: &str) -> Self {
        match (code.get(..2).unwrap_or_default(), code) {
            // Lock not available, query cancelled, an administrator ended it.
            (_, "55P03" | "57014" | "57P01" | "57P02") => Self::Again,
            // Starting up or shutting down, too many connections, a standby.
            (_, "57P03" | "53300" | "25006") => Self::Place,
            // A plan that a change of the table made void.
            (_, "0A000") => Self::Again,
            ("54", _) => Self::Never(Reason::TooLarge),
            // Data, constraints, views' checks, several rows where one was wanted, RAISE.
            ("22" | "23" | "44" | "21" | "P0", _) => Self::Never(Reason::Invalid),
            // Who we are; what is not there or not ours; another database than was meant.
            ("28" | "42" | "3D" | "3F" | "0L" | "0P", _) => Self::Place,
            _ => Self::Again,
        }
    }

    fn of_mysql(number: u16, sqlstate: &str) -> Self {
        match number {
            // Lock wait, deadlock, the query was interrupted.
            1205 | 1213 | 1317 | 3024 | 1969 => Self::Again,
            // Too many connections; read-only; the table is full or gone.
            1040 | 1203 | 1290 | 1836 | 1792 | 1114 | 1932 => Self::Place,
            // Values that are none for the column, JSON that is none, checks, a trigger's SIGNAL.
            1048
            | 1062
            | 1216
            | 1217
            | 1263..=1265
            | 1292
            | 1364
            | 1366
            | 1367
            | 1406
            | 1411
            | 1451
            | 1452
            | 1526
            | 1644
            | 1690
            | 3140..=3159
            | 3819
            | 4025
            | 4038 => Self::Never(Reason::Invalid),
            1105 | 1153 | 1301 => Self::Never(Reason::TooLarge),
            _ => match sqlstate.get(..2).unwrap_or_default() {
                "22" | "23" | "45" | "21" => Self::Never(Reason::Invalid),
                "28" | "42" | "08" | "3D" => Self::Place,
                _ => Self::Again,
            },
        }
    }

    fn of_sqlite(code: u32, message: &str) -> Self {
        match code & 0xff {
            // Errors of the statement; JSON that is none is one of them, and about the message.
            1 => {
                let about_the_place = ["no such", "has no column", "near ", "values for", "syntax"];
                match about_the_place.iter().any(|part| message.contains(part)) {
                    true => Self::Place,
                    false => Self::Never(Reason::Invalid),
                }
            }
            // Permission, read-only, corrupt, full, cannot open, authorisation, no database.
            3 | 8 | 11 | 13 | 14 | 23 | 26 => Self::Place,
            18 => Self::Never(Reason::TooLarge),
            19 | 20 => Self::Never(Reason::Invalid),
            _ => Self::Again,
        }
    }
}

/// The verdict on an error that came once a connection was there; until the commit nothing of the
/// message was kept.
pub(crate) fn verdict(error: &Error) -> SendError {
    let cause = cause(error);
    match Fate::of(error) {
        Fate::Place => SendError::unreachable(cause),
        Fate::Again => SendError::transient(cause),
        Fate::Never(reason) => SendError::permanent(reason, cause),
    }
}

/// The verdict on an error of connecting: whatever it was, nothing of a message was written.
pub(crate) fn no_connection(error: &Error) -> SendError {
    SendError::unreachable(Cause::with("no connection to the database", said(error)))
}

/// The verdict on a commit: what the database refused in words did not happen, what ended in silence
/// may have.
pub(crate) fn commit(error: &Error) -> SendError {
    match error {
        Error::Database(_) => verdict(error),
        _ => SendError::transient(Cause::with(
            "whether the commit happened is not known; a repeat will tell",
            said(error),
        )),
    }
}

/// What happened: the code and the constraint are the same for the same kind of failure; the words
/// may quote a value.
fn cause(error: &Error) -> Cause {
    let Error::Database(database) = error else {
        return Cause::with("the connection to the database failed", said(error));
    };
    let code = match database.try_downcast_ref::<MySqlDatabaseError>() {
        Some(mysql) => format!("error {}", mysql.number()),
        None => format!("error {}", database.code().unwrap_or_default()),
    };
    match database.constraint() {
        Some(constraint) => {
            Cause::with(format!("database {code} ({constraint})"), database.message())
        }
        None => Cause::with(format!("database {code}"), database.message()),
    }
}

/// What an error says. A URL, and so a password, is in none of them.
pub(crate) fn said(error: &Error) -> String {
    match error {
        Error::Database(database) => database.message().to_owned(),
        // It may quote what it could not read.
        Error::Configuration(_) => "the URL cannot be used".to_owned(),
        other => other.to_string(),
    }
}

/// Whether it is a repeat of a row with this id: nothing else may count as one.
pub(crate) fn is_repeat(error: &dyn DatabaseError) -> bool {
    error.try_downcast_ref::<MySqlDatabaseError>().is_some_and(|mysql| {
        // MySQL puts the table's name before it.
        mysql.number() == 1062
            && mysql.message().trim_end_matches('\'').rsplit(['\'', '.']).next() == Some("PRIMARY")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use Fate::*;

    const INVALID: Fate = Never(Reason::Invalid);

    #[test]
    fn every_code_has_the_documented_fate() {
        for (code, fate) in [
            ("08006", Again),
            ("40001", Again),
            ("40P01", Again),
            ("55P03", Again),
            ("57014", Again),
            ("57P01", Again),
            ("57P03", Place),
            ("53300", Place),
            ("53100", Again),
            ("25006", Place),
            ("0A000", Again),
            ("22001", INVALID),
            ("22021", INVALID),
            ("22P02", INVALID),
            ("22P05", INVALID),
            ("23502", INVALID),
            ("23503", INVALID),
            ("23505", INVALID),
            ("23514", INVALID),
            ("P0001", INVALID),
            ("21000", INVALID),
            ("54000", Never(Reason::TooLarge)),
            ("28P01", Place),
            ("3D000", Place),
            ("42501", Place),
            ("42703", Place),
            ("42P01", Place),
            ("42601", Place),
            ("42883", Place),
            ("XX000", Again),
        ] {
            assert_eq!(Fate::of_code(code, ""), fate, "PostgreSQL {code}");
        }
        for (number, sqlstate, fate) in [
            (1205, "HY000", Again),
            (1213, "40001", Again),
            (1317, "70100", Again),
            (1040, "08004", Place),
            (1045, "28000", Place),
            (1049, "42000", Place),
            (1054, "42S22", Place),
            (1064, "42000", Place),
            (1142, "42000", Place),
            (1146, "42S02", Place),
            (1290, "HY000", Place),
            (1048, "23000", INVALID),
            (1062, "23000", INVALID),
            (1264, "22003", INVALID),
            (1366, "HY000", INVALID),
            (1406, "22001", INVALID),
            (1452, "23000", INVALID),
            (1644, "45000", INVALID),
            (3140, "22032", INVALID),
            (3819, "HY000", INVALID),
            (4025, "23000", INVALID),
            (1153, "08S01", Never(Reason::TooLarge)),
            (2006, "HY000", Again),
        ] {
            assert_eq!(Fate::of_mysql(number, sqlstate), fate, "MySQL {number}");
        }
        for (code, message, fate) in [
            ("5", "database is locked", Again),
            ("517", "database is locked", Again),
            ("6", "database table is locked", Again),
            ("10", "disk I/O error", Again),
            ("1", "no such table: applications", Place),
            ("1", "table inbox has no column named x", Place),
            ("1", "near \"SELEC\": syntax error", Place),
            ("1", "malformed JSON", INVALID),
            ("8", "attempt to write a readonly database", Place),
            ("13", "database or disk is full", Place),
            ("14", "unable to open database file", Place),
            ("26", "file is not a database", Place),
            ("275", "CHECK constraint failed: x", INVALID),
            ("1299", "NOT NULL constraint failed: x", INVALID),
            ("1555", "UNIQUE constraint failed: x", INVALID),
            ("1811", "refused by a trigger", INVALID),
            ("18", "string or blob too big", Never(Reason::TooLarge)),
            ("20", "datatype mismatch", INVALID),
        ] {
            assert_eq!(Fate::of_code(code, message), fate, "SQLite {code} {message}");
        }
        for (error, fate) in [
            (Error::PoolTimedOut, Place),
            (Error::WorkerCrashed, Again),
            (Error::Protocol("x".into()), Again),
            (Error::Io(std::io::ErrorKind::ConnectionReset.into()), Again),
            (Error::Encode("x".into()), INVALID),
        ] {
            assert_eq!(Fate::of(&error), fate, "{error}");
        }
    }

    #[test]
    fn a_commit_that_ends_in_silence_is_for_this_time_and_no_connection_about_the_place() {
        let broken = || Error::Io(std::io::ErrorKind::UnexpectedEof.into());
        assert!(matches!(commit(&broken()), SendError::Transient { .. }));
        assert!(matches!(no_connection(&broken()), SendError::Unreachable { .. }));
        let secret = Error::Configuration("mysql://u:s3cret@h".into());
        assert!(!no_connection(&secret).to_string().contains("s3cret"));
    }
}
