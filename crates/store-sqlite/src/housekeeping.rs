//! Removes what retention no longer asks for, a little at a time: what is to go is found beside the
//! writer, so that a step holds its lock for a few hundred deletions only.

use pabal_core::{Housekeeping, Number, OperatorAct, Retention, StoreError};

use crate::{
    SqliteStore, end, execute,
    replay::expire,
    rows::{Columns, json, micros, numbers},
};

/// Rows of each table that one step removes.
const STEP: usize = 500;

/// In whose name dead letters end when their time is over.
fn retention() -> OperatorAct {
    let words = |text: &str| text.to_owned();
    OperatorAct {
        by: words("retention"),
        verb: words("expire"),
        subject: words("dead letters"),
        why: None,
    }
}

pub(crate) async fn housekeep(
    store: &SqliteStore,
    keep: &Retention,
) -> Result<Housekeeping, StoreError> {
    let now = store.now();
    let before = |keep| now.saturating_sub(micros(keep));
    // Rows of the log stand in the order of their times.
    let log = ids(
        store,
        "SELECT id FROM (SELECT id, at FROM delivery_log ORDER BY id LIMIT ?2) WHERE at < ?1",
        before(keep.history),
    );
    let messages = ids(
        store,
        "SELECT sequence FROM message m WHERE received < ?1 \
         AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.message = m.id AND o.number \
         BETWEEN m.first_number AND m.first_number + m.deliveries - 1) \
         AND NOT EXISTS (SELECT 1 FROM routed r JOIN outbox o ON o.number = r.number \
         WHERE r.message = m.id) \
         AND NOT EXISTS (SELECT 1 FROM dead_letter d WHERE d.message = m.id) \
         AND NOT EXISTS (SELECT 1 FROM unrouted u WHERE u.message = m.id) \
         ORDER BY received LIMIT ?2",
        before(keep.bodies),
    );
    let dead = ids(
        store,
        "SELECT id FROM (SELECT id, at, holds FROM dead_letter ORDER BY id) \
         WHERE at < ?1 AND holds = 'nothing' LIMIT ?2",
        before(keep.dead_letters),
    );
    let (log, messages, dead) = (log.await?, messages.await?, dead.await?);
    let inbox = forgotten(store, before(keep.inbox)).await?;
    let removed = Housekeeping {
        messages: messages.len() as u64,
        log: log.len() as u64,
        inbox: inbox.len() as u64,
        dead_letters: dead.len() as u64,
        more: [log.len(), messages.len(), dead.len(), inbox.len()].contains(&STEP),
    };
    if removed == Housekeeping::default() {
        return Ok(removed);
    }

    let mut transaction = store.begin().await?;
    let connection = &mut *transaction;
    let result = async {
        expire(connection, &dead, &retention(), now).await?;
        for (sql, argument) in [
            ("DELETE FROM delivery_log WHERE id IN (SELECT value FROM json_each(?))", numbers(log)),
            (
                "DELETE FROM routed WHERE message IN (SELECT id FROM message \
                 WHERE sequence IN (SELECT value FROM json_each(?)))",
                numbers(messages.iter().copied()),
            ),
            (
                "DELETE FROM message WHERE sequence IN (SELECT value FROM json_each(?))",
                numbers(messages),
            ),
            (
                "DELETE FROM inbox WHERE (source, origin_source, origin_id) IN \
                 (SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?))",
                json(inbox),
            ),
        ] {
            execute(connection, sqlx::query(sql).bind(argument)).await?;
        }
        Ok(removed)
    }
    .await;
    end(transaction, result).await
}

async fn ids(
    store: &SqliteStore,
    sql: &'static str,
    before: i64,
) -> Result<Vec<Number>, StoreError> {
    let query = sqlx::query(sql).bind(before).bind(STEP as i64);
    store.ask(query).await?.iter().map(|row| Columns::of(row).next()).collect()
}

/// Ids whose time is over; never of a message that is still here, which would come in twice.
async fn forgotten(
    store: &SqliteStore,
    before: i64,
) -> Result<Vec<(String, String, String)>, StoreError> {
    let query = sqlx::query(
        "SELECT source, origin_source, origin_id FROM inbox WHERE last_seen < ? \
         AND NOT EXISTS (SELECT 1 FROM message m WHERE m.id = inbox.message) LIMIT ?",
    )
    .bind(before)
    .bind(STEP as i64);
    let rows = store.ask(query).await?;
    rows.iter()
        .map(|row| {
            let mut row = Columns::of(row);
            Ok((row.next()?, row.next()?, row.next()?))
        })
        .collect()
}
