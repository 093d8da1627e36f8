//! A hub whose store lies in the application's database: taken and marked in one transaction.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use pabal_core::{Limits, Message, Receipt, SendError, Sender, Verdict};
use serde_json::json;
use sqlx::{AssertSqlSafe, PgPool};

use crate::support::{Application, Hub, Kind, Relay, until};

/// Takes messages as such a store does: with what is to be done alongside, or not at all.
#[derive(Debug)]
struct Store {
    pool: PgPool,
    breaks: AtomicBool,
    forgets: AtomicBool,
    calls: Arc<Hub>,
}

impl Store {
    async fn accept(&self, batch: &[Message]) -> Result<(), sqlx::Error> {
        let mut transaction = self.pool.begin().await?;
        let mut statements: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for message in batch {
            let sql = "INSERT INTO taken VALUES ($1) ON CONFLICT DO NOTHING";
            sqlx::query(sql).bind(&message.origin.id).execute(&mut *transaction).await?;
            let alongside = message.arrival.alongside.as_ref().expect("a statement");
            statements.entry(&alongside.statement).or_default().push(&alongside.row);
        }
        assert_eq!(statements.len(), 1, "one statement for all");
        if !self.forgets.load(Ordering::Relaxed) {
            for (statement, rows) in statements {
                let count = rows.len() as u64;
                let query = sqlx::query(AssertSqlSafe(statement)).bind(rows);
                assert_eq!(query.execute(&mut *transaction).await?.rows_affected(), count);
            }
        }
        if self.breaks.swap(false, Ordering::Relaxed) {
            return transaction.rollback().await.and(Err(sqlx::Error::WorkerCrashed));
        }
        transaction.commit().await
    }
}

#[async_trait]
impl Sender for Store {
    fn limits(&self) -> Limits {
        self.calls.limits()
    }
    fn wire_size(&self, message: &Message) -> usize {
        self.calls.wire_size(message)
    }
    async fn send(&self, batch: &[Message]) -> Vec<Verdict> {
        let ended = self.accept(batch).await;
        let verdict = || match &ended {
            Ok(()) => Ok(Receipt::default()),
            Err(error) => Err(SendError::unreachable(error.to_string())),
        };
        batch.iter().map(|_| verdict()).collect()
    }
}

async fn with_store() -> (Application, Arc<Store>) {
    let application = Application::new(Kind::Postgres).await;
    application.run("CREATE TABLE taken (id text PRIMARY KEY)").await;
    let pool = application.postgres().1.clone();
    let (breaks, forgets) = (AtomicBool::new(false), AtomicBool::new(false));
    let store = Store { pool, breaks, forgets, calls: Hub::new() };
    (application, Arc::new(store))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_is_marked_in_the_transaction_that_takes_its_message_and_in_no_other() {
    let (application, store) = with_store().await;
    // The relay itself may write nothing at all.
    application.revoke_update();
    store.breaks.store(true, Ordering::Relaxed);
    application.write(&[("a1", "a"), ("a2", "a"), ("b1", "b")]).await;
    let receiver = crate::support::receiver(
        &application.url(),
        json!({ "one_transaction": true }),
        Arc::new(pabal_core::SystemClock),
    );
    let relay = Relay::run(receiver, store.clone());
    until("all to be sent", async || application.count("status = 'SENT'").await == 3).await;
    let taken = application.one("SELECT count(*)::text FROM taken").await;
    assert_eq!(taken, "3");
    assert_eq!(application.count("sent_at IS NOT NULL AND retry_count = 0").await, 3);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_taken_without_its_mark_is_marked_afterwards() {
    let (application, store) = with_store().await;
    store.forgets.store(true, Ordering::Relaxed);
    application.write(&[("a1", "a"), ("b1", "b")]).await;
    let receiver = crate::support::receiver(
        &application.url(),
        json!({ "one_transaction": true }),
        Arc::new(pabal_core::SystemClock),
    );
    let relay = Relay::run(receiver, store.clone());
    until("both to be sent", async || application.count("status = 'SENT'").await == 2).await;
    relay.stop().await;
}
