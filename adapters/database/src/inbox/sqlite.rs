//! The transaction on SQLite.

use std::sync::Arc;

use async_trait::async_trait;
use pabal_core::{Message, MessageId, SendError};
use sqlx::{
    AssertSqlSafe, Executor, Row, Sqlite as Db, SqlitePool, query::Query, sqlite::SqliteArguments,
};

use super::{
    parameter::{Value, Values},
    postgres::{COLUMNS, not_whole},
    settings::{Held, Plan, Statement},
    transaction::{Lent, Transaction, versioned},
};
use crate::{classify, name::Dialect};

/// An application's SQLite file.
#[derive(Debug)]
pub(super) struct Sqlite {
    pub(super) pool: SqlitePool,
    own: Arc<Own>,
}

/// The statements of one destination.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) insert: Arc<str>,
    pub(super) raise: Option<Arc<str>>,
    pub(super) query: Option<(Arc<str>, Statement)>,
    pub(super) apply: Vec<(Arc<str>, Statement)>,
}

impl Sqlite {
    pub(super) fn new(pool: SqlitePool, plan: Arc<Plan>) -> Self {
        let sent = |it: &Statement| (Arc::from(it.sql.with(|_| "?".to_owned())), it.clone());
        let insert = format!(
            "INSERT INTO {} ({COLUMNS}) VALUES ({}) ON CONFLICT (id) DO NOTHING",
            plan.inbox.quoted(Dialect::Sqlite),
            ["?"; 16].join(", ")
        );
        let (raise, query) = match &plan.held {
            None => (None, None),
            Some(Held::Table(table)) => {
                let raise = format!(
                    "INSERT INTO {} AS held (source, event_type, aggregate_id, version) \
                     VALUES (?, ?, ?, ?) ON CONFLICT (source, event_type, aggregate_id) \
                     DO UPDATE SET version = excluded.version, \
                     updated_at = strftime('%Y-%m-%dT%H:%M:%fZ') \
                     WHERE held.version <= excluded.version",
                    table.quoted(Dialect::Sqlite)
                );
                (Some(raise.into()), None)
            }
            Some(Held::Query(statement)) => (None, Some(sent(statement))),
        };
        let apply = plan.apply.iter().map(sent).collect();
        let own = Arc::new(Own { insert: insert.into(), raise, query, apply });
        Self { pool, own }
    }

    /// What it does with a message.
    pub(super) fn own(&self) -> &Own {
        &self.own
    }

    pub(super) async fn begin(&self) -> Result<SqliteTransaction, SendError> {
        let fail = |error| classify::no_connection(&error);
        let mut connection = Lent::new(self.pool.acquire().await.map_err(fail)?);
        // The write lock at once: what begins as a reader and then writes may never get it.
        connection.execute("BEGIN IMMEDIATE").await.map_err(fail)?;
        Ok(SqliteTransaction { connection, own: Arc::clone(&self.own) })
    }
}

type Asked<'q> = Query<'q, Db, SqliteArguments>;

/// A statement with the values of one message. A number that fits is one; any other, which SQLite
/// would round, is text and stays what it is in a column of text.
fn filled(
    (sql, statement): &(Arc<str>, Statement),
    values: &Values<'_>,
) -> Result<Asked<'static>, SendError> {
    let mut query = sqlx::query(AssertSqlSafe(Arc::clone(sql)));
    for parameter in &statement.parameters {
        query = match parameter.of(values)? {
            Value::Null => query.bind(None::<String>),
            Value::Text(text) => query.bind(text.into_owned()),
            Value::Json(text) => query.bind(text.to_owned()),
            Value::Integer(number) => query.bind(number),
            Value::Bool(value) => query.bind(value),
            Value::Number(text) => match text.parse::<i64>() {
                Ok(number) => query.bind(number),
                Err(_) => query.bind(text.to_owned()),
            },
            Value::Body(body) => match std::str::from_utf8(body) {
                Ok(text) => query.bind(text.to_owned()),
                Err(_) => query.bind(body.to_vec()),
            },
        };
    }
    Ok(query)
}

/// A transaction under way.
pub(super) struct SqliteTransaction {
    connection: Lent<Db>,
    own: Arc<Own>,
}

fn fail(error: sqlx::Error) -> SendError {
    classify::verdict(&error)
}

#[async_trait]
impl Transaction for SqliteTransaction {
    async fn insert(&mut self, messages: &[Values<'_>]) -> Result<Vec<bool>, SendError> {
        let mut new = Vec::with_capacity(messages.len());
        for values in messages {
            let message: &Message = values.message();
            let query = sqlx::query(AssertSqlSafe(Arc::clone(&self.own.insert)))
                .bind(message.id.to_string())
                .bind(message.source.as_str().to_owned())
                .bind(message.origin.source.clone())
                .bind(message.origin.id.clone())
                .bind(message.message_type.clone())
                .bind(message.key.clone())
                .bind(message.version)
                .bind(message.schema.clone())
                .bind(message.correlation.clone())
                .bind(message.causation.clone())
                .bind(message.trace.clone())
                .bind(message.subject.clone())
                .bind(message.time.clone())
                .bind(message.content_type.clone())
                .bind(values.headers().to_owned())
                .bind(values.body().to_vec());
            let done = query.execute(&mut *self.connection).await.map_err(fail)?;
            new.push(done.rows_affected() > 0);
        }
        Ok(new)
    }

    async fn raise(&mut self, values: &Values<'_>) -> Result<bool, SendError> {
        let Some((key, version)) = versioned(values.message()) else { return Ok(true) };
        let own = Arc::clone(&self.own);
        if let Some(sql) = &own.raise {
            let query = sqlx::query(AssertSqlSafe(Arc::clone(sql)))
                .bind(values.message().source.as_str().to_owned())
                .bind(values.message().message_type.clone())
                .bind(key.to_owned())
                .bind(version);
            let done = query.execute(&mut *self.connection).await.map_err(fail)?;
            return Ok(done.rows_affected() > 0);
        }
        let Some(query) = &own.query else { return Ok(true) };
        let row = filled(query, values)?.fetch_optional(&mut *self.connection).await;
        let held: Option<i64> = match row.map_err(fail)? {
            None => None,
            Some(row) => row.try_get(0).map_err(|error| not_whole(&error))?,
        };
        Ok(held.is_none_or(|held| version >= held))
    }

    async fn apply(&mut self, values: &Values<'_>) -> Result<(), SendError> {
        let own = Arc::clone(&self.own);
        for statement in &own.apply {
            let done = filled(statement, values)?.execute(&mut *self.connection).await;
            done.map_err(fail)?;
        }
        Ok(())
    }

    async fn tell(&mut self, _new: &[MessageId]) -> Result<(), SendError> {
        Ok(())
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
