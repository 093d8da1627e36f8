//! The transaction on PostgreSQL. Parameters of the application's statements are sent as text and
//! read by the server as what it takes them for, so that no digit is lost on the way.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use pabal_core::{Cause, MessageId, Reason, SendError};
use sqlx::{
    AssertSqlSafe, Either, Executor, PgConnection, PgPool, Postgres as Db, Row, Statement as _,
    postgres::PgArguments, postgres::types::Oid, query::Query,
};
use uuid::Uuid;

use super::{
    parameter::{Parameter, Value, Values},
    settings::{Held, Plan, Statement},
    transaction::{Lent, Transaction, versioned},
};
use crate::{classify, name::Dialect};

/// An application's PostgreSQL database.
#[derive(Debug)]
pub(super) struct Postgres {
    pub(super) pool: PgPool,
    plan: Arc<Plan>,
    /// What the server took the parameters for. Asked once; anew after an error about the place.
    compiled: Arc<Mutex<Option<Arc<Compiled>>>>,
    insert: Arc<str>,
    raise: Option<Arc<str>>,
}

/// The application's statements as they are sent.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) apply: Vec<Ready>,
    pub(super) query: Option<Ready>,
}

/// One statement as it is sent, and how each parameter is.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) sql: Arc<str>,
    pub(super) parameters: Vec<Typed>,
}

/// A parameter and the type the server takes it for.
#[derive(Debug)]
pub(super) struct Typed {
    pub(super) name: String,
    pub(super) parameter: Parameter,
    pub(super) type_name: String,
}

impl Postgres {
    pub(super) fn new(pool: PgPool, plan: Arc<Plan>) -> Self {
        let raise = match &plan.held {
            Some(Held::Table(table)) => Some(
                format!(
                    "INSERT INTO {} AS held (source, event_type, aggregate_id, version) \
                     VALUES ($1, $2, $3, $4) \
                     ON CONFLICT (source, event_type, aggregate_id) \
                     DO UPDATE SET version = excluded.version, updated_at = clock_timestamp() \
                     WHERE held.version <= excluded.version",
                    table.quoted(Dialect::Postgres)
                )
                .into(),
            ),
            _ => None,
        };
        let insert = insert(&plan.inbox.quoted(Dialect::Postgres)).into();
        Self { pool, plan, compiled: Arc::default(), insert, raise }
    }

    /// The statement that fills the inbox table, and the one that notes a version.
    pub(super) fn own_statements(&self) -> (&str, Option<&str>) {
        (&self.insert, self.raise.as_deref())
    }

    pub(super) async fn begin(&self, lock: Duration) -> Result<PostgresTransaction, SendError> {
        let fail = |error| classify::no_connection(&error);
        let mut connection = Lent::new(self.pool.acquire().await.map_err(fail)?);
        // Nothing of a message was written, whatever goes wrong here.
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = {}; \
             SET LOCAL statement_timeout = {}",
            lock.as_millis(),
            self.plan.timeout.as_millis()
        );
        connection.execute(sqlx::raw_sql(AssertSqlSafe(begin))).await.map_err(fail)?;
        let held = self.compiled.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let compiled = match held {
            Some(compiled) => compiled,
            None => {
                let compiled = compile(&self.plan, &mut connection).await;
                let compiled = Arc::new(compiled.map_err(|error| classify::verdict(&error))?);
                let mut held = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
                *held = Some(Arc::clone(&compiled));
                compiled
            }
        };
        Ok(PostgresTransaction {
            connection,
            compiled,
            held: Arc::clone(&self.compiled),
            insert: Arc::clone(&self.insert),
            raise: self.raise.clone(),
            notify: self.plan.notify.clone(),
        })
    }
}

/// What an inbox table has, in the order in which it is filled.
pub(super) const COLUMNS: &str = "id, source, origin_source, origin_id, event_type, aggregate_id, \
    version, schema_version, correlation_id, causation_id, traceparent, subject, occurred_at, \
    content_type, headers, payload";

/// `ON CONFLICT` names the id alone: a repeat is that and no other row that is in the way.
fn insert(table: &str) -> String {
    let types = ["uuid", "text", "text", "text", "text", "text", "bigint", "text", "text", "text"];
    let types = types.iter().chain(&["text", "text", "text", "text", "jsonb", "bytea"]);
    let (mut arrays, mut casts) = (Vec::new(), Vec::new());
    for (index, type_name) in types.enumerate() {
        // The library has no arrays of JSON text.
        let sent = if *type_name == "jsonb" { "text" } else { type_name };
        arrays.push(format!("${}::{sent}[]", index + 1));
        casts.push(format!("c{index}::{type_name}"));
    }
    let names: Vec<_> = (0..arrays.len()).map(|index| format!("c{index}")).collect();
    format!(
        "INSERT INTO {table} ({COLUMNS}) SELECT {} FROM unnest({}) WITH ORDINALITY \
         AS new ({}, place) ORDER BY place ON CONFLICT (id) DO NOTHING RETURNING id",
        casts.join(", "),
        arrays.join(", "),
        names.join(", ")
    )
}

