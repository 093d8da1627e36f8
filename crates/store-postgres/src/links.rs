//! Link states, adapters' values, requests, counts and the operators' log.

use std::{collections::BTreeMap, time::Duration};

use pabal_core::{
    EndpointCounts, EndpointName, LinkChange, LinkState, OperatorAct, Paused, Request,
    StateConflict, StateValue, StoreError, Tripped,
};

use crate::{
    PostgresStore, Transaction, execute, fetch, notify,
    rows::{Columns, at, from_json, json, micros},
};

/// Requests are for holders that run; one that starts reads the tables.
const REQUESTS_KEPT: Duration = Duration::from_secs(3600);
const REQUESTS_MAX: i64 = 1000;

pub(crate) async fn link_states(store: &PostgresStore) -> Result<Vec<LinkState>, StoreError> {
    let query = sqlx::query(
        "SELECT endpoint, paused_by, paused_why, paused_at, tripped_cause, tripped_at, probes, \
         pace FROM pabal.link_state ORDER BY endpoint",
    );
    let rows = store.fetch(query).await?;
    rows.iter()
        .map(|row| {
            let mut row = Columns::of(row);
            let endpoint = row.endpoint()?;
            let (by, why) = (row.next::<Option<String>>()?, row.next()?);
            let since = row.optional_time()?;
            let paused = by.zip(since).map(|(by, at)| Paused { by, why, at });
            let cause = row.next::<Option<String>>()?;
            let since = row.optional_time()?;
            let probes = row.next::<Option<i64>>()?.unwrap_or_default();
            let tripped = cause.zip(since).map(|(cause, at)| Tripped {
                cause,
                at,
                probes: u32::try_from(probes).unwrap_or(u32::MAX),
            });
            Ok(LinkState { endpoint, paused, tripped, pace: row.next()? })
        })
        .collect()
}

pub(crate) async fn set_link_state(
    transaction: &mut Transaction,
    endpoint: &EndpointName,
    change: &LinkChange,
    act: Option<&OperatorAct>,
) -> Result<(), StoreError> {
    let query = match change {
        LinkChange::Paused(paused) => sqlx::query(
            "INSERT INTO pabal.link_state (endpoint, paused_by, paused_why, paused_at) \
             VALUES ($1, $2, $3, $4) ON CONFLICT (endpoint) DO UPDATE SET \
             paused_by = excluded.paused_by, paused_why = excluded.paused_why, \
             paused_at = excluded.paused_at",
        )
        .bind(endpoint.as_str())
        .bind(paused.as_ref().map(|it| it.by.as_str()))
        .bind(paused.as_ref().and_then(|it| it.why.as_deref()))
        .bind(paused.as_ref().map(|it| at(it.at))),
        LinkChange::Tripped(tripped) => sqlx::query(
            "INSERT INTO pabal.link_state (endpoint, tripped_cause, tripped_at, probes) \
             VALUES ($1, $2, $3, $4) ON CONFLICT (endpoint) DO UPDATE SET \
             tripped_cause = excluded.tripped_cause, tripped_at = excluded.tripped_at, \
             probes = excluded.probes",
        )
        .bind(endpoint.as_str())
        .bind(tripped.as_ref().map(|it| it.cause.as_str()))
        .bind(tripped.as_ref().map(|it| at(it.at)))
        .bind(tripped.as_ref().map(|it| i64::from(it.probes))),
        LinkChange::Pace(pace) => sqlx::query(
            "INSERT INTO pabal.link_state (endpoint, pace) VALUES ($1, $2) \
             ON CONFLICT (endpoint) DO UPDATE SET pace = excluded.pace",
        )
        .bind(endpoint.as_str())
        .bind(pace),
    };
    execute(transaction, query).await?;
    let query = sqlx::query(
        "DELETE FROM pabal.link_state WHERE endpoint = $1 AND paused_by IS NULL \
         AND tripped_cause IS NULL AND pace IS NULL",
    )
    .bind(endpoint.as_str());
    execute(transaction, query).await?;
    let endpoint = endpoint.clone();
    match act {
        Some(act) => {
            note(transaction, act).await?;
            post(transaction, &Request::Link(endpoint)).await
        }
        None => post(transaction, &Request::Health(endpoint)).await,
    }
}

