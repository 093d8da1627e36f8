//! The kit for adapters, its sending half, on all three databases.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use pabal_conformance::adapter::{
    Arrived, BODY_BYTES_MAX, Fault, Feature, Origin, Partner, Subject, check,
};
use pabal_core::{Bytes, Headers, Sender};
use serde_json::json;

use super::{
    application::{Application, Kind},
    proxy::Proxy,
};
use crate::support;

const RECEIVES: (Feature, &str) = (Feature::Receives, "the inbox table is a way out");
const PAUSE: (Feature, &str) = (Feature::Pause, "a database asks nobody to come later");
const WIRE: (Feature, &str) =
    (Feature::WireBytes, "a table does not know what its rows were on a wire");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgresql_does_all_that_an_adapter_must() {
    check(&Tables(Kind::Postgres), &[RECEIVES, PAUSE, WIRE]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_does_all_that_an_adapter_must() {
    check(&Tables(Kind::MySql), &[RECEIVES, PAUSE, WIRE]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_does_all_that_an_adapter_must() {
    let file = "it is a file: there is no wire, one writer, and no lock on one row";
    let cannot = [Feature::OutOfReach, Feature::Cut, Feature::Fail, Feature::Hold];
    let mut cannot = cannot.map(|feature| (feature, file)).to_vec();
    cannot.extend([RECEIVES, PAUSE, WIRE]);
    check(&Tables(Kind::Sqlite), &cannot).await;
}

/// Inbox tables on one kind of database.
#[derive(Debug)]
struct Tables(Kind);

#[async_trait]
impl Subject for Tables {
    async fn partner(&self) -> Box<dyn Partner> {
        let application = Application::new(self.0).await;
        let eye = Eye::of(&application).await;
        eye.ask(faults(self.0)).await;
        if self.0 == Kind::Postgres {
            application.run("GRANT SELECT ON inbox, application TO owner").await;
            application.run("GRANT SELECT ON fault TO runtime").await;
            application.run(ON_POSTGRES).await;
        }
        let proxy = (self.0 != Kind::Sqlite).then(|| Proxy::to(application.port()));
        Box::new(Inbox { application, eye, proxy, fault: Mutex::default() })
    }

    async fn origin(&self) -> Box<dyn Origin> {
        unreachable!("said not to receive")
    }
}

/// On PostgreSQL the trigger is the superuser's, as the table is.
const ON_POSTGRES: &str = "CREATE FUNCTION wrong() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ \
             DECLARE found text := (SELECT what FROM fault WHERE id = new.id); BEGIN \
             CASE found WHEN 'refuse' THEN RAISE 'not like this'; \
             WHEN 'fail' THEN RAISE 'not now' USING ERRCODE = 'serialization_failure'; \
             WHEN 'hold' THEN PERFORM pg_advisory_xact_lock_shared(1); \
             ELSE NULL; END CASE; RETURN new; END $$; \
             CREATE TRIGGER wrong BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION wrong()";

/// A table of what is to go wrong, and a trigger that sees to it.
fn faults(kind: Kind) -> &'static str {
    match kind {
        Kind::Postgres => "CREATE TABLE fault (id uuid, what text)",
        Kind::MySql => {
            "CREATE TABLE fault (id char(36) COLLATE ascii_bin, what varchar(9)) ENGINE = InnoDB \
             CHARACTER SET ascii; \
             CREATE TRIGGER wrong BEFORE INSERT ON inbox FOR EACH ROW \
             IF (SELECT what FROM fault WHERE id = new.id) = 'refuse' THEN \
             SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not like this'; \
             ELSEIF (SELECT what FROM fault WHERE id = new.id) = 'fail' THEN \
             SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'not now'; \
             ELSEIF (SELECT what FROM fault WHERE id = new.id) = 'hold' THEN \
             DO GET_LOCK(CONCAT('hold', DATABASE()), 60), \
             RELEASE_LOCK(CONCAT('hold', DATABASE())); END IF"
        }
        Kind::Sqlite => {
            "CREATE TABLE fault (id TEXT, what TEXT); \
             CREATE TRIGGER wrong BEFORE INSERT ON inbox \
             WHEN (SELECT what FROM fault WHERE id = new.id) = 'refuse' \
             BEGIN SELECT RAISE(ABORT, 'not like this'); END"
        }
    }
}

#[derive(Debug)]
struct Inbox {
    application: Application,
    eye: Eye,
    proxy: Option<Proxy>,
    fault: Mutex<Option<(Fault, Option<Holder>)>>,
}

/// Holds a lock for as long as it is there.
#[derive(Debug)]
enum Holder {
    Postgres(#[expect(dead_code, reason = "held")] sqlx::PgConnection),
    MySql(#[expect(dead_code, reason = "held")] sqlx::MySqlConnection),
}

impl Inbox {
    /// Lets whoever comes to the lock wait.
    async fn hold(&self) -> Holder {
        use sqlx::{Connection, Executor};
        match self.application.kind {
            Kind::Postgres => {
                let url = self.application.url();
                let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
                connection.execute("SELECT pg_advisory_lock(1)").await.unwrap();
                Holder::Postgres(connection)
            }
            _ => {
                let url = self.application.url();
                let mut connection = sqlx::MySqlConnection::connect(&url).await.unwrap();
                let lock = "SELECT GET_LOCK(CONCAT('hold', DATABASE()), 10)";
                connection.execute(lock).await.unwrap();
                Holder::MySql(connection)
            }
        }
    }

    /// Whether somebody waits at the lock.
    async fn waits(&self) -> bool {
        let waiting = match self.application.kind {
            Kind::Postgres => {
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            }
            _ => {
                "SELECT count(*) FROM information_schema.processlist \
                 WHERE state = 'User lock' AND db = DATABASE()"
            }
        };
        self.eye.ask(waiting).await != ["0"]
    }
}

#[async_trait]
impl Partner for Inbox {
    async fn sender(&self) -> Arc<dyn Sender> {
        let mut url = self.application.url();
        if let Some(proxy) = &self.proxy {
            let port = self.application.port();
            url = url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
        }
        let apply = "INSERT INTO application (memo) VALUES (:id)";
        support::sender_up_to(&url, json!({ "apply": apply }), BODY_BYTES_MAX)
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let text = match self.application.kind {
            Kind::Postgres => {
                "json_build_array(i.id, headers, encode(payload, 'hex'), \
                content_type, traceparent, origin_source, origin_id, event_type, aggregate_id, \
                i.version::text, schema_version, occurred_at, subject, correlation_id, causation_id)"
            }
            Kind::MySql => {
                "json_array(i.id, json_extract(headers, '$'), hex(payload), content_type, \
                traceparent, origin_source, origin_id, event_type, aggregate_id, \
                cast(i.version AS char), schema_version, occurred_at, subject, correlation_id, \
                causation_id)"
            }
            Kind::Sqlite => {
                "json_array(i.id, json(headers), hex(payload), content_type, traceparent, \
                origin_source, origin_id, event_type, aggregate_id, cast(i.version AS text), \
                schema_version, occurred_at, subject, correlation_id, causation_id)"
            }
        };
        // What was not done is not there: both come together.
        let id = if self.application.kind == Kind::Postgres { "i.id::text" } else { "i.id" };
        let all = format!(
            "SELECT {text} FROM inbox i JOIN application a ON a.memo = {id} ORDER BY a.seq"
        );
        let mut all: Vec<_> = self.eye.ask(&all).await.iter().map(|row| arrived(row)).collect();
        let held = match &*self.fault.lock().unwrap() {
            Some((Fault::Hold(id), Some(_))) => Some(id.to_string()),
            _ => None,
        };
        if let Some(id) = held
            && self.waits().await
        {
            let (headers, body) = (Headers::default(), Bytes::new());
            all.push(Arrived { id, headers, body, wire_bytes: None });
        }
        all
    }

    async fn fail(&self, fault: Fault) {
        let mut holder = None;
        let what = match fault {
            Fault::Refuse(id) => Some((id, "refuse")),
            Fault::Fail(id) => Some((id, "fail")),
            Fault::Hold(id) => {
                holder = Some(self.hold().await);
                Some((id, "hold"))
            }
            Fault::OutOfReach | Fault::Cut | Fault::Pause(_) => None,
        };
        if let Some((id, what)) = what {
            self.eye.ask(&format!("INSERT INTO fault VALUES ('{id}', '{what}')")).await;
        }
        match (&self.proxy, fault) {
            (Some(proxy), Fault::OutOfReach) => proxy.down().await,
            (Some(proxy), Fault::Cut) => proxy.cut_next_commit(),
            _ => {}
        }
        *self.fault.lock().unwrap() = Some((fault, holder));
    }

    async fn mend(&self) {
        // Who waits for the lock has read the table of faults, and may have locked it.
        *self.fault.lock().unwrap() = None;
        self.eye.ask("DELETE FROM fault").await;
        if let Some(proxy) = &self.proxy {
            proxy.up();
        }
    }
}

/// Looks on, by connections of its own: a case looks more often than programs are started.
#[derive(Debug)]
enum Eye {
    Postgres(sqlx::PgPool),
    MySql(sqlx::MySqlPool),
    Sqlite(sqlx::SqlitePool),
}

impl Eye {
    async fn of(application: &Application) -> Self {
        let url = application.owners_url();
        match application.kind {
            Kind::Postgres => Self::Postgres(sqlx::PgPool::connect(&url).await.unwrap()),
            Kind::MySql => Self::MySql(sqlx::MySqlPool::connect(&url).await.unwrap()),
            Kind::Sqlite => Self::Sqlite(sqlx::SqlitePool::connect(&url).await.unwrap()),
        }
    }

    /// Runs statements; the first column of each row, as text.
    async fn ask(&self, sql: &str) -> Vec<String> {
        use sqlx::{Executor, Row};
        let sql = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()));
        macro_rules! first {
            ($pool:expr) => {{
                let rows = $pool.fetch_all(sql).await.unwrap();
                rows.iter().map(|row| row.try_get_unchecked(0).unwrap()).collect()
            }};
        }
        match self {
            Self::Postgres(pool) => first!(pool),
            Self::MySql(pool) => first!(pool),
            Self::Sqlite(pool) => first!(pool),
        }
    }
}

/// A row as the case wants to see it.
fn arrived(row: &str) -> Arrived {
    let columns: Vec<serde_json::Value> = serde_json::from_str(row).unwrap();
    let text = |index: usize| columns[index].as_str().map(str::to_owned);
    let mut headers = Headers::default();
    for (name, value) in columns[1].as_object().unwrap() {
        headers.push(name, value.as_str().unwrap());
    }
    let names = [
        "content-type",
        "traceparent",
        "ce-source",
        "ce-originid",
        "ce-type",
        "ce-partitionkey",
        "ce-keyversion",
        "ce-dataschema",
        "ce-time",
        "ce-subject",
        "ce-correlationid",
        "ce-causationid",
    ];
    for (index, name) in names.into_iter().enumerate() {
        if let Some(value) = text(index + 3) {
            headers.push(name, value);
        }
    }
    Arrived { id: text(0).unwrap(), headers, body: from_hex(&text(2).unwrap()), wire_bytes: None }
}

fn from_hex(text: &str) -> Bytes {
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) * 16 + digit(pair[1])).collect()
}
