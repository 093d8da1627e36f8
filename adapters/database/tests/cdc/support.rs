//! An application's database, and a relay of its table.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use pabal_adapter_database::DatabaseAdapter;
use pabal_conformance::postgres::{Database, OWNER, Server};
use pabal_core::{
    Adapter, Answer, AnswerRule, Bytes, Clock, ConfigError, Context, Finding, Judgement,
    ReceiveError, Receiver, Secret, SecretReference, Secrets, Sender, Settings, State,
    StateConflict, StateValue, Stop, StoreError, SystemClock,
};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::{sync::watch, task::JoinHandle};

use crate::hub::Hub;

/// Nothing takes so long that works.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The output of what must end.
pub(crate) async fn within<F: Future>(what: &str, future: F) -> F::Output {
    let clock: &dyn Clock = &SystemClock;
    clock.timeout(LIMIT, future).await.unwrap_or_else(|| panic!("{what}: not within {LIMIT:?}"))
}

/// Asks for one value again and again until it is this one; meanwhile the relay goes on.
pub(crate) async fn until(database: &Database<'_>, question: &str, answer: &str) {
    let asking = async {
        let mut connection = PgConnection::connect(&database.url("postgres")).await.unwrap();
        let question = format!("SELECT ({question})::text");
        loop {
            let query = sqlx::query_as(AssertSqlSafe(question.as_str()));
            let (value,): (Option<String>,) = query.fetch_one(&mut connection).await.unwrap();
            if value.as_deref() == Some(answer) {
                break;
            }
        }
    };
    within(&format!("{question} = {answer}"), asking).await;
}

/// Small values, as the hub's store has them.
#[derive(Debug, Default)]
pub(crate) struct Memory(watch::Sender<HashMap<String, StateValue>>);

#[async_trait]
impl State for Memory {
    async fn get(&self, name: &str) -> Result<Option<StateValue>, StoreError> {
        Ok(self.0.borrow().get(name).cloned())
    }

    async fn compare_and_set(
        &self,
        name: &str,
        revision: i64,
        value: Bytes,
    ) -> Result<Result<(), StateConflict>, StoreError> {
        let written = self.0.send_if_modified(|values| {
            let is_same = values.get(name).map_or(0, |value| value.revision) == revision;
            if is_same {
                values.insert(name.to_owned(), StateValue { revision: revision + 1, value });
            }
            is_same
        });
        Ok(if written { Ok(()) } else { Err(StateConflict) })
    }
}

#[derive(Debug)]
struct Url(String);

impl Secrets for Url {
    fn get(&self, _: &str, _: &SecretReference) -> Result<Secret, ConfigError> {
        Ok(Secret::new(&*self.0))
    }

    fn path(&self, path: &Path) -> PathBuf {
        path.to_owned()
    }
}

#[derive(Debug)]
struct NoRule;

impl AnswerRule for NoRule {
    fn judge(&self, _: &Answer) -> Option<Judgement> {
        None
    }
}

/// The largest body, in bytes.
pub(crate) const BODY_MAX: usize = 1024 * 1024;

/// An application's database with its outbox table, and what a hub keeps of it.
#[derive(Debug)]
pub(crate) struct Application<'s> {
    pub(crate) database: Database<'s>,
    pub(crate) slot: String,
    url: String,
    cdc: Value,
    pub(crate) state: Arc<Memory>,
}

/// A relay that runs.
#[derive(Debug)]
pub(crate) struct Running {
    stop: Stop,
    task: JoinHandle<Result<(), ReceiveError>>,
}

impl Running {
    /// Stops it, and sees it end.
    pub(crate) async fn stop(self) {
        self.stop.fire();
        within("the relay stops", self.task).await.unwrap().unwrap();
    }

