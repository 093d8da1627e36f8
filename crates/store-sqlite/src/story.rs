//! Everything known of one message.

use pabal_core::{DeadLetterQuery, LogLine, MessageId, MessageStory, StoreError};

use crate::{
    SqliteStore, dead_letters,
    messages::{SUMMARY, add_deliveries, summary},
    rows::Columns,
};

pub(crate) async fn message(
    store: &SqliteStore,
    id: MessageId,
) -> Result<Option<MessageStory>, StoreError> {
    let sql = format!("SELECT {SUMMARY} FROM message WHERE id = ?");
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id.0);
    let Some(summary) = store.ask(query).await?.first().map(summary).transpose()? else {
        return Ok(None);
    };
    let mut list = [summary];
    add_deliveries(store, &mut list).await?;
    let [summary] = list;
    let query = sqlx::query(
        "SELECT m.schema, m.content_type, m.version, coalesce(i.duplicates, 0) FROM message m \
         LEFT JOIN inbox i ON i.source = m.source AND i.origin_source = m.origin_source \
         AND i.origin_id = m.origin_id WHERE m.id = ?",
    )
    .bind(id.0);
    let rows = store.ask(query).await?;
    let Some(mut row) = rows.first().map(Columns::of) else {
        return Ok(None);
    };
    let dead = DeadLetterQuery { message: Some(id), ..DeadLetterQuery::default() };
    Ok(Some(MessageStory {
        summary,
        schema: row.next()?,
        content_type: row.next()?,
        version: row.next()?,
        duplicates: row.count()?,
        log: log(store, id).await?,
        dead_letters: dead_letters::list(store, &dead).await?,
    }))
}

async fn log(store: &SqliteStore, id: MessageId) -> Result<Vec<LogLine>, StoreError> {
    let query = sqlx::query(
        "SELECT at, destination, outcome, duration / 1000, status, cause, detail, answer, \
         lower(hex(sha256)), size, round FROM delivery_log WHERE id IN (\
         SELECT l.id FROM message m JOIN delivery_log l \
         ON l.number BETWEEN m.first_number AND m.first_number + m.deliveries - 1 WHERE m.id = ?1 \
         UNION ALL SELECT l.id FROM routed r JOIN delivery_log l ON l.number = r.number \
         WHERE r.message = ?1 \
         UNION ALL SELECT id FROM delivery_log WHERE message = ?1 AND number IS NULL) ORDER BY id",
    )
    .bind(id.0);
    let rows = store.ask(query).await?;
    rows.iter()
        .map(|row| {
            let mut row = Columns::of(row);
            let (at, destination, outcome) = (row.time()?, row.endpoint()?, row.next()?);
            let duration_ms = row.count()?;
            let status = row.next::<Option<i64>>()?.and_then(|it| u16::try_from(it).ok());
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
                sha256: row.next::<Option<String>>()?.filter(|hex| !hex.is_empty()),
                size: row.next::<Option<i64>>()?.and_then(|it| u64::try_from(it).ok()),
                round: row.count()?,
            })
        })
        .collect()
}
