//! Nodes and the lanes they hold. One file has one running hub, but the rows are the same as where
//! many share a database, and the engine asks the same.

use std::collections::{HashMap, HashSet};

use pabal_core::{
    Beat, EndpointName, Epoch, Lane, LaneHolder, Layout, NodePlan, Order, StandingStill, StoreError,
};
use sqlx::SqliteConnection;

use crate::{
    SqliteStore, execute, fetch,
    rows::{Columns, from_json, json, span, word},
};

pub(crate) async fn join(
    connection: &mut SqliteConnection,
    node: &str,
    plan: &NodePlan,
    now: i64,
) -> Result<Epoch, StoreError> {
    let query =
        sqlx::query("INSERT INTO plan (hash, endpoints) VALUES (?, ?) ON CONFLICT DO NOTHING")
            .bind(plan.hash.as_str())
            .bind(json(&plan.endpoints));
    execute(connection, query).await?;
    let query =
        sqlx::query("INSERT INTO node (name, plan, beat, at) VALUES (?, ?, 0, ?) RETURNING epoch")
            .bind(node)
            .bind(plan.hash.as_str())
            .bind(now);
    match fetch(connection, query).await?.first() {
        Some(row) => Columns::of(row).next().map(Epoch),
        None => Err(StoreError::Unavailable("no epoch was given".to_owned())),
    }
}

pub(crate) async fn beat(
    connection: &mut SqliteConnection,
    epoch: Epoch,
    now: i64,
) -> Result<Vec<Beat>, StoreError> {
    let query = sqlx::query("UPDATE node SET beat = beat + 1, at = ? WHERE epoch = ?")
        .bind(now)
        .bind(epoch.0);
    if execute(connection, query).await? == 0 {
        return Err(StoreError::Fenced);
    }
    beats(&fetch(connection, sqlx::query(NODES)).await?, now)
}

const NODES: &str = "SELECT name, epoch, beat, at, plan FROM node ORDER BY epoch";

pub(crate) async fn nodes(store: &SqliteStore) -> Result<Vec<Beat>, StoreError> {
    beats(&store.fetch(sqlx::query(NODES)).await?, store.now())
}

fn beats(rows: &[sqlx::sqlite::SqliteRow], now: i64) -> Result<Vec<Beat>, StoreError> {
    rows.iter()
        .map(|row| {
            let mut row = Columns::of(row);
            Ok(Beat {
                node: row.next()?,
                epoch: Epoch(row.next()?),
                beat: row.next()?,
                age: span(row.next()?, now),
                plan: row.next()?,
            })
        })
        .collect()
}

pub(crate) async fn leave(
    connection: &mut SqliteConnection,
    epoch: Epoch,
) -> Result<bool, StoreError> {
    let query = sqlx::query(
        "DELETE FROM node WHERE epoch = ?1 AND NOT EXISTS (SELECT 1 FROM lane WHERE holder = ?1)",
    )
    .bind(epoch.0);
    let left = execute(connection, query).await? == 1;
    let unused = sqlx::query("DELETE FROM plan WHERE hash NOT IN (SELECT plan FROM node)");
    execute(connection, unused).await?;
    Ok(left)
}

pub(crate) async fn plan(
    store: &SqliteStore,
    hash: &str,
) -> Result<Option<Vec<EndpointName>>, StoreError> {
    let query = sqlx::query("SELECT endpoints FROM plan WHERE hash = ?").bind(hash);
    match store.fetch(query).await?.first() {
        Some(row) => from_json("plan", Columns::of(row).next()?).map(Some),
        None => Ok(None),
    }
}

const LAYOUTS: &str = "SELECT destination, number, lanes, ordering FROM layout";

fn layout(row: &sqlx::sqlite::SqliteRow) -> Result<Layout, StoreError> {
    let mut row = Columns::of(row);
    Ok(Layout {
        destination: row.endpoint()?,
        number: row.next()?,
        lanes: row.count()?,
        order: row.word()?,
    })
}

pub(crate) async fn layouts(store: &SqliteStore) -> Result<Vec<Layout>, StoreError> {
    store.fetch(sqlx::query(LAYOUTS)).await?.iter().map(layout).collect()
}

pub(crate) async fn lay_out(
    connection: &mut SqliteConnection,
    destination: &EndpointName,
    lanes: u16,
    order: Order,
) -> Result<Layout, StoreError> {
    let query = sqlx::query(
        "INSERT INTO layout (destination, number, lanes, ordering) VALUES (?, 1, ?, ?) \
         ON CONFLICT DO UPDATE SET number = number + 1, lanes = excluded.lanes, \
         ordering = excluded.ordering \
         WHERE lanes <> excluded.lanes OR ordering <> excluded.ordering",
    )
    .bind(destination.as_str())
    .bind(i64::from(lanes))
    .bind(word(order));
    execute(connection, query).await?;
    let query = sqlx::query(
        "SELECT destination, number, lanes, ordering FROM layout WHERE destination = ?",
    )
    .bind(destination.as_str());
    match fetch(connection, query).await?.first() {
        Some(row) => layout(row),
        None => Err(StoreError::Unavailable("no layout was written".to_owned())),
    }
}

