//! The store in an application's own database: the mark on the application's row commits with the
//! message, or neither does.

use std::sync::Arc;

use pabal_conformance::postgres::{Database, RUNTIME, Server};
use pabal_core::*;

use crate::{
    database::{message, tail},
    kit::{open, prepared},
};

const MARK: &str = "UPDATE application SET sent = sent + 1 WHERE id = ANY($1::text[])";

async fn with_rows(rows: &[&str]) -> Database<'static> {
    let database = prepared(Server::shared()).await;
    database.ask("CREATE TABLE application (id text PRIMARY KEY, sent int NOT NULL DEFAULT 0)");
    for row in rows {
        database.ask(&format!("INSERT INTO application VALUES ('{row}')"));
    }
    database.ask(&format!("GRANT SELECT, UPDATE ON application TO {RUNTIME}"));
    database
}

fn marking(row: &str, body: &'static str, statement: &str) -> NewMessage {
    let mut new = message(row, None, body);
    new.message.arrival.alongside =
        Some(Alongside { statement: Arc::from(statement), row: row.to_owned() });
    new
}

fn group(rows: &[&str]) -> Vec<Entry> {
    rows.iter().map(|row| Entry::Message(marking(row, "x", MARK))).collect()
}

fn sent(database: &Database<'_>) -> String {
    database.ask("SELECT string_agg(id || sent, ' ' ORDER BY id) FROM application")
}

#[tokio::test]
async fn the_mark_commits_with_the_message_and_again_with_its_repeat() {
    let database = with_rows(&["a", "b", "c"]).await;
    let store = open(&database).await;
    assert!(store.alongside());
    let taken = store.accept(&group(&["b", "a"])).await.unwrap();
    assert_eq!((taken, sent(&database).as_str()), (vec![Accepted::Stored; 2], "a1 b1 c0"));
    // The answer to the first commit may have been lost: a repeat is marked as well.
    let again = store.accept(&group(&["a", "c"])).await.unwrap();
    assert_eq!(again, [Accepted::Duplicate, Accepted::Stored]);
    assert_eq!(sent(&database), "a2 b1 c1");
    database.ask("DELETE FROM application WHERE id = 'a'");
    let gone = store.accept(&group(&["a"])).await.unwrap();
    assert_eq!(gone, [Accepted::Duplicate], "its row had been dealt with");
}

#[tokio::test]
async fn what_was_set_aside_is_not_marked() {
    let database = with_rows(&["a"]).await;
    let store = open(&database).await;
    store.accept(&[Entry::Message(message("a", None, "x"))]).await.unwrap();
    let conflict = [Entry::Message(marking("a", "other", MARK))];
    let answer = store.accept(&conflict).await.unwrap().remove(0);
    assert!(matches!(answer, Accepted::Conflict { .. }), "{answer:?}");
    assert_eq!(sent(&database), "a0");
}

#[tokio::test]
async fn without_the_row_or_the_right_to_mark_it_nothing_is_taken() {
    let database = with_rows(&["a"]).await;
    let store = open(&database).await;
    let refused = store.accept(&group(&["a", "missing"])).await;
    assert!(matches!(refused, Err(StoreError::Rejected(_))), "{refused:?}");
    for statement in [
        "DELETE FROM application WHERE id = ANY($1::text[])",
        "UPDATE nowhere SET sent = 1 WHERE id = ANY($1::text[])",
    ] {
        let refused = store.accept(&[Entry::Message(marking("a", "x", statement))]).await;
        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    }
    assert_eq!(sent(&database), "a0");
    assert!(tail(&*store, 0).await.is_empty(), "nothing of it was taken");
    assert_eq!(store.accept(&group(&["a"])).await.unwrap(), [Accepted::Stored]);
}
