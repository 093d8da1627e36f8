//! On SQLite.

use sqlx::{SqlitePool, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

type Pool = SqlitePool;

const ROW: &str = "SELECT id, aggregate_type, aggregate_id, event_type, payload, content_type, \
    schema_version, version, correlation_id, causation_id, traceparent, destination, headers, \
    status FROM outbox ORDER BY seq";

struct Opened(TempDir);

impl Opened {
    async fn pool(&self) -> SqlitePool {
        let file = self.0.path().join("application.db");
        let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
        SqlitePool::connect_with(options).await.unwrap()
    }
}

async fn open() -> Opened {
    let database = Opened(TempDir::with_prefix("pabal-outbox-").unwrap());
    let table = AssertSqlSafe(crate::table("sqlite"));
    sqlx::raw_sql(table).execute(&database.pool().await).await.unwrap();
    database
}

cases!(sqlite);
renaming!("\"");
