//! Nodes and the lanes they hold. One file has one running hub, but the rows are the same as where
//! many share a database, and the engine asks the same.

use std::collections::{HashMap, HashSet};

use pabal_core::{Beat, Epoch, Lane, LaneHolder, StoreError};
use sqlx::SqliteConnection;

use crate::{SqliteStore, execute, fetch, rows::Columns};

/// One row per node name: the earlier life's epoch ends here, and what it holds can be taken.
pub(crate) async fn join(
    connection: &mut SqliteConnection,
    node: &str,
) -> Result<Epoch, StoreError> {
    let query = sqlx::query(
        "INSERT INTO node (name, epoch, beat) \
         SELECT ?, 1 + max(coalesce((SELECT max(epoch) FROM node), 0), \
         coalesce((SELECT max(holder) FROM lane), 0)), 0 WHERE true \
         ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, beat = 0 RETURNING epoch",
    )
    .bind(node);
    match fetch(connection, query).await?.first() {
        Some(row) => Columns::of(row).next().map(Epoch),
        None => Err(StoreError::Unavailable("no epoch was given".to_owned())),
    }
}

pub(crate) async fn beat(
    connection: &mut SqliteConnection,
    epoch: Epoch,
) -> Result<Vec<Beat>, StoreError> {
    let query = sqlx::query("UPDATE node SET beat = beat + 1 WHERE epoch = ?").bind(epoch.0);
    if execute(connection, query).await? == 0 {
        return Err(StoreError::Fenced);
    }
    let query = sqlx::query("SELECT name, epoch, beat FROM node ORDER BY name");
    let rows = fetch(connection, query).await?;
    rows.iter()
        .map(|row| {
            let mut row = Columns::of(row);
            Ok(Beat { node: row.next()?, epoch: Epoch(row.next()?), beat: row.next()? })
        })
        .collect()
}

pub(crate) async fn lanes(store: &SqliteStore) -> Result<Vec<LaneHolder>, StoreError> {
    let query = sqlx::query(
        "SELECT destination, layout, lane, holder FROM lane ORDER BY destination, layout, lane",
    );
    let rows = store.fetch(query).await?;
    rows.iter()
        .map(|row| {
            let mut row = Columns::of(row);
            Ok(LaneHolder {
                lane: Lane {
                    destination: row.endpoint()?,
                    layout: row.next()?,
                    index: row.count()?,
                },
                holder: row.next::<Option<i64>>()?.map(Epoch),
            })
        })
        .collect()
}

pub(crate) async fn hand_lane(
    connection: &mut SqliteConnection,
    lane: &Lane,
    from: Option<Epoch>,
    to: Option<Epoch>,
) -> Result<bool, StoreError> {
    let destination = lane.destination.as_str();
    if from.is_none() {
        let query = sqlx::query(
            "INSERT INTO lane (destination, layout, lane) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        )
        .bind(destination)
        .bind(lane.layout)
        .bind(i64::from(lane.index));
        execute(connection, query).await?;
    }
    let query = sqlx::query(
        "UPDATE lane SET holder = ? \
         WHERE destination = ? AND layout = ? AND lane = ? AND holder IS ?",
    )
    .bind(to.map(|epoch| epoch.0))
    .bind(destination)
    .bind(lane.layout)
    .bind(i64::from(lane.index))
    .bind(from.map(|epoch| epoch.0));
    Ok(execute(connection, query).await? == 1)
}

/// Destinations of which another epoch holds lanes, and this one none: its failures count no more.
/// All lanes of one file are held by one process, so a destination is never shared.
pub(crate) async fn fenced(
    connection: &mut SqliteConnection,
    epoch: Epoch,
) -> Result<HashSet<String>, StoreError> {
    let query = sqlx::query("SELECT destination, holder FROM lane WHERE holder IS NOT NULL");
    let mut ours: HashMap<String, bool> = HashMap::new();
    for row in fetch(connection, query).await? {
        let mut row = Columns::of(&row);
        let destination = row.next()?;
        *ours.entry(destination).or_default() |= row.next::<i64>()? == epoch.0;
    }
    Ok(ours.into_iter().filter_map(|(destination, ours)| (!ours).then_some(destination)).collect())
}
