//! What is particular to a database file: who may open it, and who may write now.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail as tests do")]

use std::{path::Path, sync::Arc, time::Duration};

use pabal_core::{Accepted, EndpointName, Entry, Fingerprint, ManualClock, Message, MessageId};
use pabal_core::{NewMessage, Store};
use pabal_store_sqlite::{OpenError, Options, SqliteStore};
use sqlx::{Connection, Executor, SqliteConnection, sqlite::SqliteConnectOptions};

async fn open(path: &Path, hub_name: &str) -> Result<SqliteStore, OpenError> {
    let options = Options { path: path.to_owned(), hub_name: hub_name.to_owned() };
    SqliteStore::open(options, Arc::new(ManualClock::default())).await
}

async fn stranger(path: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(path);
    SqliteConnection::connect_with(&options).await.unwrap()
}

fn entry(id: &str) -> Entry {
    let source: EndpointName = "p/in".parse().unwrap();
    let mut message = Message::new(source.clone(), "thing.happened", "body");
    message.id = MessageId::of("hub", &source, &message.origin.source, id);
    message.origin.id = Some(id.to_owned());
    Entry::Message(NewMessage {
        message,
        fingerprint: Fingerprint::of(b"body"),
        destinations: vec!["q/out".parse().unwrap()],
        faults: Vec::new(),
        repeats: 0,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_accept_waits_for_the_write_lock_of_another_process_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub.db");
    let store = Arc::new(open(&path, "hub").await.unwrap());
    // A repeat reads before it writes: that is what a transaction begun as a reader fails at.
    store.accept(&[entry("1")]).await.unwrap();

    let mut other = stranger(&path).await;
    let mut held = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    sqlx::query("INSERT INTO meta (name, value) VALUES ('other', 'x')")
        .execute(&mut *held)
        .await
        .unwrap();
    let writer = store.clone();
    let mut accept = tokio::spawn(async move {
        let group = [entry("1"), entry("2")];
        writer.accept(&group).await
    });
    // However long this is, it cannot be done while the lock is held.
    let early = tokio::time::timeout(Duration::from_millis(50), &mut accept).await;
    assert!(early.is_err(), "{early:?}");
    held.commit().await.unwrap();
    let answers = accept.await.unwrap().unwrap();
    assert_eq!(answers, [Accepted::Duplicate, Accepted::Stored]);
}

#[tokio::test]
async fn a_reader_does_not_stop_the_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub.db");
    let store = open(&path, "hub").await.unwrap();
    let mut other = stranger(&path).await;
    let mut reading = other.begin().await.unwrap();
    sqlx::query("SELECT * FROM message").fetch_all(&mut *reading).await.unwrap();
    let answers = store.accept(&[entry("1")]).await.unwrap();
    assert_eq!(answers, [Accepted::Stored]);
    reading.rollback().await.unwrap();
}

#[tokio::test]
async fn another_hubs_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/deep/hub.db");
    open(&path, "central").await.unwrap().close().await;
    let error = open(&path, "branch").await.unwrap_err();
    assert!(matches!(error, OpenError::OtherHub { .. }), "{error:?}");
    let text = error.to_string();
    for part in ["hub.db", "central", "branch"] {
        assert!(text.contains(part), "{text}");
    }
    open(&path, "central").await.unwrap().close().await;
}

#[tokio::test]
async fn a_newer_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub.db");
    open(&path, "hub").await.unwrap().close().await;
    sqlx::query(
        "INSERT INTO _pabal_migrations (version, description, success, checksum, execution_time) \
         VALUES (999, 'later', true, x'00', 0)",
    )
    .execute(&mut stranger(&path).await)
    .await
    .unwrap();
    let error = open(&path, "hub").await.unwrap_err();
    assert!(matches!(error, OpenError::Newer { step: 999, .. }), "{error}");
}

#[tokio::test]
async fn what_is_no_database_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub.db");
    let text = "something else entirely\n".repeat(100);
    std::fs::write(&path, &text).unwrap();
    let error = open(&path, "hub").await.unwrap_err();
    assert!(error.to_string().contains("hub.db"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[cfg(unix)]
#[tokio::test]
async fn nobody_else_can_read_the_file() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub.db");
    let store = open(&path, "hub").await.unwrap();
    store.accept(&[entry("1")]).await.unwrap();
    for name in ["hub.db", "hub.db-wal"] {
        let mode = std::fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{name}: {mode:o}");
    }
}

#[tokio::test]
async fn the_hot_table_stays_small_and_its_reads_use_an_index() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub.db");
    let _store = open(&path, "hub").await.unwrap();
    let mut other = stranger(&path).await;
    let plan = async |other: &mut SqliteConnection, sql: &'static str| -> String {
        let rows: Vec<(i64, i64, i64, String)> =
            sqlx::query_as(sql).fetch_all(other).await.unwrap();
        rows.into_iter().map(|row| row.3 + "; ").collect()
    };
    let by_key = plan(
        &mut other,
        "EXPLAIN QUERY PLAN SELECT * FROM outbox WHERE destination = ? AND slot = ? AND key = ? \
         AND number > ? ORDER BY number LIMIT 500",
    )
    .await;
    assert!(by_key.contains("outbox_key") && !by_key.contains("TEMP B-TREE"), "{by_key}");
    let by_destination = plan(
        &mut other,
        "EXPLAIN QUERY PLAN SELECT * FROM outbox WHERE destination = ? AND number > ? \
         ORDER BY number LIMIT 500",
    )
    .await;
    assert!(
        by_destination.contains("outbox_destination") && !by_destination.contains("TEMP B-TREE"),
        "{by_destination}"
    );
    let indexes: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'outbox'",
    )
    .fetch_one(&mut other)
    .await
    .unwrap();
    assert_eq!(indexes, 2, "every index of the hot table is paid with every message");
}

#[tokio::test]
async fn a_look_makes_nothing_and_tells_whose_the_file_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("var/hub.db");
    let look = async |hub_name: &str| {
        let options = Options { path: path.clone(), hub_name: hub_name.to_owned() };
        let found = SqliteStore::probe(&options).await;
        let told = found.into_iter().map(|it| (it.severity, it.what)).next();
        told.map(|(severity, what)| format!("{severity:?}: {what}"))
    };
    assert!(look("hub").await.is_some_and(|told| told.starts_with("Note: there is no")));
    assert!(!folder.path().join("var").exists());
    let store = open(&path, "hub").await.unwrap();
    // Also while a hub runs on it.
    assert_eq!(look("hub").await, None);
    let told = look("other").await.unwrap();
    assert!(told.contains("belongs to hub `hub`") && told.starts_with("Fault"), "{told}");
    store.close().await;
    stranger(&path)
        .await
        .execute("UPDATE _pabal_migrations SET version = version + 1")
        .await
        .unwrap();
    let told = look("hub").await.unwrap();
    assert!(told.contains("written by a newer version"), "{told}");
    std::fs::write(&path, "no database at all, but long enough to be read as one").unwrap();
    assert!(look("hub").await.is_some_and(|told| told.starts_with("Fault: cannot open")));
}
