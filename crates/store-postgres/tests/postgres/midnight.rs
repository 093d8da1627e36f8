//! What happens across the end of a day is of one day.

use pabal_conformance::postgres::{Database, Server};
use pabal_core::*;

use crate::{
    database::{message, name, tail},
    kit::{open, prepared},
};

/// Midnight falls between two statements of one transaction: between the one that fills this table
/// and the next.
fn midnight_after(database: &Database<'_>, table: &str) {
    database.ask(&format!(
        "DO $do$ BEGIN EXECUTE format('CREATE OR REPLACE FUNCTION pabal.time() \
         RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS $$SELECT %L::timestamptz + \
         CASE WHEN EXISTS (SELECT 1 FROM pabal.{table}) THEN interval ''1 second'' \
         ELSE interval ''0'' END$$', \
         (statement_timestamp() AT TIME ZONE 'UTC')::date + interval '23:59:59.5' + interval '0'); \
         END $do$"
    ));
}

#[tokio::test]
async fn a_group_that_is_taken_across_midnight_is_of_one_day() {
    for table in ["message", "inbox", "dead_letter", "unrouted"] {
        let database = prepared(Server::shared()).await;
        midnight_after(&database, table);
        let store = open(&database).await;
        let mut unrouted = message("unrouted", None, "nobody's");
        unrouted.destinations.clear();
        let mut question = message("question", None, "whose?");
        question.faults = vec![(name("q/out"), "cannot be told".to_owned())];
        question.destinations.clear();
        let group = [message("1", Some("k"), "x"), unrouted, question].map(Entry::Message);
        assert_eq!(store.accept(&group).await.unwrap(), vec![Accepted::Stored; 3]);

        let rows = tail(&*store, 0).await;
        let loaded = store.load(&[(rows[0].number, rows[0].message)]).await.unwrap();
        let body = loaded[0].as_ref().and_then(|it| it.message.body.inline());
        assert_eq!(body, Some(&Bytes::from_static(b"x")), "midnight after {table}");
        for other in ["inbox", "outbox", "unrouted", "dead_letter"] {
            let strangers = database.ask(&format!(
                "SELECT count(*) FROM pabal.{other} o JOIN pabal.message m \
                 ON m.id = o.message AND m.day <> o.day"
            ));
            assert_eq!(strangers, "0", "{other}, midnight after {table}");
        }
        // And it is found by the day it was received.
        let everything = store.messages(&MessageQuery::default()).await.unwrap();
        for one in everything {
            let since = MessageQuery { since: Some(one.received), ..MessageQuery::default() };
            let found = store.messages(&since).await.unwrap();
            assert!(found.iter().any(|it| it.id == one.id), "{one:?}, midnight after {table}");
        }
    }
}
