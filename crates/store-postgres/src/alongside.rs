//! What origins in this same database want committed together with their messages.

use std::collections::{BTreeMap, BTreeSet};

use pabal_core::{Accepted, Entry, StoreError};
use sqlx::AssertSqlSafe;

use crate::{Transaction, execute};

/// Runs the statements of a group, each once.
pub(crate) async fn run(
    transaction: &mut Transaction,
    group: &[Entry],
    answers: &[Accepted],
) -> Result<(), StoreError> {
    /// The rows of one statement, and how many of them belong to new messages.
    #[derive(Default)]
    struct Rows<'a> {
        all: BTreeSet<&'a str>,
        new: u64,
    }
    // In one order, as everywhere: two groups must not wait for each other.
    let mut statements: BTreeMap<&str, Rows<'_>> = BTreeMap::new();
    for (entry, answer) in group.iter().zip(answers) {
        if let (Entry::Message(new), Accepted::Stored | Accepted::Duplicate) = (entry, answer)
            && let Some(alongside) = &new.message.arrival.alongside
        {
            let rows = statements.entry(&alongside.statement).or_default();
            rows.new += u64::from(rows.all.insert(&alongside.row) && *answer == Accepted::Stored);
        }
    }
    for (statement, rows) in statements {
        let asked = rows.all.len();
        let query =
            sqlx::query(AssertSqlSafe(statement)).bind(rows.all.into_iter().collect::<Vec<_>>());
        let hit = execute(transaction, query).await?;
        // The row of a repeat may have been dealt with before.
        if hit < rows.new || hit > asked as u64 {
            let text = format!("the origin's statement hit {hit} rows of {asked}: {statement}");
            return Err(StoreError::Rejected(text));
        }
    }
    Ok(())
}
