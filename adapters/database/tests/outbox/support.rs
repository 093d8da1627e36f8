//! Applications' databases, a hub that can be told what to say, and relays between the two.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use pabal_adapter_database::DatabaseAdapter;
use pabal_conformance::{mariadb, postgres};
use pabal_core::{
    Adapter, Answer, AnswerRule, Bytes, Clock, ConfigError, Context, Judgement, ReceiveError,
    Receiver, Secret, SecretReference, Secrets, Sender, Settings, State, StateConflict, StateValue,
    Stop, StoreError, SystemClock,
};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Row};
use tokio_util::task::AbortOnDropHandle;

/// Which kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Postgres,
    MariaDb,
    Sqlite,
}

/// One claim on each kind of database.
macro_rules! on_each {
    ($($claim:ident),* $(,)?) => {
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $claim() { super::$claim(crate::support::Kind::Postgres).await; })*
        }
        mod on_mariadb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $claim() { super::$claim(crate::support::Kind::MariaDb).await; })*
        }
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $claim() { super::$claim(crate::support::Kind::Sqlite).await; })*
        }
    };
}
pub(crate) use on_each;

pub(crate) use crate::hub::{Hub, word};

/// An application's database; the application may do everything in it.
#[derive(Debug, Clone)]
pub(crate) struct Application(Arc<Place>);

