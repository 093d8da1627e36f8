//! On MariaDB.

use pabal_conformance::mariadb::{Database, OWNER, Server};
use sqlx::MySqlPool;

type Pool = MySqlPool;

const ROW: &str = "SELECT CAST(id AS CHAR) AS id, aggregate_type, aggregate_id, event_type, \
    payload, content_type, schema_version, version, correlation_id, causation_id, traceparent, \
    destination, CAST(headers AS CHAR) AS headers, CAST(status AS CHAR) AS status \
    FROM outbox ORDER BY seq";

struct Opened(Database<'static>);

impl Opened {
    async fn pool(&self) -> MySqlPool {
        MySqlPool::connect(&self.0.url(OWNER)).await.unwrap()
    }
}

async fn open() -> Opened {
    let database = Opened(Server::shared().database());
    let table = AssertSqlSafe(crate::table("mysql"));
    sqlx::raw_sql(table).execute(&database.pool().await).await.unwrap();
    database
}

cases!(mysql);
renaming!("`");
