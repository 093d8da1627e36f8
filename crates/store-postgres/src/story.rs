//! Everything known of one message.

use pabal_core::{DeadLetterQuery, LogLine, MessageId, MessageStory, StoreError};
use sqlx::AssertSqlSafe;

use crate::{
    PostgresStore, dead_letters,
    messages::{ALL, NUMBERS, SUMMARY, add_deliveries, summary},
    rows::Columns,
};

pub(crate) async fn message(
    store: &PostgresStore,
    id: MessageId,
) -> Result<Option<MessageStory>, StoreError> {
    let sql = format!("SELECT {SUMMARY} FROM {ALL} WHERE id = $1 LIMIT 1");
    let rows = store.ask(sqlx::query(AssertSqlSafe(sql)).bind(id.0)).await?;
    let Some(summary) = rows.first().map(summary).transpose()? else {
        return Ok(None);
    };
    let mut list = [summary];
    add_deliveries(store, &mut list).await?;
    let [summary] = list;
    // The inbox is found by its three names: its key is a hash that only the way in makes.
    let sql = format!(
        "SELECT schema, content_type, version, source, origin_source, origin_id FROM {ALL} \
         WHERE id = $1 LIMIT 1"
    );
    let rows = store.ask(sqlx::query(AssertSqlSafe(sql)).bind(id.0)).await?;
    let Some(mut row) = rows.first().map(Columns::of) else {
        return Ok(None);
    };
    let (schema, content_type, version) = (row.next()?, row.next()?, row.next()?);
    let (source, origin_source): (&str, &str) = (row.next()?, row.next()?);
    let origin_id: Option<&str> = row.next()?;
    let identity = crate::rows::identity_of([source, origin_source, origin_id.unwrap_or_default()]);
    let query =
        sqlx::query("SELECT duplicates FROM pabal.inbox WHERE identity = $1").bind(identity);
    let duplicates = match store.ask(query).await?.first() {
        Some(row) => Columns::of(row).large()?,
        None => 0,
    };
    let dead = DeadLetterQuery { message: Some(id), ..DeadLetterQuery::default() };
    Ok(Some(MessageStory {
        summary,
        schema,
        content_type,
        version,
        duplicates,
        log: log(store, id).await?,
        dead_letters: dead_letters::list(store, &dead).await?,
    }))
}

async fn log(store: &PostgresStore, id: MessageId) -> Result<Vec<LogLine>, StoreError> {
    let columns = "l.at, l.destination, l.outcome, l.duration / 1000, l.status, l.cause, l.detail, \
        l.answer, encode(l.sha256, 'hex'), l.size, l.round, l.id";
    let sql = format!(
        "WITH {NUMBERS} SELECT {columns} FROM numbers JOIN pabal.delivery_log l USING (number) \
         UNION ALL SELECT {columns} FROM pabal.delivery_log l \
         WHERE l.message = ANY($1) AND l.number IS NULL ORDER BY 12"
    );
    let rows = store.ask(sqlx::query(AssertSqlSafe(sql)).bind(vec![id.0])).await?;
    rows.iter()
        .map(|row| {
            let mut row = Columns::of(row);
            let (at, destination, outcome) = (row.time()?, row.endpoint()?, row.next()?);
            let duration_ms = row.large()?;
            let status = row.next::<Option<i32>>()?.and_then(|it| u16::try_from(it).ok());
            let cause = match (row.next::<Option<String>>()?, row.next::<Option<String>>()?) {
                (Some(summary), Some(detail)) => Some(format!("{summary}: {detail}")),
                (summary, detail) => summary.or(detail),
            };
            Ok(LogLine {
                at,
                destination,
                outcome,
                duration_ms,
                status,
                cause,
                answer: row
                    .next::<Option<&[u8]>>()?
                    .map(|bytes| String::from_utf8_lossy(bytes).into_owned()),
                sha256: row.next()?,
                size: row.next::<Option<i64>>()?.and_then(|it| u64::try_from(it).ok()),
                round: row.count()?,
            })
        })
        .collect()
}
