//! Every case that a store must pass, on databases of their own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use pabal_conformance::{
    postgres::{Database, Server},
    store::{Subject, check},
};
use pabal_core::Store;
use pabal_store_postgres::PostgresStore;

use crate::kit::{open, prepared};

#[derive(Debug)]
struct InDatabase {
    database: Database<'static>,
    ahead: AtomicI64,
    store: Arc<PostgresStore>,
}

#[async_trait]
impl Subject for InDatabase {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    async fn pass(&self, time: Duration) {
        let micros = i64::try_from(time.as_micros()).unwrap();
        let ahead = self.ahead.fetch_add(micros, Ordering::SeqCst) + micros;
        self.database.stop_clock(ahead);
    }

    async fn another(&self) -> Arc<dyn Store> {
        open(&self.database).await
    }

    async fn reopen(&mut self) {
        self.store.close().await;
        self.store = open(&self.database).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_does_all_that_a_store_must() {
    check(
        async || {
            let database = prepared(Server::shared()).await;
            database.stop_clock(0);
            let store = open(&database).await;
            InDatabase { database, ahead: AtomicI64::new(0), store }
        },
        &[],
    )
    .await;
}