pub(crate) async fn lanes(store: &SqliteStore) -> Result<Vec<LaneHolder>, StoreError> {
    let query = sqlx::query(
        "SELECT endpoint, layout, lane, holder, clean FROM lane ORDER BY endpoint, layout, lane",
    );
    let rows = store.fetch(query).await?;
    rows.iter()
        .map(|row| {
            let mut row = Columns::of(row);
            Ok(LaneHolder {
                lane: Lane { endpoint: row.endpoint()?, layout: row.next()?, index: row.count()? },
                holder: row.next::<Option<i64>>()?.map(Epoch),
                clean: row.next()?,
            })
        })
        .collect()
}

pub(crate) async fn take_lane(
    connection: &mut SqliteConnection,
    lane: &Lane,
    from: Option<StandingStill>,
    to: Epoch,
) -> Result<bool, StoreError> {
    if let Some(from) = from
        && !stands_still(connection, from).await?
    {
        return Ok(false);
    }
    let mut lanes = 1;
    if lane.layout != Lane::RECEIVER {
        let query = sqlx::query(
            "SELECT lanes FROM layout WHERE destination = ?1 AND number = ?2 AND NOT EXISTS \
             (SELECT 1 FROM lane WHERE endpoint = ?1 AND layout BETWEEN 1 AND ?2 - 1 \
             AND holder IS NOT NULL)",
        )
        .bind(lane.endpoint.as_str())
        .bind(lane.layout);
        match fetch(connection, query).await?.first() {
            Some(row) => lanes = Columns::of(row).next()?,
            None => return Ok(false),
        }
    }
    let query = sqlx::query(
        "INSERT INTO lane (endpoint, layout, lane, lanes, clean) VALUES (?, ?, ?, ?, true) \
         ON CONFLICT DO NOTHING",
    );
    execute(connection, bind(query, lane).bind::<i64>(lanes)).await?;
    let query = sqlx::query(
        "UPDATE lane SET holder = ?4 \
         WHERE endpoint = ?1 AND layout = ?2 AND lane = ?3 AND holder IS ?5",
    );
    let query = bind(query, lane).bind(to.0).bind(from.map(|from| from.epoch.0));
    let taken = execute(connection, query).await? == 1;
    if taken && lane.layout != Lane::RECEIVER {
        // Once every lane of the layout was taken, how the earlier one ended is known to all.
        let query = sqlx::query(
            "DELETE FROM lane WHERE endpoint = ?1 AND layout BETWEEN 1 AND ?2 - 1 AND \
             (SELECT count(*) FROM lane WHERE endpoint = ?1 AND layout = ?2) = \
             (SELECT lanes FROM layout WHERE destination = ?1)",
        )
        .bind(lane.endpoint.as_str())
        .bind(lane.layout);
        execute(connection, query).await?;
    }
    Ok(taken)
}

pub(crate) async fn release_lane(
    connection: &mut SqliteConnection,
    lane: &Lane,
    holder: Epoch,
    clean: bool,
) -> Result<bool, StoreError> {
    let query = sqlx::query(
        "UPDATE lane SET holder = NULL, clean = ?5 \
         WHERE endpoint = ?1 AND layout = ?2 AND lane = ?3 AND holder = ?4",
    );
    let query = bind(query, lane).bind(holder.0).bind(clean);
    Ok(execute(connection, query).await? == 1)
}

pub(crate) async fn give_up_lane(
    connection: &mut SqliteConnection,
    lane: &Lane,
    holder: StandingStill,
) -> Result<bool, StoreError> {
    Ok(stands_still(connection, holder).await?
        && release_lane(connection, lane, holder.epoch, false).await?)
}

/// A life that is gone stands still for ever.
async fn stands_still(
    connection: &mut SqliteConnection,
    StandingStill { epoch, beat }: StandingStill,
) -> Result<bool, StoreError> {
    let query =
        sqlx::query("SELECT 1 FROM node WHERE epoch = ? AND beat <> ?").bind(epoch.0).bind(beat);
    Ok(fetch(connection, query).await?.is_empty())
}

fn bind<'q>(query: crate::rows::Query<'q>, lane: &'q Lane) -> crate::rows::Query<'q> {
    query.bind(lane.endpoint.as_str()).bind(lane.layout).bind(i64::from(lane.index))
}

/// Which deliveries' failures count from one epoch: those in lanes that it holds.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Per destination the number of lanes of the layout, and those that this epoch holds.
    ours: HashMap<String, (i64, HashSet<i64>)>,
}

impl Held {
    pub(crate) async fn by(
        connection: &mut SqliteConnection,
        epoch: Epoch,
    ) -> Result<Self, StoreError> {
        let query =
            sqlx::query("SELECT endpoint, lanes, lane FROM lane WHERE layout > 0 AND holder = ?")
                .bind(epoch.0);
        let mut held = Self::default();
        for row in fetch(connection, query).await? {
            let mut row = Columns::of(&row);
            let endpoint: String = row.next()?;
            let lanes: i64 = row.next()?;
            let (_, ours) = held.ours.entry(endpoint).or_insert_with(|| (lanes, HashSet::new()));
            ours.insert(row.next()?);
        }
        Ok(held)
    }

    pub(crate) fn holds(&self, destination: &str, slot: i64) -> bool {
        self.ours
            .get(destination)
            .is_some_and(|(lanes, ours)| ours.contains(&(slot % (*lanes).max(1))))
    }
}