#[derive(Debug)]
enum Place {
    Postgres(postgres::Database<'static>, sqlx::PgPool),
    MariaDb(mariadb::Database<'static>, sqlx::MySqlPool),
    Sqlite(tempfile::TempDir, sqlx::SqlitePool),
}

macro_rules! each {
    ($place:expr, $pool:ident => $act:expr) => {
        match $place {
            Place::Postgres(_, $pool) => $act,
            Place::MariaDb(_, $pool) => $act,
            Place::Sqlite(_, $pool) => $act,
        }
    };
}

const FILES: [&str; 3] = [
    include_str!("../../../../migrations/app-side/postgres/outbox.sql"),
    include_str!("../../../../migrations/app-side/mysql/outbox.sql"),
    include_str!("../../../../migrations/app-side/sqlite/outbox.sql"),
];

impl Application {
    /// With an empty database.
    pub(crate) async fn bare(kind: Kind) -> Self {
        let application = match kind {
            Kind::Postgres => Self::of_postgres(postgres::Server::shared().database()),
            Kind::MariaDb => Self::of_mariadb(mariadb::Server::shared().database()),
            Kind::Sqlite => {
                let folder = tempfile::tempdir().unwrap();
                let options = sqlx::sqlite::SqliteConnectOptions::new()
                    .filename(folder.path().join("application.db"))
                    .create_if_missing(true)
                    .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal);
                let pool = sqlx::SqlitePool::connect_lazy_with(options);
                Self(Arc::new(Place::Sqlite(folder, pool)))
            }
        };
        // SQLite's file is made by the first connection.
        application.one("SELECT '1'").await;
        application
    }

    fn of_postgres(database: postgres::Database<'static>) -> Self {
        let pool = sqlx::PgPool::connect_lazy(&database.url(postgres::OWNER)).unwrap();
        Self(Arc::new(Place::Postgres(database, pool)))
    }

    fn of_mariadb(database: mariadb::Database<'static>) -> Self {
        let pool = sqlx::MySqlPool::connect_lazy(&database.url(mariadb::OWNER)).unwrap();
        Self(Arc::new(Place::MariaDb(database, pool)))
    }

    /// With the documented table, on a server of the caller's.
    pub(crate) async fn on_postgres(database: postgres::Database<'static>) -> Self {
        Self::of_postgres(database).with_table().await
    }

    /// With the documented table, on a server of the caller's.
    pub(crate) async fn on_mariadb(database: mariadb::Database<'static>) -> Self {
        Self::of_mariadb(database).with_table().await
    }

    /// With the documented outbox table, and the documented rights for the relay.
    pub(crate) async fn new(kind: Kind) -> Self {
        Self::bare(kind).await.with_table().await
    }

    async fn with_table(self) -> Self {
        let file = FILES[self.kind() as usize];
        self.run(file).await;
        self.grant(file);
        self
    }

    /// Returns once the server answers again, on whatever connection.
    pub(crate) async fn renew(&self) {
        until(
            "an answer of the server",
            async || each!(&*self.0, pool => sqlx::query("SELECT 1").execute(pool).await.is_ok()),
        )
        .await;
    }

    /// Takes the right to write back from the relay's account.
    pub(crate) fn revoke_update(&self) {
        match &*self.0 {
            Place::Postgres(database, _) => {
                database.ask(
                    "REVOKE UPDATE (status, retry_count, last_error, sent_at) ON outbox FROM runtime",
                );
            }
            Place::MariaDb(database, _) => {
                let name = database.name();
                database.ask(&format!("REVOKE ALL ON {name}.outbox FROM runtime"));
                database.ask(&format!("GRANT SELECT ON {name}.outbox TO runtime"));
            }
            Place::Sqlite(..) => {}
        }
    }

    /// Gives the relay's account what the comments of a file say.
    fn grant(&self, file: &str) {
        let lines = file.lines().filter_map(|line| line.strip_prefix("--   "));
        let grants: Vec<_> = lines.filter(|line| line.starts_with("GRANT")).collect();
        for grant in grants {
            let grant = grant.split(';').next().unwrap();
            match &*self.0 {
                Place::Postgres(database, _) => {
                    database.ask(&grant.replace("pabal_relay", postgres::RUNTIME));
                }
                Place::MariaDb(database, _) => {
                    let grant = grant.replace("app.", &format!("{}.", database.name()));
                    database.ask(&grant.replace("pabal_relay", mariadb::RUNTIME));
                }
                Place::Sqlite(..) => {}
            }
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match &*self.0 {
            Place::Postgres(..) => Kind::Postgres,
            Place::MariaDb(..) => Kind::MariaDb,
            Place::Sqlite(..) => Kind::Sqlite,
        }
    }

    pub(crate) fn postgres(&self) -> (&postgres::Database<'static>, &sqlx::PgPool) {
        match &*self.0 {
            Place::Postgres(database, pool) => (database, pool),
            other => panic!("not on {other:?}"),
        }
    }

    /// The URL for the relay: with few rights where there are any.
    pub(crate) fn url(&self) -> String {
        match &*self.0 {
            Place::Postgres(database, _) => database.url(postgres::RUNTIME),
            Place::MariaDb(database, _) => database.url(mariadb::RUNTIME),
            Place::Sqlite(folder, _) => {
                format!("sqlite:{}", folder.path().join("application.db").display())
            }
        }
    }

    /// Runs statements.
    pub(crate) async fn run(&self, sql: &str) {
        let done = each!(&*self.0, pool => {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await.map(drop)
        });
        done.unwrap_or_else(|error| panic!("{error}: {sql:.400}"));
    }

    /// The text that a question has as its answer; empty if it has none.
    pub(crate) async fn one(&self, sql: &str) -> String {
        let answer: Result<Option<String>, _> = each!(&*self.0, pool => {
            sqlx::query(AssertSqlSafe(sql)).fetch_optional(pool).await.and_then(|row| {
                row.map(|row| row.try_get_unchecked(0)).transpose().map(Option::flatten)
            })
        });
        answer.unwrap_or_else(|error| panic!("{error}: {sql:.400}")).unwrap_or_default()
    }

    /// A number.
    pub(crate) async fn count(&self, condition: &str) -> u64 {
        let text = match self.kind() {
            Kind::MariaDb => "CAST(count(*) AS CHAR)",
            _ => "CAST(count(*) AS text)",
        };
        let sql = format!("SELECT {text} FROM outbox WHERE {condition}");
        self.one(&sql).await.parse().unwrap()
    }

    /// The status of a row.
    pub(crate) async fn status(&self, id: &str) -> String {
        self.one(&format!("SELECT status FROM outbox WHERE {}", self.is(id))).await
    }

    /// The condition that a row has this id.
    pub(crate) fn is(&self, id: &str) -> String {
        format!("id = '{}'", self.id(id))
    }

    /// An id as the documented table takes it, from a short word; the same each time.
    pub(crate) fn id(&self, word: &str) -> String {
        match self.kind() {
            Kind::Postgres => {
                uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, word.as_bytes()).to_string()
            }
            _ => word.to_owned(),
        }
    }

    /// Bytes in a statement.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> String {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self.kind() {
            Kind::Postgres => format!("'\\x{hex}'::bytea"),
            Kind::MariaDb | Kind::Sqlite => format!("X'{hex}'"),
        }
    }

    /// The statement that writes one row of a key into the outbox.
    pub(crate) fn insert(&self, id: &str, key: &str) -> String {
        format!(
            "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) \
             VALUES ('{}', 'application', '{key}', 'application.submitted', {});",
            self.id(id),
            self.bytes(format!("{{\"id\":\"{id}\"}}").as_bytes())
        )
    }

    /// Writes rows, each by its id and key, in one transaction.
    pub(crate) async fn write(&self, rows: &[(&str, &str)]) {
        let rows: String = rows.iter().map(|(id, key)| self.insert(id, key)).collect();
        self.run(&format!("BEGIN; {rows} COMMIT;")).await;
    }
}

