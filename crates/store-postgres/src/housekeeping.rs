//! Makes room for what arrives, and removes what retention no longer asks for: whole days of messages
//! and of the log, the rest a little at a time.

use std::sync::PoisonError;

use pabal_core::{Housekeeping, OperatorAct, Retention, StoreError, Vitals};
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::{
    PostgresStore, Transaction, begin_and_end, error, execute, fetch,
    replay::expire,
    rows::{Columns, Query, micros, saturate},
    transaction::KEEP,
};

/// So many days have their partitions ahead of time.
pub(crate) const DAYS_AHEAD: i32 = 7;
/// Rows of each table that one step removes.
const STEP: i64 = 500;
/// Messages of dropped days that one step looks at.
const KEPT_STEP: i64 = 2_000;

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
    store: &PostgresStore,
    keep: &Retention,
) -> Result<Housekeeping, StoreError> {
    make_partitions(store).await?;
    let log = drop_partition(store, "delivery_log", micros(keep.history)).await?;
    let messages = drop_partition(store, "message", micros(keep.bodies)).await?;
    let act = retention();
    let dead = begin_and_end!(store, transaction => async {
        expire(transaction, micros(keep.dead_letters), STEP, &act).await
    });
    let inbox = begin_and_end!(store, transaction => forget(transaction, micros(keep.inbox)));
    let kept = begin_and_end!(store, transaction => let_go(store, transaction));
    // What was added to a message goes with it.
    begin_and_end!(store, transaction => async {
        let query = sqlx::query(
            "DELETE FROM pabal.routed r WHERE at < pabal.time() - $1 * interval '1 microsecond' \
             AND NOT EXISTS (SELECT 1 FROM pabal.message m WHERE m.id = r.message) \
             AND NOT EXISTS (SELECT 1 FROM pabal.message_kept m WHERE m.id = r.message)",
        )
        .bind(micros(keep.bodies));
        execute(transaction, query).await
    });
    let dead = saturate(dead as u64);
    Ok(Housekeeping {
        messages: messages.unwrap_or_default(),
        log: log.unwrap_or_default(),
        inbox,
        dead_letters: dead.unsigned_abs(),
        more: log.is_some()
            || messages.is_some()
            || dead == STEP
            || saturate(inbox) == STEP
            || kept == KEPT_STEP,
    })
}

/// Forgets ids whose time is over; never of a message that is still here, which would come in twice.
///
/// The oldest first, by their index. Whether a message is here is asked for each by itself: as a
/// condition between tables the planner might compare all of them. Rows that others hold are left
/// out, so nobody waits for anybody.
async fn forget(transaction: &mut Transaction, before: i64) -> Result<u64, StoreError> {
    let query = sqlx::query(
        "DELETE FROM pabal.inbox WHERE identity = ANY(ARRAY(SELECT identity FROM pabal.inbox i \
         WHERE last_seen < pabal.time() - $1 * interval '1 microsecond' \
         AND (SELECT true FROM pabal.message m WHERE m.id = i.message AND m.day = i.day) IS NULL \
         AND (SELECT true FROM pabal.message_kept m WHERE m.id = i.message) IS NULL \
         ORDER BY last_seen LIMIT $2 FOR UPDATE SKIP LOCKED))",
    )
    .bind(before)
    .bind(STEP);
    execute(transaction, query).await
}

