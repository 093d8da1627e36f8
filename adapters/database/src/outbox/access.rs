//! Statements to three kinds of database: what goes in and comes back is text, but for bodies.

use pabal_core::Bytes;
use sqlx::{
    AssertSqlSafe, Column, Database, Error, Executor, Row, Statement, TypeInfo,
    pool::PoolConnection, query::Query,
};

use crate::{connect::Pool, name::Dialect};

/// A statement and its parameters.
#[derive(Debug, Clone)]
pub(super) struct Sql {
    dialect: Dialect,
    text: String,
    parameters: Vec<Parameter>,
}

#[derive(Debug, Clone)]
enum Parameter {
    Text(String),
    Number(i64),
    /// PostgreSQL only.
    Texts(Vec<String>),
}

impl Sql {
    /// One that begins like this.
    pub(super) fn new(dialect: Dialect, text: impl Into<String>) -> Self {
        Self { dialect, text: text.into(), parameters: Vec::new() }
    }

    /// Goes on like this.
    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// A parameter.
    pub(super) fn number(&mut self, number: i64) {
        self.parameter(Parameter::Number(number));
    }

    /// A parameter.
    pub(super) fn text(&mut self, text: impl Into<String>) {
        self.parameter(Parameter::Text(text.into()));
    }

    /// A parameter that is a list; PostgreSQL only.
    pub(super) fn texts(&mut self, texts: Vec<String>) {
        self.parameter(Parameter::Texts(texts));
    }

    fn parameter(&mut self, parameter: Parameter) {
        self.parameters.push(parameter);
        match self.dialect {
            Dialect::Postgres => self.text.push_str(&format!("${}", self.parameters.len())),
            Dialect::MySql | Dialect::Sqlite => self.text.push('?'),
        }
    }
}

/// What a column of an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Bytes,
}

/// What stands in it.
#[derive(Debug)]
pub(super) enum Value {
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
}

impl Value {
    pub(super) fn text(self) -> Option<String> {
        match self {
            Self::Text(text) => text,
            Self::Bytes(_) => None,
        }
    }

    pub(super) fn bytes(self) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes.unwrap_or_default().into(),
            Self::Text(_) => Bytes::new(),
        }
    }
}

/// A connection, in a transaction or not. One that is dropped in the middle of something is closed, so
/// that no lock outlives it.
#[derive(Debug)]
pub(super) enum Connection {
    Postgres(Lent<sqlx::Postgres>),
    MySql(Lent<sqlx::MySql>),
    Sqlite(Lent<sqlx::Sqlite>),
}

/// Given back to its pool only in words.
pub(super) struct Lent<DB: Database>(Option<PoolConnection<DB>>);

impl<DB: Database> std::fmt::Debug for Lent<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lent")
    }
}

impl<DB: Database> Lent<DB> {
    fn get(&mut self) -> Result<&mut DB::Connection, Error> {
        self.0.as_deref_mut().ok_or(Error::PoolClosed)
    }
}

impl<DB: Database> Drop for Lent<DB> {
    fn drop(&mut self) {
        if let Some(connection) = &mut self.0 {
            connection.close_on_drop();
        }
    }
}

/// Does the same with each driver.
macro_rules! each {
    ($connection:expr, $lent:ident => $act:expr) => {
        match $connection {
            Connection::Postgres($lent) => $act,
            Connection::MySql($lent) => $act,
            Connection::Sqlite($lent) => $act,
        }
    };
}

impl Connection {
    /// One of the pool's.
    pub(super) async fn of(pool: &Pool) -> Result<Self, Error> {
        Ok(match pool {
            Pool::Postgres(pool) => Self::Postgres(Lent(Some(pool.acquire().await?))),
            Pool::MySql(pool) => Self::MySql(Lent(Some(pool.acquire().await?))),
            Pool::Sqlite(pool) => Self::Sqlite(Lent(Some(pool.acquire().await?))),
        })
    }

    /// Begins a transaction that sees what others committed before each of its statements, and waits
    /// for locks no longer than a few seconds.
    pub(super) async fn begin(&mut self) -> Result<(), Error> {
        match self {
            Self::Postgres(_) => {
                self.run(
                    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = '30s'; \
                     SET LOCAL lock_timeout = '5s'; SET LOCAL idle_in_transaction_session_timeout = '60s'",
                )
                .await
            }
            // Otherwise the gaps between the rows would be locked, too, and the application could not
            // insert any.
            Self::MySql(_) => {
                self.run(
                    "SET SESSION innodb_lock_wait_timeout = 5; \
                     SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION",
                )
                .await
            }
            Self::Sqlite(_) => self.run("BEGIN IMMEDIATE").await,
        }
    }

    /// Commits, and gives the connection back.
    pub(super) async fn commit(mut self) -> Result<(), Error> {
        self.run("COMMIT").await?;
        self.give_back();
        Ok(())
    }

