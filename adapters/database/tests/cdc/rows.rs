//! What comes, in which order, how soon, and what is confirmed.

use std::{sync::Arc, time::Duration};

use pabal_conformance::postgres::{OWNER, Server};
use pabal_core::SystemClock;
use sqlx::{Connection, PgConnection};

use crate::{
    hub::{Hub, Mood},
    support::{Application, BODY_MAX, insert, until},
};

#[tokio::test]
async fn rows_written_early_and_committed_late_come_in_the_order_of_the_commits() {
    let application = Application::new(Server::shared());
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    application.streaming().await;
    let mut late = PgConnection::connect(&application.database.url(OWNER)).await.unwrap();
    let mut tx = late.begin().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(insert("written-first"))).execute(&mut *tx).await.unwrap();
    application.commit("committed-first");
    application.database.ask(&format!("BEGIN; {}; ROLLBACK", insert("never")));
    hub.has(1).await;
    tx.commit().await.unwrap();
    hub.has(2).await;
    application.commit("last");
    hub.has(3).await;
    assert_eq!(hub.ids(), ["committed-first", "written-first", "last"]);
    assert_eq!(hub.duplicates(), 0);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_writers_at_once_lose_nothing_and_each_key_keeps_its_order() {
    const ROWS: usize = 100;
    let application = Application::new(Server::shared());
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    application.streaming().await;
    let writers = (0..8).map(|writer| {
        let url = application.database.url(OWNER);
        tokio::spawn(async move {
            let mut connection = PgConnection::connect(&url).await.unwrap();
            for row in 0..ROWS {
                let mut tx = connection.begin().await.unwrap();
                sqlx::query(
                    "INSERT INTO outbox (id, aggregate_id, event_type, payload) \
                     VALUES ($1, $2, 'e', $3)",
                )
                .bind(format!("{writer}-{row}"))
                .bind(format!("key-{writer}"))
                .bind(row.to_string().into_bytes())
                .execute(&mut *tx)
                .await
                .unwrap();
                // One in five thinks better of it.
                if row % 5 == 4 {
                    tx.rollback().await.unwrap();
                } else {
                    tx.commit().await.unwrap();
                }
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    hub.has(8 * ROWS * 4 / 5).await;
    let messages = hub.messages();
    for writer in 0..8 {
        let key = format!("key-{writer}");
        let of_key = messages.iter().filter(|message| message.key.as_ref() == Some(&key));
        let came: Vec<usize> = of_key
            .map(|message| {
                std::str::from_utf8(message.body.inline().unwrap()).unwrap().parse().unwrap()
            })
            .collect();
        let expected: Vec<usize> = (0..ROWS).filter(|row| row % 5 != 4).collect();
        assert_eq!(came, expected, "{key}");
    }
    relay.stop().await;
}

#[tokio::test]
async fn a_receipt_follows_the_commit_at_once() {
    use pabal_core::Clock;
    let application = Application::new(Server::shared());
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    application.streaming().await;
    application.commit("warm");
    hub.has(1).await;
    let mut connection = PgConnection::connect(&application.database.url(OWNER)).await.unwrap();
    let mut times = Vec::new();
    for n in 0..20 {
        let statement = insert(&n.to_string());
        let start = SystemClock.elapsed();
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut connection).await.unwrap();
        hub.has(n + 2).await;
        times.push(SystemClock.elapsed() - start);
    }
    times.sort();
    assert!(times[10] < Duration::from_millis(100), "{times:?}");
    relay.stop().await;
}

#[tokio::test]
async fn what_stood_in_the_table_before_there_was_a_slot_is_taken_too() {
    let application = Application::new(Server::shared());
    application.database.ask(
        "INSERT INTO outbox (id, aggregate_id, event_type, payload) \
         SELECT 'old-' || n, 'k', 'e', '' FROM generate_series(1, 1200) n",
    );
    application.database.ask("UPDATE outbox SET status = 'SENT' WHERE id = 'old-7'");
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    hub.has(1199).await;
    application.commit("new");
    hub.has(1200).await;
    let mut expected: Vec<_> = (1..=1200).map(|n| format!("old-{n}")).collect();
    expected.remove(6);
    expected.push("new".to_owned());
    assert_eq!(hub.ids(), expected, "in the order in which they were written");
    relay.stop().await;
    // It is done once.
    let calls = hub.calls();
    let relay = application.relay(&hub);
    application.commit("newer");
    hub.has(1201).await;
    assert!(hub.calls() <= calls + 2, "the table was read again");
    relay.stop().await;
}

#[tokio::test]
async fn what_the_hub_has_and_the_server_does_not_know_of_comes_again_as_a_duplicate() {
    let application = Application::new(Server::shared());
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    application.streaming().await;
    application.commit("a");
    hub.has(1).await;
    hub.mood.send_replace(Mood::TakesInSilence);
    application.commit("b");
    hub.has(2).await;
    // Between the hub's commit and what would be said to the server.
    relay.crash().await;
    hub.mood.send_replace(Mood::Takes);
    application.commit("c");
    let relay = application.relay(&hub);
    hub.has(3).await;
    assert_eq!(hub.ids(), ["a", "b", "c"]);
    assert!(hub.duplicates() >= 1, "b came again");
    application.confirmed().await;
    relay.stop().await;
}

#[tokio::test]
async fn what_is_not_taken_for_now_is_tried_again_and_not_confirmed() {
    let application = Application::new(Server::shared());
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    application.streaming().await;
    hub.mood.send_replace(Mood::Busy);
    let before = hub.calls();
    application.commit("a");
    application.commit("b");
    hub.called(before + 1).await;
    let behind = format!(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{}' \
         AND confirmed_flush_lsn < pg_current_wal_lsn()",
        application.slot
    );
    assert_eq!(application.database.ask(&behind), "1");
    // A stop in the middle of it is prompt, and loses nothing.
    relay.stop().await;
    hub.mood.send_replace(Mood::Takes);
    let relay = application.relay(&hub);
    hub.has(2).await;
    assert_eq!(hub.ids(), ["a", "b"]);
    application.confirmed().await;
    relay.stop().await;
}

#[tokio::test]
async fn a_transaction_of_20_000_rows_comes_in_batches_and_is_confirmed_at_its_end() {
    const ROWS: usize = 20_000;
    let application = Application::new(Server::shared());
    let hub = Arc::new(Hub::without_bodies());
    let relay = application.relay(&hub);
    application.streaming().await;
    application.commit("first");
    hub.has(1).await;
    application.confirmed().await;
    let before = memory_peak();
    // 2 KiB each, 40 MiB together.
    let end = application.database.ask(&format!(
        "BEGIN; INSERT INTO outbox (id, aggregate_id, event_type, payload) SELECT 'r' || n, 'k', \
         'e', decode(repeat('ab', 2048), 'hex') FROM generate_series(1, {ROWS}) n; \
         SELECT pg_current_wal_insert_lsn(); COMMIT"
    ));
    hub.has(ROWS / 2).await;
    // What comes before its end may be confirmed, and no more until all of it is safe.
    let before_its_end = application.database.ask(&format!(
        "SELECT confirmed_flush_lsn <= '{end}' FROM pg_replication_slots WHERE slot_name = '{}'",
        application.slot
    ));
    assert!(before_its_end == "t" || hub.ids().len() > ROWS, "confirmed too early");
    hub.has(ROWS + 1).await;
    application.confirmed().await;
    let grown = memory_peak() - before;
    assert!(grown < 24 * 1024, "{grown} KiB more for 40 MiB of rows");
    assert!(hub.largest_batch() <= 500);
    let ids = hub.ids();
    assert!(ids[1..].iter().enumerate().all(|(n, id)| *id == format!("r{}", n + 1)));
    relay.stop().await;
}

/// The most memory that this process ever held, in KiB.
fn memory_peak() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_row_inserted_and_deleted_in_one_transaction_is_taken() {
    let application = Application::new(Server::shared());
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    application.streaming().await;
    application.database.ask(&format!("BEGIN; {}; DELETE FROM outbox; COMMIT", insert("fleeting")));
    hub.has(1).await;
    assert_eq!(hub.ids(), ["fleeting"]);
    assert_eq!(application.database.ask("SELECT count(*) FROM outbox"), "0");
    relay.stop().await;
}

#[tokio::test]
async fn what_was_taken_is_marked_as_sent() {
    let application = Application::new(Server::shared());
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    application.streaming().await;
    application.commit("a");
    let sent = "SELECT count(*) FROM outbox WHERE status = 'SENT' AND sent_at IS NOT NULL";
    until(&application.database, sent, "1").await;
    relay.stop().await;
}

#[tokio::test]
async fn a_refused_row_is_marked_as_failed_and_holds_nothing_back() {
    let application = Application::new(Server::shared());
    let hub = Arc::new(Hub::refusing("bad"));
    let relay = application.relay(&hub);
    application.streaming().await;
    application.database.ask(&[insert("a"), insert("bad"), insert("b")].join("; "));
    hub.has(2).await;
    assert_eq!(hub.ids(), ["a", "b"]);
    let failed =
        "SELECT string_agg(id || ' ' || last_error, ',') FROM outbox WHERE status = 'FAILED'";
    until(&application.database, &format!("SELECT ({failed}) IS NOT NULL"), "true").await;
    let answer = application.database.ask(failed);
    assert!(answer.starts_with("bad ") && answer.contains("not wanted"), "{answer}");
    application.confirmed().await;
    relay.stop().await;
}

#[tokio::test]
async fn rows_that_were_written_as_sent_are_not_sent() {
    let application = Application::new(Server::shared());
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    application.streaming().await;
    application.database.ask(
        "INSERT INTO outbox (id, aggregate_id, event_type, payload, status) \
         VALUES ('restored', 'k', 'e', '', 'SENT'), ('new', 'k', 'e', '', 'NEW')",
    );
    hub.has(1).await;
    application.confirmed().await;
    assert_eq!(hub.ids(), ["new"]);
    relay.stop().await;
}

#[tokio::test]
async fn a_row_that_is_made_new_again_goes_again() {
    let application = Application::new(Server::shared());
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    application.streaming().await;
    application.commit("a");
    let sent = "SELECT count(*) FROM outbox WHERE status = 'SENT'";
    until(&application.database, sent, "1").await;
    application.database.ask("UPDATE outbox SET status = 'NEW'");
    until(&application.database, sent, "1").await;
    assert_eq!(hub.duplicates(), 1, "under its old id");
    relay.stop().await;
}

#[tokio::test]
async fn a_row_larger_than_may_be_held_is_marked_as_failed_and_holds_nothing_back() {
    let application = Application::new(Server::shared());
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    application.streaming().await;
    application.database.ask(&format!(
        "INSERT INTO outbox (id, aggregate_id, event_type, payload) \
         VALUES ('huge', 'k', 'e', decode(repeat('ab', 5 * {BODY_MAX}), 'hex'))",
    ));
    application.commit("small");
    hub.has(1).await;
    assert_eq!(hub.ids(), ["small"]);
    let failed = "SELECT id || ' ' || last_error FROM outbox WHERE status = 'FAILED'";
    until(&application.database, &format!("SELECT ({failed}) LIKE 'huge too-large%'"), "true")
        .await;
    application.confirmed().await;
    relay.stop().await;
}

#[tokio::test]
async fn bodies_come_byte_for_byte_from_columns_of_every_kind() {
    let numbers = r#"{"id": 12345678901234567890, "memo": "a\u0000b"}"#;
    for (kind, value, expected) in [
        ("bytea", r"'\x00ff5c0a'", &b"\x00\xff\x5c\n"[..]),
        ("file", r"'\x00ff5c0a'", &b"\x00\xff\x5c\n"[..]),
        ("text", r"E'\\x00ff'", br"\x00ff"),
        ("text", "E'a\\tb\\\\c ㅎ'", "a\tb\\c ㅎ".as_bytes()),
        ("json", &format!("'{numbers}'"), numbers.as_bytes()),
        ("jsonb", r#"'{"id": 12345678901234567890}'"#, br#"{"id": 12345678901234567890}"#),
    ] {
        let application = Application::new(Server::shared());
        application.database.ask(&format!(
            "CREATE DOMAIN file AS bytea; ALTER TABLE outbox ALTER COLUMN payload TYPE {kind} USING NULL; \
             ALTER DATABASE {} SET bytea_output = 'escape'",
            application.database.url(OWNER).rsplit('/').next().unwrap()
        ));
        let hub = Arc::new(Hub::default());
        let relay = application.relay(&hub);
        application.streaming().await;
        application.database.ask(&format!(
            "INSERT INTO outbox (id, aggregate_id, event_type, payload, version) \
             VALUES ('x', NULL, 'e', {value}, 9007199254740993)"
        ));
        hub.has(1).await;
        assert_eq!(&hub.body("x")[..], expected, "{kind}");
        let message = &hub.messages()[0];
        assert_eq!((&message.key, message.version), (&None, Some(9_007_199_254_740_993)));
        relay.stop().await;
    }
}

#[tokio::test]
async fn traffic_elsewhere_moves_the_position_while_the_table_is_quiet() {
    let application = Application::new(Server::shared());
    let hub = Arc::new(Hub::default());
    let relay = application.relay(&hub);
    application.streaming().await;
    application.database.ask("CREATE TABLE busy AS SELECT generate_series(1, 100000)");
    application.confirmed().await;
    assert_eq!(hub.calls(), 0);
    relay.stop().await;
}
