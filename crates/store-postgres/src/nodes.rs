//! Nodes and the lanes they hold.

use std::collections::{HashMap, HashSet};

use pabal_core::{
    Beat, EndpointName, Epoch, Lane, LaneHolder, Layout, NodePlan, Order, StandingStill, StoreError,
};
use sqlx::postgres::PgRow;

use crate::{
    PostgresStore, Transaction,
    error::unreadable,
    execute, fetch, notify,
    rows::{Columns, Query, span, word},
};

pub(crate) async fn join(
    transaction: &mut Transaction,
    node: &str,
    plan: &NodePlan,
) -> Result<Epoch, StoreError> {
    let endpoints: Vec<_> = plan.endpoints.iter().map(|it| it.as_str()).collect();
    let query = sqlx::query(
        "INSERT INTO pabal.plan (hash, endpoints) VALUES ($1, $2) ON CONFLICT DO NOTHING",
    )
    .bind(plan.hash.as_str())
    .bind(endpoints);
    execute(transaction, query).await?;
    let query = sqlx::query(
        "INSERT INTO pabal.node (name, plan, beat, at) VALUES ($1, $2, 0, pabal.time()) \
         RETURNING epoch",
    )
    .bind(node)
    .bind(plan.hash.as_str());
    let epoch = match fetch(transaction, query).await?.first() {
        Some(row) => Columns::of(row).next().map(Epoch)?,
        None => return Err(StoreError::Unavailable("no epoch was given".to_owned())),
    };
    notify(transaction).await?;
    Ok(epoch)
}

const NODES: &str =
    "SELECT name, epoch, beat, at, plan, pabal.time() FROM pabal.node ORDER BY epoch";

/// One statement that renews, one that reads: a statement does not see its own update.
pub(crate) async fn beat(
    transaction: &mut Transaction,
    epoch: Epoch,
) -> Result<Vec<Beat>, StoreError> {
    let query =
        sqlx::query("UPDATE pabal.node SET beat = beat + 1, at = pabal.time() WHERE epoch = $1")
            .bind(epoch.0);
    if execute(transaction, query).await? == 0 {
        return Err(StoreError::Fenced);
    }
    beats(&fetch(transaction, sqlx::query(NODES)).await?)
}

pub(crate) async fn nodes(store: &PostgresStore) -> Result<Vec<Beat>, StoreError> {
    beats(&store.fetch(sqlx::query(NODES)).await?)
}

fn beats(rows: &[PgRow]) -> Result<Vec<Beat>, StoreError> {
    rows.iter()
        .map(|row| {
            let mut row = Columns::of(row);
            let (node, epoch, beat) = (row.next()?, Epoch(row.next()?), row.next()?);
            let (at, plan) = (row.time()?, row.next()?);
            Ok(Beat { node, epoch, beat, age: span(at, row.time()?), plan })
        })
        .collect()
}

pub(crate) async fn leave(transaction: &mut Transaction, epoch: Epoch) -> Result<bool, StoreError> {
    let query = sqlx::query(
        "DELETE FROM pabal.node WHERE epoch = $1 \
         AND NOT EXISTS (SELECT 1 FROM pabal.lane WHERE holder = $1)",
    )
    .bind(epoch.0);
    let left = execute(transaction, query).await? == 1;
    if left {
        let unused = sqlx::query(
            "DELETE FROM pabal.plan p WHERE NOT EXISTS \
             (SELECT 1 FROM pabal.node n WHERE n.plan = p.hash)",
        );
        execute(transaction, unused).await?;
        notify(transaction).await?;
    }
    Ok(left)
}

pub(crate) async fn plan(
    store: &PostgresStore,
    hash: &str,
) -> Result<Option<Vec<EndpointName>>, StoreError> {
    let query = sqlx::query("SELECT endpoints FROM pabal.plan WHERE hash = $1").bind(hash);
    let rows = store.fetch(query).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let endpoints: Vec<String> = Columns::of(row).next()?;
    let parsed = endpoints.iter().map(|it| it.parse().map_err(|error| unreadable("name", error)));
    parsed.collect::<Result<_, _>>().map(Some)
}

fn layout(row: &PgRow) -> Result<Layout, StoreError> {
    let mut row = Columns::of(row);
    Ok(Layout {
        destination: row.endpoint()?,
        number: row.next()?,
        lanes: row.count()?,
        order: row.word()?,
    })
}

pub(crate) async fn layouts(store: &PostgresStore) -> Result<Vec<Layout>, StoreError> {
    let query = sqlx::query("SELECT destination, number, lanes, ordering FROM pabal.layout");
    store.fetch(query).await?.iter().map(layout).collect()
}

pub(crate) async fn lay_out(
    transaction: &mut Transaction,
    destination: &EndpointName,
    lanes: u16,
    order: Order,
) -> Result<Layout, StoreError> {
    let query = sqlx::query(
        "INSERT INTO pabal.layout AS l (destination, number, lanes, ordering) \
         VALUES ($1, 1, $2, $3) ON CONFLICT (destination) DO UPDATE SET number = l.number + 1, \
         lanes = excluded.lanes, ordering = excluded.ordering \
         WHERE l.lanes <> excluded.lanes OR l.ordering <> excluded.ordering",
    )
    .bind(destination.as_str())
    .bind(i32::from(lanes))
    .bind(word(order));
    execute(transaction, query).await?;
    let query = sqlx::query(
        "SELECT destination, number, lanes, ordering FROM pabal.layout WHERE destination = $1",
    )
    .bind(destination.as_str());
    match fetch(transaction, query).await?.first() {
        Some(row) => layout(row),
        None => Err(StoreError::Unavailable("no layout was written".to_owned())),
    }
}

