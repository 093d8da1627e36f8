//! Every case that a store must pass, on files of their own.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail as tests do")]

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use pabal_conformance::store::{Subject, check};
use pabal_core::{ManualClock, Store};
use pabal_store_sqlite::{Options, SqliteStore};

#[derive(Debug)]
struct OnDisk {
    folder: tempfile::TempDir,
    clock: ManualClock,
    store: Arc<SqliteStore>,
}

async fn open(folder: &tempfile::TempDir, clock: &ManualClock) -> Arc<SqliteStore> {
    let options =
        Options { path: folder.path().join("hub.db"), hub_name: "conformance".to_owned() };
    let store = SqliteStore::open(options, Arc::new(clock.clone())).await;
    Arc::new(store.unwrap())
}

#[async_trait]
impl Subject for OnDisk {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    async fn another(&self) -> Arc<dyn Store> {
        open(&self.folder, &self.clock).await
    }

    async fn reopen(&mut self) {
        self.store.close().await;
        self.store = open(&self.folder, &self.clock).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_does_all_that_a_store_must() {
    check(
        async || {
            let folder = tempfile::tempdir().unwrap();
            let clock = ManualClock::default();
            let store = open(&folder, &clock).await;
            OnDisk { folder, clock, store }
        },
        &[],
    )
    .await;
}
