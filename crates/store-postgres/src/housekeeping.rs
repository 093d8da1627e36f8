//! Makes room for what arrives, and removes what retention no longer asks for: whole days of messages
//! and of the log, the rest a little at a time.

use pabal_core::{Housekeeping, OperatorAct, Retention, StoreError, Vitals};

use crate::{
    PostgresStore, begin_and_end, error, execute, fetch,
    replay::expire,
    rows::{Columns, micros, saturate},
};

/// So many days have their partitions ahead of time.
pub(crate) const DAYS_AHEAD: i32 = 7;
/// Rows of each table that one step removes.
const STEP: i64 = 500;

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
    let dead = begin_and_end!(store, connection => async {
        expire(connection, micros(keep.dead_letters), STEP, &act).await
    });
    let inbox = begin_and_end!(store, connection => async {
        // Never of a message that is still here, which would come in twice.
        let query = sqlx::query(
            "DELETE FROM pabal.inbox WHERE identity = ANY(ARRAY(SELECT identity FROM pabal.inbox i \
             WHERE last_seen < pabal.time() - $1 * interval '1 microsecond' \
             AND NOT EXISTS (SELECT 1 FROM pabal.message m WHERE m.id = i.message AND m.day = i.day) \
             AND NOT EXISTS (SELECT 1 FROM pabal.message_kept m WHERE m.id = i.message) \
             ORDER BY identity LIMIT $2 FOR UPDATE SKIP LOCKED))",
        )
        .bind(micros(keep.inbox))
        .bind(STEP);
        execute(connection, query).await
    });
    // Copies whose message nobody needs any more.
    begin_and_end!(store, connection => async {
        let query = sqlx::query(
            "DELETE FROM pabal.message_kept k WHERE \
             NOT EXISTS (SELECT 1 FROM pabal.dead_letter d WHERE d.message = k.id) \
             AND NOT EXISTS (SELECT 1 FROM pabal.unrouted u WHERE u.message = k.id) \
             AND NOT EXISTS (SELECT 1 FROM pabal.outbox o WHERE o.number = ANY(k.numbers)) \
             AND NOT EXISTS (SELECT 1 FROM pabal.routed r JOIN pabal.outbox o \
             ON o.number = r.number WHERE r.message = k.id)",
        );
        execute(connection, query).await
    });
    // What was added to a message goes with it.
    begin_and_end!(store, connection => async {
        let query = sqlx::query(
            "DELETE FROM pabal.routed r WHERE at < pabal.time() - $1 * interval '1 microsecond' \
             AND NOT EXISTS (SELECT 1 FROM pabal.message m WHERE m.id = r.message) \
             AND NOT EXISTS (SELECT 1 FROM pabal.message_kept m WHERE m.id = r.message)",
        )
        .bind(micros(keep.bodies));
        execute(connection, query).await
    });
    let dead = saturate(dead as u64);
    Ok(Housekeeping {
        messages: messages.unwrap_or_default(),
        log: log.unwrap_or_default(),
        inbox,
        dead_letters: dead.unsigned_abs(),
        more: log.is_some() || messages.is_some() || dead == STEP || saturate(inbox) == STEP,
    })
}

/// Makes the partitions that are missing. Done by every node, whoever comes first.
pub(crate) async fn make_partitions(store: &PostgresStore) -> Result<(), StoreError> {
    let query = sqlx::query("SELECT pabal.make_partitions($1)").bind(DAYS_AHEAD);
    match query.execute(&store.write).await {
        Ok(_) => Ok(()),
        // Another node makes them, or holds the table: asked again soon.
        Err(error) if error::is_locked(&error) => {
            tracing::info!("making partitions is tried again: somebody holds the table");
            Ok(())
        }
        Err(error) => Err(error::classify(&error)),
    }
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
    match query.fetch_one(&store.write).await {
        Ok(row) => Ok(Columns::of(&row).next::<Option<i64>>()?.map(i64::unsigned_abs)),
        Err(error) if error::is_locked(&error) => {
            tracing::info!(parent, "dropping a partition is tried again: somebody reads it");
            Ok(None)
        }
        Err(error) => Err(error::classify(&error)),
    }
}

pub(crate) async fn vitals(store: &PostgresStore) -> Result<Vitals, StoreError> {
    // As far as the role may see: others' sessions show only to members of pg_read_all_stats.
    let query = sqlx::query(
        "SELECT (SELECT extract(epoch FROM max(clock_timestamp() - xact_start))::double precision \
         FROM pg_catalog.pg_stat_activity WHERE datname = current_database() \
         AND pid <> pg_backend_pid()), \
         (SELECT min(last) - pabal.today() FROM \
         (SELECT max(day) AS last FROM pabal.partition GROUP BY of) parent)",
    );
    let mut connection =
        store.operators.acquire().await.map_err(|error| error::classify(&error))?;
    let rows = fetch(&mut connection, query).await?;
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