/// A relay that runs until it is dropped.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) stop: Stop,
    pub(crate) task: AbortOnDropHandle<Result<(), ReceiveError>>,
}

impl Relay {
    /// One with these settings over quick ones.
    pub(crate) fn start(application: &Application, hub: &Arc<Hub>, settings: Value) -> Self {
        let receiver = receiver(&application.url(), settings, Arc::new(SystemClock));
        Self::run(receiver, Arc::clone(hub) as Arc<dyn Sender>)
    }

    pub(crate) fn run(receiver: Arc<dyn Receiver>, hub: Arc<dyn Sender>) -> Self {
        let stop = Stop::new();
        let own = stop.clone();
        // Shown where a test fails.
        tracing_subscriber::fmt().with_test_writer().try_init().ok();
        let task = tokio::spawn(async move {
            let ended = receiver.run(hub, own).await;
            if let Err(error) = &ended {
                tracing::error!("the receiver ended: {error}");
            }
            ended
        });
        Self { stop, task: AbortOnDropHandle::new(task) }
    }

    /// Stops it.
    pub(crate) async fn stop(self) {
        self.stop.fire();
        within("the end of a relay", self.task).await.unwrap().unwrap();
    }

    /// As the end of its process would.
    pub(crate) async fn kill(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

/// A receiver as the hub makes one.
pub(crate) fn receiver(url: &str, settings: Value, clock: Arc<dyn Clock>) -> Arc<dyn Receiver> {
    let mut all = json!({ "interval": "20ms", "idle_interval": "50ms" });
    all.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    DatabaseAdapter.receiver(context(url, all, clock)).unwrap().into()
}

/// What is wrong with settings, by key.
pub(crate) fn faults(url: &str, settings: Value) -> Vec<String> {
    let context = context(url, settings, Arc::new(SystemClock));
    let faults = DatabaseAdapter.receiver(context).err().unwrap_or_default();
    faults.into_iter().map(|fault| fault.key).collect()
}

pub(crate) fn context(url: &str, mut settings: Value, clock: Arc<dyn Clock>) -> Context {
    settings["url"] = json!({ "env": "URL" });
    Context {
        name: "city/applications".parse().unwrap(),
        settings: Settings(settings),
        secrets: Arc::new(Url(url.to_owned())),
        clock,
        state: Arc::new(Nothing),
        answer: Arc::new(Nothing),
        alongside: true,
        body_bytes_max: 1024 * 1024,
    }
}

/// `{ env = "URL" }` is this URL.
#[derive(Debug)]
struct Url(String);

impl Secrets for Url {
    fn get(&self, key: &str, reference: &SecretReference) -> Result<Secret, ConfigError> {
        match reference {
            SecretReference::Env(name) if name == "URL" => Ok(Secret::new(self.0.clone())),
            _ => Err(ConfigError::new(key, format!("{reference} is not there"))),
        }
    }

    fn path(&self, path: &std::path::Path) -> PathBuf {
        path.to_owned()
    }
}

#[derive(Debug)]
struct Nothing;

#[async_trait]
impl State for Nothing {
    async fn get(&self, _: &str) -> Result<Option<StateValue>, StoreError> {
        Ok(None)
    }
    async fn compare_and_set(
        &self,
        _: &str,
        _: i64,
        _: Bytes,
    ) -> Result<Result<(), StateConflict>, StoreError> {
        Ok(Ok(()))
    }
}

impl AnswerRule for Nothing {
    fn judge(&self, _: &Answer) -> Option<Judgement> {
        None
    }
}

/// Nothing a test waits for takes this long.
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) async fn within<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: did not happen within {LIMIT:?}"),
    }
}

/// Asks again and again until the answer is yes.
pub(crate) async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    within(what, async {
        let mut ticks = tokio::time::interval(Duration::from_millis(10));
        while !is().await {
            ticks.tick().await;
        }
    })
    .await;
}
