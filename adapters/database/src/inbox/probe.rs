//! A look at the application's database. Statements are prepared and explained, never run: that finds
//! missing tables, columns and rights, and types that do not go together.

use pabal_core::{Finding, SendError};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Error, Executor, MySqlPool, PgConnection, PgPool, Row,
    SqlSafeStr, SqlitePool,
};

use super::{
    mysql,
    parameter::{Field, Parameter},
    postgres::{self, Ready},
    sender::{InboxSender, Place},
    settings::{Held, Plan, Statement},
    sqlite,
};
use crate::{classify, name::Dialect};

/// Where the tables are written down.
const DDL: &str =
    "migrations/app-side/{postgres,mysql,sqlite}/inbox.sql has the tables and the rights";

pub(super) async fn probe(sender: &InboxSender) -> Vec<Finding> {
    let plan = &sender.plan;
    let mut found = Vec::new();
    let looked = match &sender.place {
        Place::Postgres(it) => on_postgres(plan, &it.pool, it.own_statements(), &mut found).await,
        Place::MySql(it) => on_mysql(plan, &it.pool, it.own(), &mut found).await,
        Place::Sqlite(it) => on_sqlite(&it.pool, it.own(), &mut found).await,
    };
    if let Err(error) = looked {
        found.push(Finding::fault(told(&classify::no_connection(&error))));
    }
    if plan.apply.is_empty() {
        found.push(
            Finding::note(format!(
                "nothing is done with a message but to put it into `{}`",
                plan.inbox
            ))
            .help("`apply` does it in the same transaction; else the application reads the table itself"),
        );
    }
    if plan.held.is_none() {
        found.push(
            Finding::note("an older version of a key is taken like any other")
                .help("`version_table` or `version_query` drops it"),
        );
    }
    found.sort_by_key(|finding| finding.severity);
    found
}

fn told(error: &SendError) -> String {
    error.cause().map(ToString::to_string).unwrap_or_default()
}

/// What a statement of ours is refused for.
fn refused(key: &str, error: &Error) -> Finding {
    Finding::fault(format!("`{key}` would be refused: {}", classify::said(error))).help(DDL)
}

// --- PostgreSQL ---

async fn on_postgres(
    plan: &Plan,
    pool: &PgPool,
    (insert, raise): (&str, Option<&str>),
    found: &mut Vec<Finding>,
) -> Result<(), Error> {
    // Not from the pool, which would ask for a while and then not say what was wrong.
    let mut connection = pool.connect_options().connect().await?;
    let state = "SELECT pg_is_in_recovery(), current_setting('synchronous_commit'), \
                 current_setting('fsync')";
    let row = connection.fetch_one(state).await?;
    if row.get(0) {
        found.push(Finding::fault("it is a standby, which takes no writes"));
    }
    let lossy = [row.get::<String, _>(1), row.get(2)].contains(&"off".to_owned());
    if lossy {
        found.push(
            Finding::warning(
                "synchronous_commit or fsync is off: a receipt can be lost with the power",
            )
            .help("set both to on for this account"),
        );
    }
    explain_postgres(&mut connection, "inbox", insert, 16, found).await;
    if let Some(raise) = raise {
        explain_postgres(&mut connection, "version_table", raise, 4, found).await;
    }
    let mut types = Vec::new();
    for statement in statements(plan) {
        match postgres::ready(statement, &mut connection).await {
            Ok(ready) => {
                wrong_types(&statement.key, &ready, found);
                types.extend(
                    ready.parameters.iter().map(|it| format!(":{} {}", it.name, it.type_name)),
                );
                let count = ready.parameters.len();
                explain_postgres(&mut connection, &statement.key, &ready.sql, count, found).await;
            }
            Err(error) => found.push(refused(&statement.key, &error)),
        }
    }
    if !types.is_empty() {
        types.sort();
        types.dedup();
        found.push(Finding::note(format!("the server takes {}", types.join(", "))));
    }
    Ok(())
}

/// Plans a statement with nothing in its parameters, which checks tables, columns, the key that a
/// repeat is known by, and rights.
async fn explain_postgres(
    connection: &mut PgConnection,
    key: &str,
    sql: &str,
    parameters: usize,
    found: &mut Vec<Finding>,
) {
    let call = sql.trim_start().get(..4).is_some_and(|verb| verb.eq_ignore_ascii_case("call"));
    if call {
        return;
    }
    // Each in a type of its own as the statement itself declares it: text, or what stands in a cast.
    let mut explained = format!("EXPLAIN {sql}");
    for number in (1..=parameters).rev() {
        explained = without_parameter(&explained, number);
    }
    if let Err(error) = connection.execute(AssertSqlSafe(explained)).await {
        found.push(refused(key, &error));
    }
}

/// The statement with `NULL` in place of a parameter.
fn without_parameter(sql: &str, number: usize) -> String {
    sql.replace(&format!("${number}"), "NULL")
}

/// Parameters of the envelope whose type is known, in places that can never hold them.
fn wrong_types(key: &str, ready: &Ready, found: &mut Vec<Finding>) {
    for typed in &ready.parameters {
        let Parameter::Field(field) = &typed.parameter else { continue };
        let holds: &[&str] = match field {
            Field::Id => {
                &["uuid", "text", "character varying", "character", "bytea", "json", "jsonb"]
            }
            Field::Version => &[
                "bigint",
                "integer",
                "smallint",
                "numeric",
                "double precision",
                "real",
                "text",
                "character varying",
                "character",
                "bytea",
                "json",
                "jsonb",
                "oid",
            ],
            Field::Source | Field::Type | Field::Schema | Field::ContentType => {
                &["text", "character varying", "character", "name", "bytea", "json", "jsonb"]
            }
            Field::Headers => &["text", "character varying", "json", "jsonb", "bytea"],
            _ => continue,
        };
        // A type of the application's own may take anything.
        let known = KNOWN.contains(&typed.type_name.as_str());
        if known && !holds.contains(&typed.type_name.as_str()) {
            let what =
                format!("`{key}` wants :{} as {}, which it never is", typed.name, typed.type_name);
            found.push(Finding::fault(what).help("compare the columns with the parameters"));
        }
    }
}