/// Appends to the operators' log.
pub(crate) async fn note(
    transaction: &mut Transaction,
    act: &OperatorAct,
) -> Result<(), StoreError> {
    let query = sqlx::query(
        "INSERT INTO pabal.operator_log (at, by, verb, subject, why) \
         VALUES (pabal.time(), $1, $2, $3, $4)",
    )
    .bind(act.by.as_str())
    .bind(act.verb.as_str())
    .bind(act.subject.as_str())
    .bind(act.why.as_deref());
    execute(transaction, query).await.map(drop)
}

/// Tells the holders of lanes what their tail read cannot see. Whoever posts goes on alone until it
/// has committed, so that numbers appear in their order: a reader asks for what is above the last.
pub(crate) async fn post(
    transaction: &mut Transaction,
    request: &Request,
) -> Result<(), StoreError> {
    fetch(transaction, sqlx::query("SELECT pg_advisory_xact_lock(8032, 2)")).await?;
    let query = sqlx::query(
        "DELETE FROM pabal.request WHERE id IN (SELECT id FROM pabal.request \
         WHERE at < pabal.time() - $1 * interval '1 microsecond' ORDER BY id LIMIT 1000)",
    )
    .bind(micros(REQUESTS_KEPT));
    execute(transaction, query).await?;
    let query = sqlx::query("INSERT INTO pabal.request (at, body) VALUES (pabal.time(), $1)")
        .bind(json(request));
    execute(transaction, query).await?;
    notify(transaction).await
}

pub(crate) async fn requests(
    store: &PostgresStore,
    after: i64,
) -> Result<Vec<(i64, Request)>, StoreError> {
    let query =
        sqlx::query("SELECT id, body FROM pabal.request WHERE id > $1 ORDER BY id LIMIT $2")
            .bind(after)
            .bind(REQUESTS_MAX);
    let rows = store.fetch(query).await?;
    rows.iter()
        .map(|row| {
            let mut row = Columns::of(row);
            Ok((row.next()?, from_json("request", row.next()?)?))
        })
        .collect()
}

pub(crate) async fn state(
    store: &PostgresStore,
    endpoint: &EndpointName,
    name: &str,
) -> Result<Option<StateValue>, StoreError> {
    let query = sqlx::query(
        "SELECT revision, value FROM pabal.adapter_state WHERE endpoint = $1 AND name = $2",
    )
    .bind(endpoint.as_str())
    .bind(name);
    match store.fetch(query).await?.first() {
        Some(row) => {
            let mut row = Columns::of(row);
            Ok(Some(StateValue { revision: row.next()?, value: row.next::<Vec<u8>>()?.into() }))
        }
        None => Ok(None),
    }
}

pub(crate) async fn set_state(
    transaction: &mut Transaction,
    endpoint: &EndpointName,
    name: &str,
    revision: i64,
    value: &[u8],
) -> Result<Result<(), StateConflict>, StoreError> {
    let query = if revision == 0 {
        sqlx::query(
            "INSERT INTO pabal.adapter_state (value, endpoint, name, revision) \
             VALUES ($1, $2, $3, 1) ON CONFLICT DO NOTHING",
        )
        .bind(value)
        .bind(endpoint.as_str())
        .bind(name)
    } else {
        sqlx::query(
            "UPDATE pabal.adapter_state SET value = $1, revision = revision + 1 \
             WHERE endpoint = $2 AND name = $3 AND revision = $4",
        )
        .bind(value)
        .bind(endpoint.as_str())
        .bind(name)
        .bind(revision)
    };
    Ok(match execute(transaction, query).await? {
        1 => Ok(()),
        _ => Err(StateConflict),
    })
}

