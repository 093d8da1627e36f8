//! On PostgreSQL.

use pabal_conformance::postgres::{Database, OWNER, RUNTIME, Server};
use sqlx::PgPool;

type Pool = PgPool;

const ROW: &str = "SELECT id::text, aggregate_type, aggregate_id, event_type, payload, \
    content_type, schema_version, version, correlation_id, causation_id, traceparent, destination, \
    headers::text, status::text FROM outbox ORDER BY seq";

struct Opened(Database<'static>);

impl Opened {
    async fn pool(&self) -> PgPool {
        PgPool::connect(&self.0.url(OWNER)).await.unwrap()
    }
}

async fn open() -> Opened {
    let database = Opened(Server::shared().database());
    let table = AssertSqlSafe(crate::table("postgres"));
    sqlx::raw_sql(table).execute(&database.pool().await).await.unwrap();
    database
}

cases!(postgres);
renaming!("\"");

async fn enqueue(pool: &PgPool) -> Result<(), Error> {
    let message = about("A-1").build()?;
    let mut transaction = pool.begin().await?;
    match outbox::enqueue(&mut transaction, &message).await {
        Ok(()) => transaction.commit().await?,
        Err(error) => {
            // Now: a dropped one keeps its locks until the connection is used again.
            transaction.rollback().await?;
            return Err(error);
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_role_that_may_only_insert_is_enough() {
    let database = open().await;
    database.0.ask(&format!("GRANT INSERT ON outbox TO {RUNTIME}"));
    let pool = PgPool::connect(&database.0.url(RUNTIME)).await.unwrap();
    enqueue(&pool).await.unwrap();
    assert!(sqlx::query(ROW).fetch_all(&pool).await.is_err());
}

#[tokio::test]
async fn a_column_that_would_change_the_bytes_takes_nothing() {
    let database = open().await;
    let pool = database.pool().await;
    for (other, using) in [("text", "''"), ("varchar(100)", "payload")] {
        database.0.ask(&format!("ALTER TABLE outbox ALTER payload TYPE {other} USING {using}"));
        let error = enqueue(&pool).await.unwrap_err();
        assert!(matches!(error, Error::NotTaken { taken: 0, given: 1, .. }), "{error}");
    }
    database.0.ask("ALTER TABLE outbox ALTER payload TYPE jsonb USING payload::jsonb");
    let error = enqueue(&pool).await.unwrap_err();
    assert!(error.to_string().contains("\"payload\" is of type jsonb"), "{error}");
    database.0.ask("ALTER TABLE outbox ALTER payload TYPE bytea USING ''::bytea");
    enqueue(&pool).await.unwrap();
}

#[tokio::test]
async fn a_row_that_a_trigger_swallows_is_an_error() {
    let database = open().await;
    database.0.ask(
        "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; \
         CREATE TRIGGER swallow BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION swallow()",
    );
    let error = enqueue(&database.pool().await).await.unwrap_err();
    assert!(matches!(error, Error::NotTaken { taken: 0, given: 1, .. }), "{error}");
}

#[tokio::test]
async fn an_id_and_headers_of_type_text_are_taken_as_well() {
    let database = open().await;
    database.0.ask(
        "ALTER TABLE outbox ALTER id DROP DEFAULT, ALTER id TYPE text, ALTER headers DROP DEFAULT, \
         ALTER headers TYPE text",
    );
    let pool = database.pool().await;
    enqueue(&pool).await.unwrap();
    let id: uuid::Uuid = ids(&pool).await[0].parse().unwrap();
    assert_eq!(id.get_version_num(), 7);
}