    /// Ends it as a crash would.
    pub(crate) async fn crash(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

impl<'s> Application<'s> {
    /// An application whose table is relayed by its owner, who may replicate.
    pub(crate) fn new(server: &'s Server) -> Application<'s> {
        let database = server.database();
        database.ask(&format!("ALTER ROLE {OWNER} REPLICATION; SET ROLE {OWNER}; {TABLE}"));
        // One name in the whole server.
        let url = database.url(OWNER);
        let slot = format!("pabal_{}", url.rsplit('/').next().unwrap());
        let cdc = json!({ "slot": slot, "publication": slot, "heartbeat": "300ms" });
        Application { database, slot, url, cdc, state: Arc::default() }
    }

    /// An application with what `migrations/app-side` says, relayed by the account that may only read.
    pub(crate) fn documented(server: &'s Server) -> Application<'s> {
        let database = server.database();
        database.ask(include_str!("../../../../migrations/app-side/postgres/outbox.sql"));
        database.ask(include_str!("../../../../migrations/app-side/postgres/cdc.sql"));
        let url = database.url("pabal_cdc");
        let slot = "pabal_welfare_applications".to_owned();
        let cdc = json!({ "heartbeat": "300ms" });
        Application { database, slot, url, cdc, state: Arc::default() }
    }

    /// The same with another way in.
    pub(crate) fn at(self, url: String) -> Self {
        Self { url, ..self }
    }

    /// The same with one more setting of `cdc`.
    pub(crate) fn cdc(mut self, key: &str, value: Value) -> Self {
        self.cdc[key] = value;
        self
    }

    fn receiver(&self) -> Box<dyn Receiver> {
        let settings = json!({
            "url": { "env": "URL" },
            "relay": "cdc",
            // No poll may be what brings a row.
            "interval": "1h",
            "idle_interval": "1h",
            "cdc": self.cdc,
        });
        DatabaseAdapter.receiver(context(&self.url, settings, Arc::clone(&self.state))).unwrap()
    }

    /// What a look finds, each with its weight before it.
    pub(crate) async fn probe(&self) -> Vec<String> {
        let found = self.receiver().probe().await;
        let line = |finding: &Finding| format!("{:?}: {}", finding.severity, finding.what);
        found.iter().map(line).collect()
    }

    /// Runs the relay.
    pub(crate) fn relay(&self, hub: &Arc<Hub>) -> Running {
        let receiver = self.receiver();
        assert!(receiver.exclusive(), "only one node may run it");
        let (inbox, stop) = (Arc::clone(hub) as Arc<dyn Sender>, Stop::new());
        let its_stop = stop.clone();
        let task = tokio::spawn(async move { receiver.run(inbox, its_stop).await });
        Running { stop, task }
    }

    /// One transaction of one row.
    pub(crate) fn commit(&self, id: &str) {
        self.database.ask(&insert(id));
    }

    /// Waits until all that is in the log by now has been confirmed.
    pub(crate) async fn confirmed(&self) {
        let end = self.database.ask("SELECT pg_current_wal_lsn()");
        let question = format!(
            "SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots \
             WHERE slot_name = '{}'",
            self.slot
        );
        until(&self.database, &question, "true").await;
    }

    /// Waits until new rows come from the stream, and from nowhere else.
    pub(crate) async fn streaming(&self) {
        let active = format!(
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{}' AND active",
            self.slot
        );
        until(&self.database, &active, "1").await;
        let mut values = self.state.0.subscribe();
        let is_read = |values: &HashMap<String, StateValue>| {
            values.get("cdc.read-for").is_some_and(|it| !it.value.is_empty())
        };
        within("the table is read", values.wait_for(is_read)).await.unwrap();
    }
}

/// The keys of what is wrong with these settings.
pub(crate) fn faults(url: &str, settings: Value) -> Vec<String> {
    let faults = DatabaseAdapter.receiver(context(url, settings, Arc::default())).unwrap_err();
    faults.into_iter().map(|fault| fault.key).collect()
}

fn context(url: &str, settings: Value, state: Arc<Memory>) -> Context {
    Context {
        name: "welfare/applications".parse().unwrap(),
        settings: Settings(settings),
        secrets: Arc::new(Url(url.to_owned())),
        clock: Arc::new(SystemClock),
        state,
        answer: Arc::new(NoRule),
        alongside: true,
        body_bytes_max: BODY_MAX,
    }
}

/// The statement that writes one row.
pub(crate) fn insert(id: &str) -> String {
    format!(
        "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('{id}', 'application', 'k', 'application.submitted', '{{}}')"
    )
}

const TABLE: &str = "CREATE TABLE outbox (
    id text PRIMARY KEY, seq bigint GENERATED ALWAYS AS IDENTITY, aggregate_type text,
    aggregate_id text, event_type text, payload bytea, content_type text, schema_version text,
    version bigint, correlation_id text, causation_id text, traceparent text, destination text,
    headers jsonb, status text NOT NULL DEFAULT 'NEW', retry_count int NOT NULL DEFAULT 0,
    last_error text, created_at timestamptz DEFAULT clock_timestamp(), sent_at timestamptz)";