    /// Takes everything back, and gives the connection back.
    pub(super) async fn roll_back(mut self) -> Result<(), Error> {
        self.run("ROLLBACK").await?;
        self.give_back();
        Ok(())
    }

    /// Back into the pool: no transaction is open on it.
    pub(super) fn give_back(mut self) {
        each!(&mut self, lent => drop(lent.0.take()));
    }

    async fn run(&mut self, text: &'static str) -> Result<(), Error> {
        each!(self, lent => lent.get()?.execute(sqlx::raw_sql(text)).await.map(drop))
    }

    /// How many rows a statement hit.
    pub(super) async fn execute(&mut self, sql: &Sql) -> Result<u64, Error> {
        Ok(match self {
            Self::Postgres(lent) => postgres(sql).execute(lent.get()?).await?.rows_affected(),
            Self::MySql(lent) => mysql(sql).execute(lent.get()?).await?.rows_affected(),
            Self::Sqlite(lent) => sqlite(sql).execute(lent.get()?).await?.rows_affected(),
        })
    }

    /// The answer to a question, whose columns are of these kinds.
    pub(super) async fn fetch(
        &mut self,
        sql: &Sql,
        kinds: &[Kind],
    ) -> Result<Vec<std::vec::IntoIter<Value>>, Error> {
        macro_rules! read {
            ($query:expr, $lent:expr) => {{
                let rows = $query.fetch_all($lent.get()?).await?;
                let cell = |row: &_, (place, kind): (usize, &Kind)| {
                    Ok(match kind {
                        Kind::Text => Value::Text(get(row, place)?),
                        Kind::Bytes => Value::Bytes(get(row, place)?),
                    })
                };
                let read = |row: &_| -> Result<std::vec::IntoIter<Value>, Error> {
                    let cells = kinds.iter().enumerate().map(|it| cell(row, it));
                    Ok(cells.collect::<Result<Vec<_>, Error>>()?.into_iter())
                };
                rows.iter().map(read).collect()
            }};
        }
        match self {
            Self::Postgres(lent) => read!(postgres(sql), lent),
            Self::MySql(lent) => read!(mysql(sql), lent),
            Self::Sqlite(lent) => read!(sqlite(sql), lent),
        }
    }

    /// Lets the database plan a statement, which checks names, types and rights; nothing is done.
    pub(super) async fn explain(&mut self, sql: &Sql) -> Result<(), Error> {
        let sql = Sql { text: format!("EXPLAIN {}", sql.text), ..sql.clone() };
        self.fetch(&sql, &[]).await.map(drop)
    }

    /// The columns that a question has, with the names of their types; nothing is read.
    pub(super) async fn describe(&mut self, text: &str) -> Result<Vec<(String, String)>, Error> {
        let text = sqlx::SqlSafeStr::into_sql_str(AssertSqlSafe(text));
        each!(self, lent => {
            let statement = lent.get()?.prepare(text).await?;
            let columns = statement.columns().iter();
            Ok(columns
                .map(|column| (column.name().to_owned(), column.type_info().name().to_owned()))
                .collect())
        })
    }
}

fn get<'r, R: Row, T>(row: &'r R, place: usize) -> Result<T, Error>
where
    usize: sqlx::ColumnIndex<R>,
    T: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,
{
    row.try_get(place)
}

/// Planned each time: a plan made for an empty table would go on being used when it no longer is.
macro_rules! query {
    ($sql:expr, $parameter:ident, $query:ident => $bind:expr) => {{
        let mut $query = sqlx::query(AssertSqlSafe($sql.text.as_str())).persistent(false);
        for parameter in &$sql.parameters {
            let $parameter = parameter.clone();
            $query = $bind;
        }
        $query
    }};
}

fn postgres(sql: &Sql) -> Query<'static, sqlx::Postgres, sqlx::postgres::PgArguments> {
    query!(sql, parameter, query => match parameter {
        Parameter::Text(text) => query.bind(text),
        Parameter::Number(number) => query.bind(number),
        Parameter::Texts(texts) => query.bind(texts),
    })
}

fn mysql(sql: &Sql) -> Query<'static, sqlx::MySql, sqlx::mysql::MySqlArguments> {
    query!(sql, parameter, query => match parameter {
        Parameter::Text(text) => query.bind(text),
        Parameter::Number(number) => query.bind(number),
        Parameter::Texts(_) => query,
    })
}

fn sqlite(sql: &Sql) -> Query<'static, sqlx::Sqlite, sqlx::sqlite::SqliteArguments> {
    query!(sql, parameter, query => match parameter {
        Parameter::Text(text) => query.bind(text),
        Parameter::Number(number) => query.bind(number),
        Parameter::Texts(_) => query,
    })
}