/// Asks the server what it takes each parameter for.
pub(super) async fn compile(
    plan: &Plan,
    connection: &mut PgConnection,
) -> Result<Compiled, sqlx::Error> {
    let mut apply = Vec::new();
    for statement in &plan.apply {
        apply.push(ready(statement, connection).await?);
    }
    let query = match &plan.held {
        Some(Held::Query(statement)) => Some(ready(statement, connection).await?),
        _ => None,
    };
    Ok(Compiled { apply, query })
}

/// The same for one statement.
pub(super) async fn ready(
    statement: &Statement,
    connection: &mut PgConnection,
) -> Result<Ready, sqlx::Error> {
    // Each place has a number of its own: a name may stand in places of different types.
    let asked = statement.sql.with(|index| format!("${}", index + 1));
    let prepared = connection.prepare(sqlx::SqlSafeStr::into_sql_str(AssertSqlSafe(asked))).await?;
    let oids: Vec<Oid> = match prepared.parameters() {
        Some(Either::Left(types)) => types.iter().filter_map(|it| it.oid()).collect(),
        _ => Vec::new(),
    };
    let names = "SELECT format_type(oid, NULL) FROM unnest($1::oid[]) WITH ORDINALITY \
                 AS wanted (oid, place) ORDER BY place";
    let rows = sqlx::query(names).bind(oids).fetch_all(connection).await?;
    let parameters = statement.sql.parameters().zip(&statement.parameters).zip(rows);
    let parameters: Vec<_> = parameters
        .map(|((name, parameter), row)| Typed {
            name: name.to_owned(),
            parameter: parameter.clone(),
            type_name: row.get(0),
        })
        .collect();
    let sql = statement.sql.with(|index| {
        let number = index + 1;
        match parameters.get(index).map(|typed| typed.type_name.as_str()) {
            None | Some("text" | "bytea") => format!("${number}"),
            Some(type_name) => format!("(${number}::text::{type_name})"),
        }
    });
    Ok(Ready { sql: sql.into(), parameters })
}

type Asked<'q> = Query<'q, Db, PgArguments>;