pub(crate) async fn lanes(store: &PostgresStore) -> Result<Vec<LaneHolder>, StoreError> {
    let query = sqlx::query(
        "SELECT endpoint, layout, lane, holder, clean FROM pabal.lane \
         ORDER BY endpoint, layout, lane",
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
    transaction: &mut Transaction,
    lane: &Lane,
    from: Option<StandingStill>,
    to: Epoch,
) -> Result<bool, StoreError> {
    if let Some(from) = from
        && !stands_still(transaction, from).await?
    {
        return Ok(false);
    }
    let mut lanes = 1;
    if lane.layout != Lane::RECEIVER {
        // Locked against a new layout until this lane is taken, ...
        let query = sqlx::query(
            "SELECT lanes FROM pabal.layout WHERE destination = $1 AND number = $2 FOR SHARE",
        )
        .bind(lane.endpoint.as_str())
        .bind(lane.layout);
        match fetch(transaction, query).await?.first() {
            Some(row) => lanes = Columns::of(row).next()?,
            None => return Ok(false),
        }
        // ... and nobody can take a lane of an earlier one any more: those that are held only end.
        let query = sqlx::query(
            "SELECT 1 FROM pabal.lane WHERE endpoint = $1 AND layout BETWEEN 1 AND $2 - 1 \
             AND holder IS NOT NULL LIMIT 1",
        )
        .bind(lane.endpoint.as_str())
        .bind(lane.layout);
        if !fetch(transaction, query).await?.is_empty() {
            return Ok(false);
        }
    }
    let query = sqlx::query(
        "INSERT INTO pabal.lane (endpoint, layout, lane, lanes, clean) \
         VALUES ($1, $2, $3, $4, true) ON CONFLICT DO NOTHING",
    );
    execute(transaction, bind(query, lane).bind::<i32>(lanes)).await?;
    let query = sqlx::query(
        "UPDATE pabal.lane SET holder = $4 WHERE endpoint = $1 AND layout = $2 AND lane = $3 \
         AND holder IS NOT DISTINCT FROM $5",
    );
    let query = bind(query, lane).bind(to.0).bind(from.map(|from| from.epoch.0));
    let taken = execute(transaction, query).await? == 1;
    if taken && lane.layout != Lane::RECEIVER {
        // Once every lane of the layout was taken, how the earlier one ended is known to all.
        let query = sqlx::query(
            "DELETE FROM pabal.lane WHERE endpoint = $1 AND layout BETWEEN 1 AND $2 - 1 AND \
             (SELECT count(*) FROM pabal.lane WHERE endpoint = $1 AND layout = $2) = $3",
        )
        .bind(lane.endpoint.as_str())
        .bind(lane.layout)
        .bind(i64::from(lanes));
        execute(transaction, query).await?;
    }
    Ok(taken)
}

pub(crate) async fn release_lane(
    transaction: &mut Transaction,
    lane: &Lane,
    holder: Epoch,
    clean: bool,
) -> Result<bool, StoreError> {
    let query = sqlx::query(
        "UPDATE pabal.lane SET holder = NULL, clean = $5 \
         WHERE endpoint = $1 AND layout = $2 AND lane = $3 AND holder = $4",
    );
    let query = bind(query, lane).bind(holder.0).bind(clean);
    Ok(execute(transaction, query).await? == 1)
}

pub(crate) async fn give_up_lane(
    transaction: &mut Transaction,
    lane: &Lane,
    holder: StandingStill,
) -> Result<bool, StoreError> {
    Ok(stands_still(transaction, holder).await?
        && release_lane(transaction, lane, holder.epoch, false).await?)
}

/// A life that is gone stands still for ever. The row is locked, so that one that beats again finds
/// out, when it has, what was taken from it.
async fn stands_still(
    transaction: &mut Transaction,
    StandingStill { epoch, beat }: StandingStill,
) -> Result<bool, StoreError> {
    let query =
        sqlx::query("SELECT beat FROM pabal.node WHERE epoch = $1 FOR UPDATE").bind(epoch.0);
    match fetch(transaction, query).await?.first() {
        Some(row) => Ok(Columns::of(row).next::<i64>()? == beat),
        None => Ok(true),
    }
}

fn bind<'q>(query: Query<'q>, lane: &'q Lane) -> Query<'q> {
    query.bind(lane.endpoint.as_str()).bind(lane.layout).bind(i32::from(lane.index))
}

/// Which deliveries' failures count from one epoch: those in lanes that it holds.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Per destination the number of lanes of the layout, and those that this epoch holds.
    ours: HashMap<String, (i32, HashSet<i32>)>,
}

impl Held {
    /// The rows are locked: whoever takes one of these lanes over waits until what is written now
    /// can be seen.
    pub(crate) async fn by(
        transaction: &mut Transaction,
        epoch: Epoch,
        destinations: Vec<String>,
    ) -> Result<Self, StoreError> {
        let query = sqlx::query(
            "SELECT endpoint, lanes, lane FROM pabal.lane WHERE layout > 0 AND holder = $1 \
             AND endpoint = ANY($2) ORDER BY endpoint, layout, lane FOR SHARE",
        )
        .bind(epoch.0)
        .bind(destinations);
        let mut held = Self::default();
        for row in fetch(transaction, query).await? {
            let mut row = Columns::of(&row);
            let endpoint: String = row.next()?;
            let lanes: i32 = row.next()?;
            let (_, ours) = held.ours.entry(endpoint).or_insert_with(|| (lanes, HashSet::new()));
            ours.insert(row.next()?);
        }
        Ok(held)
    }

    pub(crate) fn holds(&self, destination: &str, slot: i16) -> bool {
        self.ours
            .get(destination)
            .is_some_and(|(lanes, ours)| ours.contains(&(i32::from(slot) % (*lanes).max(1))))
    }
}