/// Looks at the next copies of messages whose days were dropped, and removes those that nobody needs
/// any more; how many it looked at. Round and round: with a million that wait, one look at all of
/// them would take too long.
async fn let_go(store: &PostgresStore, transaction: &mut Transaction) -> Result<i64, StoreError> {
    let query = sqlx::query(
        "WITH next AS MATERIALIZED \
         (SELECT id, numbers FROM pabal.message_kept WHERE id > $1 ORDER BY id LIMIT $2), \
         gone AS (DELETE FROM pabal.message_kept WHERE id = ANY(ARRAY(SELECT id FROM next WHERE \
         (SELECT true FROM pabal.dead_letter d WHERE d.message = next.id LIMIT 1) IS NULL \
         AND (SELECT true FROM pabal.unrouted u WHERE u.message = next.id) IS NULL \
         AND (SELECT true FROM pabal.outbox o WHERE o.number = ANY(next.numbers) LIMIT 1) IS NULL \
         AND (SELECT true FROM pabal.routed r JOIN pabal.outbox o ON o.number = r.number \
         WHERE r.message = next.id LIMIT 1) IS NULL))) \
         SELECT id, count(*) OVER () FROM next ORDER BY id DESC LIMIT 1",
    )
    .bind(*store.looked_at.lock().unwrap_or_else(PoisonError::into_inner))
    .bind(KEPT_STEP);
    let (last, count) = match fetch(transaction, query).await?.first().map(Columns::of) {
        Some(mut row) => (row.next()?, row.next()?),
        None => (Uuid::nil(), 0),
    };
    let next = if count == KEPT_STEP { last } else { Uuid::nil() };
    *store.looked_at.lock().unwrap_or_else(PoisonError::into_inner) = next;
    Ok(count)
}

/// Makes the partitions that are missing. Done by every node, whoever comes first.
pub(crate) async fn make_partitions(store: &PostgresStore) -> Result<(), StoreError> {
    let query = sqlx::query("SELECT pabal.make_partitions($1)").bind(DAYS_AHEAD);
    if unless_locked(store, query).await?.is_none() {
        // Another node makes them, or holds the table: asked again soon.
        tracing::info!("making partitions is tried again: somebody holds the table");
    }
    Ok(())
}

/// Drops the oldest partition whose whole day is older than `keep` microseconds; how many rows it
/// had. `None`: there is none, or somebody reads it: a drop that waits would stop everybody behind
/// it, so it is left for the next time.
async fn drop_partition(
    store: &PostgresStore,
    parent: &str,
    keep: i64,
) -> Result<Option<u64>, StoreError> {
    let query = sqlx::query(
        "SELECT pabal.drop_partition($1, \
         ((pabal.time() - $2 * interval '1 microsecond') AT TIME ZONE 'UTC')::date)",
    )
    .bind(parent)
    .bind(keep);
    let Some(rows) = unless_locked(store, query).await? else {
        tracing::info!(parent, "dropping a partition is tried again: somebody reads it");
        return Ok(None);
    };
    match rows.first() {
        Some(row) => Ok(Columns::of(row).next::<Option<i64>>()?.map(i64::unsigned_abs)),
        None => Ok(None),
    }
}

/// Runs what changes partitions; `None` if somebody else holds what it needs.
async fn unless_locked(
    store: &PostgresStore,
    query: Query<'_>,
) -> Result<Option<Vec<PgRow>>, StoreError> {
    let mut transaction = store.begin_with(&KEEP).await?;
    match transaction.fetch(query).await {
        Ok(rows) => transaction.end(Ok(Some(rows))).await,
        Err(error) => {
            transaction.take_back().await;
            match error::is_locked(&error) {
                true => Ok(None),
                false => Err(error::classify(&error)),
            }
        }
    }
}

pub(crate) async fn vitals(store: &PostgresStore) -> Result<Vitals, StoreError> {
    // As far as the role may see: others' sessions show only to members of pg_read_all_stats.
    let query = sqlx::query(
        "SELECT (SELECT extract(epoch FROM max(clock_timestamp() - xact_start))::double precision \
         FROM pg_catalog.pg_stat_activity WHERE datname = current_database() \
         AND pid <> pg_backend_pid() AND backend_type IS DISTINCT FROM 'autovacuum worker'), \
         (SELECT min(last) - pabal.today() FROM \
         (SELECT max(day) AS last FROM pabal.partition GROUP BY of) parent)",
    );
    let rows = store.ask(query).await?;
    let Some(mut row) = rows.first().map(Columns::of) else {
        return Ok(Vitals::default());
    };
    let oldest_transaction = row.next::<Option<f64>>()?.or(Some(0.0));
    let days_ahead = row.next::<Option<i32>>()?.map(i64::from).or(Some(-1));
    Ok(Vitals {
        listening: Some(store.ear.is_listening()),
        relistened: store.ear.relistened(),
        oldest_transaction,
        days_ahead,
    })
}