/// Types whose text form is known.
const KNOWN: [&str; 21] = [
    "bigint",
    "integer",
    "smallint",
    "numeric",
    "double precision",
    "real",
    "boolean",
    "uuid",
    "date",
    "timestamp without time zone",
    "timestamp with time zone",
    "time without time zone",
    "interval",
    "inet",
    "json",
    "jsonb",
    "bytea",
    "text",
    "character varying",
    "character",
    "oid",
];

/// What the settings hold of the application's own.
fn statements(plan: &Plan) -> impl Iterator<Item = &Statement> {
    let query = match &plan.held {
        Some(Held::Query(statement)) => Some(statement),
        _ => None,
    };
    plan.apply.iter().chain(query)
}

// --- MariaDB and MySQL ---

async fn on_mysql(
    plan: &Plan,
    pool: &MySqlPool,
    own: &mysql::Own,
    found: &mut Vec<Finding>,
) -> Result<(), Error> {
    // Not from the pool, which would ask for a while and then not say what was wrong.
    let mut connection = pool.connect_options().connect().await?;
    let mut all: Vec<(&str, &str)> = vec![("inbox", &own.insert)];
    all.extend(own.raise.iter().flatten().map(|sql| ("version_table", &**sql)));
    all.extend(own.query.iter().map(|(sql, it)| (it.key.as_str(), &**sql)));
    all.extend(own.apply.iter().map(|(sql, it)| (it.key.as_str(), &**sql)));
    for (key, sql) in all {
        let call = sql.trim_start().get(..4).is_some_and(|verb| verb.eq_ignore_ascii_case("call"));
        let asked = if call { sql.to_owned() } else { format!("EXPLAIN {sql}") };
        if let Err(error) = connection.prepare(AssertSqlSafe(asked).into_sql_str()).await {
            found.push(refused(key, &error));
        }
    }
    // Outside of a transaction the row of the inbox would stay when what follows from it fails.
    let tables = "SELECT CAST(TABLE_NAME AS CHAR), CAST(ENGINE AS CHAR) \
                  FROM information_schema.TABLES WHERE TABLE_SCHEMA = COALESCE(?, DATABASE()) \
                  AND TABLE_NAME = ?";
    let version = match &plan.held {
        Some(Held::Table(table)) => Some(table),
        _ => None,
    };
    for table in std::iter::once(&plan.inbox).chain(version) {
        let query = sqlx::query(tables).bind(table.schema()).bind(table.name());
        let row = query.fetch_optional(&mut connection).await?;
        let engine = row.map(|row| row.try_get::<Option<String>, _>(1)).transpose()?.flatten();
        if let Some(engine) = engine.filter(|engine| !engine.eq_ignore_ascii_case("InnoDB")) {
            found.push(
                Finding::fault(format!(
                    "`{table}` is a table of {engine}, which has no transactions"
                ))
                .help(format!("ALTER TABLE {} ENGINE = InnoDB", table.quoted(Dialect::MySql))),
            );
        }
    }
    let primary = "SELECT CAST(GROUP_CONCAT(COLUMN_NAME ORDER BY SEQ_IN_INDEX) AS CHAR) \
                   FROM information_schema.STATISTICS \
                   WHERE TABLE_SCHEMA = COALESCE(?, DATABASE()) AND TABLE_NAME = ? \
                   AND INDEX_NAME = 'PRIMARY'";
    let query = sqlx::query(primary).bind(plan.inbox.schema()).bind(plan.inbox.name());
    let primary: Option<String> = query.fetch_one(&mut connection).await?.try_get(0)?;
    if primary.is_some_and(|columns| !columns.eq_ignore_ascii_case("id")) {
        let what =
            format!("`id` is not the primary key of `{}`: repeats are not known", plan.inbox);
        found.push(Finding::fault(what).help(DDL));
    }
    Ok(())
}

// --- SQLite ---

async fn on_sqlite(
    pool: &SqlitePool,
    own: &sqlite::Own,
    found: &mut Vec<Finding>,
) -> Result<(), Error> {
    // Not from the pool, which would ask for a while and then not say what was wrong.
    let mut connection = pool.connect_options().connect().await?;
    let mut all: Vec<(&str, &str)> = vec![("inbox", &own.insert)];
    all.extend(own.raise.iter().map(|sql| ("version_table", &**sql)));
    all.extend(own.query.iter().map(|(sql, it)| (it.key.as_str(), &**sql)));
    all.extend(own.apply.iter().map(|(sql, it)| (it.key.as_str(), &**sql)));
    for (key, sql) in all {
        let asked = AssertSqlSafe(format!("EXPLAIN {sql}"));
        if let Err(error) = connection.prepare(asked.into_sql_str()).await {
            found.push(refused(key, &error));
        }
    }
    // Takes the lock and gives it back.
    match connection.execute("BEGIN IMMEDIATE").await {
        Ok(_) => {
            connection.execute("ROLLBACK").await?;
        }
        Err(error) => found.push(
            Finding::fault(format!("nothing can be written: {}", classify::said(&error)))
                .help("the hub's user must be able to write the file and its folder"),
        ),
    }
    Ok(())
}