pub(crate) async fn unrouted(store: &PostgresStore) -> Result<u64, StoreError> {
    let rows = store.ask(sqlx::query("SELECT count(*) FROM pabal.unrouted")).await?;
    match rows.first() {
        Some(row) => Columns::of(row).large(),
        None => Ok(0),
    }
}

/// A key is held from its lowest holding dead letter on; a dead letter that holds its destination
/// holds all of it.
const HELD_KEYS: &str = "SELECT endpoint, key, slot, min(number) AS number FROM pabal.dead_letter \
    WHERE holds = 'key' AND key IS NOT NULL GROUP BY endpoint, key, slot";

pub(crate) async fn counts(store: &PostgresStore) -> Result<Vec<EndpointCounts>, StoreError> {
    let mut counts = BTreeMap::new();
    each(
        store,
        "SELECT destination, count(*) FROM pabal.outbox GROUP BY destination",
        &mut counts,
        |count, row| {
            count.waiting = row.large()?;
            Ok(())
        },
    )
    .await?;
    each(
        store,
        "SELECT endpoint, count(*) FROM pabal.dead_letter WHERE superseded IS NULL \
         GROUP BY endpoint",
        &mut counts,
        |count, row| {
            count.dead = row.large()?;
            Ok(())
        },
    )
    .await?;
    let held = format!(
        "SELECT h.endpoint, count(*), sum((SELECT count(*) FROM pabal.outbox o \
         WHERE o.destination = h.endpoint AND o.slot = h.slot AND o.key = h.key \
         AND o.number > h.number))::bigint FROM ({HELD_KEYS}) h GROUP BY h.endpoint"
    );
    each(store, &held, &mut counts, |count, row| {
        count.keys_held = row.large()?;
        count.held = row.large()?;
        Ok(())
    })
    .await?;
    let whole = "SELECT DISTINCT endpoint FROM pabal.dead_letter WHERE holds = 'destination'";
    each(store, whole, &mut counts, |count, _| {
        count.held = count.waiting;
        Ok(())
    })
    .await?;
    // The lowest number that nothing holds is the oldest; found without counting the rest.
    let oldest = "SELECT d.destination, (SELECT o.accepted FROM pabal.outbox o \
        WHERE o.destination = d.destination \
        AND NOT EXISTS (SELECT 1 FROM pabal.dead_letter l WHERE l.holds = 'key' \
        AND l.endpoint = o.destination AND l.key = o.key AND l.number < o.number) \
        AND NOT EXISTS (SELECT 1 FROM pabal.dead_letter l WHERE l.holds = 'destination' \
        AND l.endpoint = o.destination) ORDER BY o.destination, o.number LIMIT 1) \
        FROM (SELECT DISTINCT destination FROM pabal.outbox) d";
    each(store, oldest, &mut counts, |count, row| {
        count.oldest = row.optional_time()?;
        Ok(())
    })
    .await?;
    Ok(counts.into_values().collect())
}

/// Runs a statement whose first column is an endpoint, and puts each row with its counts.
async fn each(
    store: &PostgresStore,
    sql: &str,
    counts: &mut BTreeMap<EndpointName, EndpointCounts>,
    put: impl Fn(&mut EndpointCounts, &mut Columns<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let query = sqlx::query(sqlx::AssertSqlSafe(sql.to_owned()));
    for row in store.ask(query).await? {
        let mut row = Columns::of(&row);
        let endpoint = row.endpoint()?;
        let count = counts.entry(endpoint.clone()).or_insert(EndpointCounts {
            endpoint,
            waiting: 0,
            held: 0,
            keys_held: 0,
            oldest: None,
            dead: 0,
        });
        put(count, &mut row)?;
    }
    Ok(())
}
