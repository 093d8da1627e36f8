//! The stream alone against a server: what comes, in which order, and what a confirmed position does.

use std::{str::FromStr, sync::Arc, time::Duration};

use bytes::Bytes;
use pabal_conformance::postgres::{Database, Server};
use pabal_core::{Clock, Stop, SystemClock};
use sqlx::{
    PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use super::{
    Fault,
    pgoutput::{BYTEA, Column},
    slot::Slot,
    stream::{Batch, Options, Row, Stream},
    target::Target,
};
use crate::name::TableName;

const LIMIT: Duration = Duration::from_secs(30);

/// A table that is streamed.
struct Case<'s> {
    database: Database<'s>,
    pool: PgPool,
    slot: Slot,
    options: Options,
    stop: Stop,
}

async fn within<F: Future>(future: F) -> F::Output {
    let clock: &dyn Clock = &SystemClock;
    clock.timeout(LIMIT, future).await.expect("it did not happen in time")
}

impl<'s> Case<'s> {
    async fn new(server: &'s Server, name: &str) -> Case<'s> {
        let database = server.database();
        database.ask("CREATE TABLE outbox (id text PRIMARY KEY, payload bytea, doc jsonb)");
        let pool = PgPoolOptions::new()
            .connect_lazy_with(PgConnectOptions::from_str(&database.url("postgres")).unwrap());
        let table = TableName::parse("table", "outbox").unwrap();
        let slot = Slot { name: name.to_owned(), publication: name.to_owned(), table };
        assert!(slot.check(&pool).await.unwrap().slot.is_none());
        slot.create(&pool).await.unwrap();
        let facts = slot.check(&pool).await.unwrap();
        assert!(facts.slot.is_some_and(|slot| slot.is_ours));
        let options = Options {
            table: facts.table.unwrap(),
            heartbeat: Duration::from_millis(500),
            rows_max: 100,
            bytes_max: 1024 * 1024,
            column_max: 64 * 1024,
            byte_types: vec![BYTEA],
        };
        Case { database, pool, slot, options, stop: Stop::new() }
    }

    async fn open(&self) -> Result<Stream, Fault> {
        let target = Target::new(&self.pool.connect_options());
        let clock = Arc::new(SystemClock);
        Stream::open(&target, &self.slot, self.options.clone(), clock, self.stop.clone()).await
    }

    fn confirmed(&self) -> String {
        self.database.ask(&format!(
            "SELECT pg_current_wal_lsn() <= confirmed_flush_lsn FROM pg_replication_slots \
             WHERE slot_name = '{}'",
            self.slot.name
        ))
    }
}

fn text(row: &Row, column: usize) -> &str {
    let Column::Value(text) = &row.columns[column] else { panic!("{:?}", row.columns[column]) };
    std::str::from_utf8(text).unwrap()
}

/// Batches up to one that has rows.
async fn rows(stream: &mut Stream) -> Batch {
    within(async {
        loop {
            let batch = stream.batch().await.unwrap();
            if !batch.rows.is_empty() {
                return batch;
            }
        }
    })
    .await
}

#[tokio::test]
async fn rows_come_in_the_order_of_their_commits_and_rolled_back_ones_do_not() {
    let case = Case::new(Server::shared(), "order").await;
    let mut stream = case.open().await.unwrap();
    let mut late = case.pool.begin().await.unwrap();
    sqlx::raw_sql("INSERT INTO outbox VALUES ('first-written', NULL, '{\"a\": \"\\\\u0041\"}')")
        .execute(&mut *late)
        .await
        .unwrap();
    case.database.ask("INSERT INTO outbox VALUES ('committed-first', '\\x0001ff')");
    case.database.ask("BEGIN; INSERT INTO outbox VALUES ('never'); ROLLBACK");
    let batch = rows(&mut stream).await;
    assert_eq!(text(&batch.rows[0], 0), "committed-first");
    assert_eq!(batch.rows[0].columns[1], Column::Value(Bytes::from_static(b"\x00\x01\xff")));
    assert_eq!(batch.rows.len(), 1);
    late.commit().await.unwrap();
    let batch = rows(&mut stream).await;
    assert_eq!(text(&batch.rows[0], 0), "first-written");
    assert_eq!(batch.rows[0].columns[1], Column::Null);
    assert_eq!(batch.rows[0].relation.columns, ["id", "payload", "doc"]);

    // Not confirmed: it comes again.
    stream.close().await;
    let mut stream = within(async {
        loop {
            match case.open().await {
                Err(Fault::Busy(_)) => {}
                opened => break opened.unwrap(),
            }
        }
    })
    .await;
    let mut again = Vec::new();
    while again.len() < 2 {
        let batch = rows(&mut stream).await;
        again.extend(batch.rows.iter().map(|row| text(row, 0).to_owned()));
        stream.confirm(batch.upto.unwrap(), true).await.unwrap();
    }
    assert_eq!(again, ["committed-first", "first-written"]);
    assert!(matches!(case.open().await, Err(Fault::Busy(_))));
}

#[tokio::test]
async fn a_row_too_large_to_be_held_comes_without_what_is_too_large() {
    let case = Case::new(Server::shared(), "large").await;
    let mut stream = case.open().await.unwrap();
    case.database.ask(
        "INSERT INTO outbox VALUES ('huge', decode(repeat('ab', 4000000), 'hex'), '{\"n\": 1}'), \
         ('small', '\\x01', NULL)",
    );
    let batch = rows(&mut stream).await;
    assert_eq!(text(&batch.rows[0], 0), "huge");
    assert_eq!(batch.rows[0].columns[1], Column::TooLarge(8_000_002));
    assert_eq!(text(&batch.rows[0], 2), "{\"n\": 1}");
    let rest = match batch.rows.get(1) {
        Some(_) => batch,
        None => rows(&mut stream).await,
    };
    assert_eq!(text(rest.rows.last().unwrap(), 0), "small");
}

#[tokio::test]
async fn traffic_elsewhere_moves_the_position_of_a_quiet_table() {
    let case = Case::new(Server::shared(), "quiet").await;
    let mut stream = case.open().await.unwrap();
    case.database.ask("CREATE TABLE other (n int); INSERT INTO other SELECT generate_series(1, 9)");
    within(async {
        while case.confirmed() != "t" {
            let batch = stream.batch().await.unwrap();
            assert!(batch.rows.is_empty());
            if let Some(position) = batch.upto {
                stream.confirm(position, true).await.unwrap();
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_large_transaction_comes_in_pieces_and_only_its_end_may_be_confirmed() {
    let case = Case::new(Server::shared(), "pieces").await;
    let mut stream = case.open().await.unwrap();
    case.database.ask("INSERT INTO outbox SELECT n, NULL, NULL FROM generate_series(1, 1050) n");
    let (mut count, mut pieces) = (0, 0);
    loop {
        let batch = within(stream.batch()).await.unwrap();
        assert!(batch.rows.len() <= 100);
        count += batch.rows.len();
        pieces += usize::from(!batch.rows.is_empty());
        if count == 1050 && batch.upto.is_some() {
            break;
        }
        // What came before it may be confirmed beside its first piece.
        assert!(count <= 100 || batch.upto.is_none(), "{count} rows, {:?}", batch.upto);
    }
    assert_eq!(pieces, 11);
}

#[tokio::test]
async fn the_server_hears_from_us_while_the_hub_is_slow() {
    let case = Case::new(Server::shared(), "slow").await;
    let mut stream = case.open().await.unwrap();
    case.database.ask("INSERT INTO outbox VALUES ('a')");
    let batch = rows(&mut stream).await;
    // The server gives up after six heartbeats.
    let clock: &dyn Clock = &SystemClock;
    let slow = clock.sleep(case.options.heartbeat * 9);
    stream.during(slow).await;
    case.database.ask("INSERT INTO outbox VALUES ('b')");
    stream.confirm(batch.upto.unwrap(), true).await.unwrap();
    assert_eq!(text(&rows(&mut stream).await.rows[0], 0), "b");
}

#[tokio::test]
async fn a_stop_ends_the_wait_and_a_closed_stream_frees_its_slot() {
    let case = Case::new(Server::shared(), "stop").await;
    let mut stream = case.open().await.unwrap();
    case.stop.fire();
    within(async {
        loop {
            match stream.batch().await {
                Ok(batch) => assert!(batch.rows.is_empty()),
                Err(fault) => break assert_eq!(fault, Fault::Stopped),
            }
        }
    })
    .await;
    stream.close().await;
    let active = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'stop' AND active";
    within(async { while case.database.ask(active) != "0" {} }).await;
}