impl Ready {
    /// With the values of one message.
    fn filled(&self, values: &Values<'_>) -> Result<Asked<'static>, SendError> {
        let mut query = sqlx::query(AssertSqlSafe(Arc::clone(&self.sql)));
        for typed in &self.parameters {
            let value = typed.parameter.of(values)?;
            query = match typed.type_name.as_str() {
                "bytea" => query.bind(bytes(value)),
                other => query.bind(text(value, typed, matches!(other, "json" | "jsonb"))?),
            };
        }
        Ok(query)
    }
}

fn bytes(value: Value<'_>) -> Option<Vec<u8>> {
    Some(match value {
        Value::Null => return None,
        Value::Body(body) => body.to_vec(),
        Value::Text(text) => text.into_owned().into_bytes(),
        Value::Number(text) | Value::Json(text) => text.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Bool(value) => value.to_string().into_bytes(),
    })
}

fn text(value: Value<'_>, typed: &Typed, json: bool) -> Result<Option<String>, SendError> {
    let text = match value {
        Value::Null => return Ok(None),
        Value::Text(text) if json => serde_json::Value::String(text.into_owned()).to_string(),
        Value::Text(text) => text.into_owned(),
        Value::Number(text) | Value::Json(text) => text.to_owned(),
        Value::Integer(number) => number.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Body(body) => match std::str::from_utf8(body) {
            Ok(text) => text.to_owned(),
            Err(_) => {
                let cause = Cause::with("the body is no UTF-8, and goes into text", &typed.name);
                return Err(SendError::permanent(Reason::Unreadable, cause));
            }
        },
    };
    if text.contains('\0') {
        let what = format!(":{}", typed.name);
        let cause = Cause::with("a zero character, which text of PostgreSQL cannot hold", what);
        return Err(SendError::permanent(Reason::Invalid, cause));
    }
    Ok(Some(text))
}

/// A transaction under way.
pub(super) struct PostgresTransaction {
    connection: Lent<Db>,
    compiled: Arc<Compiled>,
    held: Arc<Mutex<Option<Arc<Compiled>>>>,
    insert: Arc<str>,
    raise: Option<Arc<str>>,
    notify: Option<String>,
}

impl PostgresTransaction {
    /// The verdict on an error; one that may come of a changed table makes types be asked anew.
    fn fail(&self, error: &sqlx::Error) -> SendError {
        let verdict = classify::verdict(error);
        if !matches!(verdict, SendError::Permanent { .. }) {
            *self.held.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        verdict
    }
}

#[async_trait]
impl Transaction for PostgresTransaction {
    async fn insert(&mut self, messages: &[Values<'_>]) -> Result<Vec<bool>, SendError> {
        let all = || messages.iter().map(Values::message);
        macro_rules! column {
            ($of:expr) => {
                all().map($of).collect::<Vec<_>>()
            };
        }
        let query = sqlx::query(AssertSqlSafe(Arc::clone(&self.insert)))
            .bind(column!(|it| it.id.0))
            .bind(column!(|it| it.source.as_str()))
            .bind(column!(|it| it.origin.source.as_str()))
            .bind(column!(|it| it.origin.id.as_deref()))
            .bind(column!(|it| it.message_type.as_str()))
            .bind(column!(|it| it.key.as_deref()))
            .bind(column!(|it| it.version))
            .bind(column!(|it| it.schema.as_deref()))
            .bind(column!(|it| it.correlation.as_deref()))
            .bind(column!(|it| it.causation.as_deref()))
            .bind(column!(|it| it.trace.as_deref()))
            .bind(column!(|it| it.subject.as_deref()))
            .bind(column!(|it| it.time.as_deref()))
            .bind(column!(|it| it.content_type.as_deref()))
            .bind(messages.iter().map(Values::headers).collect::<Vec<_>>())
            .bind(messages.iter().map(Values::body).collect::<Vec<_>>());
        let rows = query.fetch_all(&mut *self.connection).await;
        let rows = rows.map_err(|error| self.fail(&error))?;
        let mut new: std::collections::HashSet<Uuid> = rows.iter().map(|row| row.get(0)).collect();
        // Taken out, so that an id that stands here twice is new once.
        Ok(all().map(|message| new.remove(&message.id.0)).collect())
    }

    async fn raise(&mut self, values: &Values<'_>) -> Result<bool, SendError> {
        let Some((key, version)) = versioned(values.message()) else { return Ok(true) };
        if let Some(sql) = &self.raise {
            let query = sqlx::query(AssertSqlSafe(Arc::clone(sql)))
                .bind(values.message().source.as_str())
                .bind(&values.message().message_type)
                .bind(key)
                .bind(version);
            let done = query.execute(&mut *self.connection).await;
            return Ok(done.map_err(|error| self.fail(&error))?.rows_affected() > 0);
        }
        let Some(query) = &self.compiled.query else { return Ok(true) };
        let query = query.filled(values)?;
        let row = query.fetch_optional(&mut *self.connection).await;
        let row = row.map_err(|error| self.fail(&error))?;
        let held: Option<i64> = match row {
            None => None,
            // Whatever kind of whole number the application keeps it as.
            Some(row) => row
                .try_get::<Option<i64>, _>(0)
                .or_else(|_| row.try_get::<Option<i32>, _>(0).map(|held| held.map(i64::from)))
                .or_else(|_| row.try_get::<Option<i16>, _>(0).map(|held| held.map(i64::from)))
                .map_err(|error| not_whole(&error))?,
        };
        Ok(held.is_none_or(|held| version >= held))
    }

    async fn apply(&mut self, values: &Values<'_>) -> Result<(), SendError> {
        let compiled = Arc::clone(&self.compiled);
        for ready in &compiled.apply {
            let done = ready.filled(values)?.execute(&mut *self.connection).await;
            done.map_err(|error| self.fail(&error))?;
        }
        Ok(())
    }

    async fn tell(&mut self, new: &[MessageId]) -> Result<(), SendError> {
        let Some(channel) = &self.notify else { return Ok(()) };
        let ids: Vec<String> = new.iter().map(ToString::to_string).collect();
        let query = sqlx::query("SELECT pg_notify($1, id) FROM unnest($2::text[]) AS id");
        let told = query.bind(channel).bind(ids).execute(&mut *self.connection).await;
        told.map(|_| ()).map_err(|error| self.fail(&error))
    }

    async fn commit(mut self: Box<Self>) -> Result<(), SendError> {
        self.connection.execute("COMMIT").await.map_err(|error| classify::commit(&error))?;
        self.connection.give_back();
        Ok(())
    }

    async fn take_back(mut self: Box<Self>) {
        if self.connection.execute("ROLLBACK").await.is_ok() {
            self.connection.give_back();
        }
    }
}

/// What `version_query` gave is no version: about the place, since no message is at fault.
pub(super) fn not_whole(error: &sqlx::Error) -> SendError {
    SendError::unreachable(Cause::with("version_query gives no whole number", error.to_string()))
}
