//! What writing has in common on all kinds of database.

use crate::{Error, Message};

/// The columns that are written; the table's defaults do the rest (order, state, time).
pub(crate) const COLUMNS: &str = "id, aggregate_type, aggregate_id, event_type, payload, \
    content_type, schema_version, version, correlation_id, causation_id, traceparent, \
    destination, headers";

/// Rows of one statement. Thirteen values each: within the limits of all kinds of database.
const ROWS_MAX: usize = 500;
/// Payload bytes of one statement, unless one message alone has more: far below the longest packet
/// that a server takes by default.
const BYTES_MAX: usize = 1024 * 1024;

/// The messages of each statement, in order.
pub(crate) fn statements(mut messages: &[Message]) -> impl Iterator<Item = &[Message]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |message: &&Message| {
            bytes += message.payload.len();
            bytes <= BYTES_MAX
        };
        let count = messages.iter().take(ROWS_MAX).take_while(fits).count();
        let (now, later) = messages.split_at(count.max(1).min(messages.len()));
        messages = later;
        (!now.is_empty()).then_some(now)
    })
}

/// Holds what the table took against what it was given: silence is no success.
pub(crate) fn all_taken(table: String, taken: u64, given: &[Message]) -> Result<(), Error> {
    let given = given.len();
    if taken == given as u64 { Ok(()) } else { Err(Error::NotTaken { table, taken, given }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(bytes: usize) -> Message {
        let payload = vec![b' '; bytes];
        Message::bytes("t", "text/plain", payload).aggregate("a", "1").build().unwrap()
    }

    #[test]
    fn a_statement_has_bounds_and_none_is_left_out_or_moved() {
        let counts = |sizes: &[usize]| {
            let messages: Vec<Message> = sizes.iter().map(|size| message(*size)).collect();
            let statements: Vec<&[Message]> = statements(&messages).collect();
            assert_eq!(statements.concat(), messages);
            statements.iter().map(|statement| statement.len()).collect::<Vec<_>>()
        };
        assert_eq!(counts(&[]), Vec::<usize>::new());
        assert_eq!(counts(&[1; 1001]), [500, 500, 1]);
        assert_eq!(counts(&[BYTES_MAX, 0, 1]), [2, 1]);
        assert_eq!(counts(&[BYTES_MAX + 1, BYTES_MAX + 1, 1]), [1, 1, 1]);
    }
}
