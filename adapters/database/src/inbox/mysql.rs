//! The transaction on MariaDB and MySQL.
//!
//! Whether a message is new is told by a plain `INSERT`: one row, or error 1062 on the primary key,
//! which ends that statement and not the transaction. `INSERT IGNORE` would say the same by the rows
//! it changed, and would make warnings of values that are too long, missing or none; and
//! `ON DUPLICATE KEY UPDATE` counts what it found as changed, as the driver asks the server to.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use pabal_core::{Message, MessageId, SendError};
use sqlx::{
    AssertSqlSafe, Error, Executor, MySql as Db, MySqlPool, Row, mysql::MySqlArguments,
    query::Query,
};

use super::{
    parameter::{Value, Values},
    postgres::{COLUMNS, not_whole},
    settings::{Held, Plan, Statement},
    transaction::{Lent, Transaction, versioned},
};
use crate::{classify, name::Dialect};

/// An application's MariaDB or MySQL database.
#[derive(Debug)]
pub(super) struct MySql {
    pub(super) pool: MySqlPool,
    own: Arc<Own>,
}

/// The statements of one destination.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) insert: Arc<str>,
    /// Raises the version where it is lower, and reads what is held.
    pub(super) raise: Option<[Arc<str>; 2]>,
    pub(super) query: Option<(Arc<str>, Statement)>,
    pub(super) apply: Vec<(Arc<str>, Statement)>,
}

impl MySql {
    pub(super) fn new(pool: MySqlPool, plan: Arc<Plan>) -> Self {
        let sent = |it: &Statement| (Arc::from(it.sql.with(|_| "?".to_owned())), it.clone());
        let insert = format!(
            "INSERT INTO {} ({COLUMNS}) VALUES ({})",
            plan.inbox.quoted(Dialect::MySql),
            ["?"; 16].join(", ")
        );
        let (raise, query) = match &plan.held {
            None => (None, None),
            Some(Held::Table(table)) => {
                let table = table.quoted(Dialect::MySql);
                let raise = format!(
                    "INSERT INTO {table} (source, event_type, aggregate_id, version) \
                     VALUES (?, ?, ?, ?) ON DUPLICATE KEY UPDATE \
                     updated_at = IF(version <= ?, CURRENT_TIMESTAMP(6), updated_at), \
                     version = GREATEST(version, ?)"
                );
                let read = format!(
                    "SELECT version FROM {table} \
                     WHERE source = ? AND event_type = ? AND aggregate_id = ? FOR UPDATE"
                );
                (Some([raise.into(), read.into()]), None)
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

    pub(super) async fn begin(&self, lock: Duration) -> Result<MySqlTransaction, SendError> {
        let fail = |error| classify::no_connection(&error);
        let mut connection = Lent::new(self.pool.acquire().await.map_err(fail)?);
        // Strict, whatever the server's own mode is: a value that does not fit is an error.
        let begin = format!(
            "SET SESSION innodb_lock_wait_timeout = {}, \
             sql_mode = CONCAT('STRICT_ALL_TABLES,', @@SESSION.sql_mode); \
             START TRANSACTION READ WRITE",
            lock.as_secs().max(1)
        );
        connection.execute(sqlx::raw_sql(AssertSqlSafe(begin))).await.map_err(fail)?;
        Ok(MySqlTransaction { connection, own: Arc::clone(&self.own) })
    }
}

type Asked<'q> = Query<'q, Db, MySqlArguments>;

/// A statement with the values of one message. A whole number that fits is one; any other number is
/// sent as the digits it has, which the server reads as a decimal where the column is one.
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
            Value::Number(text) => match (text.parse::<i64>(), text.parse::<u64>()) {
                (Ok(number), _) => query.bind(number),
                (_, Ok(number)) => query.bind(number),
                _ => query.bind(text.to_owned()),
            },
            // As text where it is: a column of JSON takes no bytes.
            Value::Body(body) => match std::str::from_utf8(body) {
                Ok(text) => query.bind(text.to_owned()),
                Err(_) => query.bind(body.to_vec()),
            },
        };
    }
    Ok(query)
}

/// A transaction under way.
pub(super) struct MySqlTransaction {
    connection: Lent<Db>,
    own: Arc<Own>,
}

fn fail(error: Error) -> SendError {
    classify::verdict(&error)
}

#[async_trait]
impl Transaction for MySqlTransaction {
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
            match query.execute(&mut *self.connection).await {
                Ok(_) => new.push(true),
                Err(Error::Database(error)) if classify::is_repeat(&*error) => new.push(false),
                Err(error) => return Err(fail(error)),
            }
        }
        Ok(new)
    }

    async fn raise(&mut self, values: &Values<'_>) -> Result<bool, SendError> {
        let Some((key, version)) = versioned(values.message()) else { return Ok(true) };
        let own = Arc::clone(&self.own);
        let held = if let Some([raise, read]) = &own.raise {
            // As bytes: keys that differ in case alone are different.
            let source = values.message().source.as_str().as_bytes().to_vec();
            let message_type = values.message().message_type.as_bytes().to_vec();
            let key = key.as_bytes().to_vec();
            let query = sqlx::query(AssertSqlSafe(Arc::clone(raise)))
                .bind(source.clone())
                .bind(message_type.clone())
                .bind(key.clone())
                .bind(version)
                .bind(version)
                .bind(version);
            query.execute(&mut *self.connection).await.map_err(fail)?;
            let query = sqlx::query(AssertSqlSafe(Arc::clone(read)));
            let query = query.bind(source).bind(message_type).bind(key);
            query.fetch_optional(&mut *self.connection).await
        } else if let Some(query) = &own.query {
            filled(query, values)?.fetch_optional(&mut *self.connection).await
        } else {
            return Ok(true);
        };
        let held: Option<i64> = match held.map_err(fail)? {
            None => None,
            Some(row) => row
                .try_get::<Option<i64>, _>(0)
                .or_else(|_| {
                    let held = row.try_get::<Option<u64>, _>(0)?;
                    Ok(held.map(|held| i64::try_from(held).unwrap_or(i64::MAX)))
                })
                .map_err(|error: Error| not_whole(&error))?,
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
