//! Handing out to a partner that fetches its messages.

use std::{collections::HashSet, sync::Arc};

use jiff::Timestamp;
use pabal_core::{
    Delivery, EndpointName, LAPSED, Number, Order, PullAsk, PullPage, Scan, StoreError,
};
use sqlx::AssertSqlSafe;

use crate::{
    Transaction,
    claim::{DELIVERY, delivery},
    execute, fetch,
    rows::{Columns, micros, saturate, span},
};

/// Deliveries or keys looked at in one page.
const PAGE: usize = 500;

pub(crate) async fn pull(
    transaction: &mut Transaction,
    destination: &EndpointName,
    ask: &PullAsk,
) -> Result<PullPage, StoreError> {
    let seen = look(transaction, destination, ask).await?;
    let candidates = candidates(&seen, ask.order);
    let (taken, spent) = match candidates.is_empty() {
        true => Default::default(),
        false => ask.choose(free(transaction, ask, candidates).await?),
    };
    hand_out(transaction, ask, &taken).await?;
    let last = seen.last().filter(|_| seen.len() == PAGE);
    Ok(PullPage {
        taken,
        spent,
        next: last.map(|last| match (&ask.scan, &last.key) {
            (Scan::Keys(_), Some(key)) => Scan::Keys(Some((last.slot, Arc::clone(key)))),
            _ => Scan::Numbers(last.number),
        }),
        due_in: seen.iter().filter(|it| !it.is_due()).map(|it| span(it.now, it.due)).min(),
    })
}

/// A delivery that was looked at.
struct Seen {
    number: Number,
    slot: u8,
    key: Option<Arc<str>>,
    due: Timestamp,
    now: Timestamp,
}

impl Seen {
    fn is_due(&self) -> bool {
        self.due <= self.now
    }
}

async fn look(
    transaction: &mut Transaction,
    destination: &EndpointName,
    ask: &PullAsk,
) -> Result<Vec<Seen>, StoreError> {
    let page = if ask.order == Order::All { 1 } else { saturate(PAGE as u64) };
    // Written as ranges of one index, as every claim is.
    let query = match &ask.scan {
        Scan::Numbers(after) => sqlx::query(
            "SELECT number, slot, key, due, pabal.time() FROM pabal.outbox \
             WHERE (destination, number) > ($1, $2) AND destination <= $1 \
             ORDER BY destination, number LIMIT $3",
        )
        .bind(destination.as_str())
        .bind(after)
        .bind(page),
        // From each key to the next one, past all that stands behind its first.
        Scan::Keys(after) => {
            let (slot, key) =
                after.as_ref().map_or((-1, ""), |(slot, key)| (i16::from(*slot), key));
            sqlx::query(
                "WITH RECURSIVE head (number, place) AS (SELECT (SELECT number FROM pabal.outbox \
                 WHERE key IS NOT NULL AND (destination, slot, key) > ($1, $2, $3) \
                 AND destination <= $1 ORDER BY destination, slot, key, number LIMIT 1), 1::bigint \
                 UNION ALL SELECT (SELECT e.number FROM pabal.outbox e WHERE e.key IS NOT NULL \
                 AND (e.destination, e.slot, e.key) > ($1, o.slot, o.key) AND e.destination <= $1 \
                 ORDER BY e.destination, e.slot, e.key, e.number LIMIT 1), place + 1 \
                 FROM head JOIN pabal.outbox o ON o.number = head.number WHERE place < $4) \
                 SELECT o.number, o.slot, o.key, o.due, pabal.time() FROM head \
                 JOIN pabal.outbox o ON o.number = head.number",
            )
            .bind(destination.as_str())
            .bind(slot)
            .bind(key)
            .bind(page)
        }
    };
    let rows = fetch(transaction, query).await?;
    let seen = rows.iter().map(|row| {
        let mut row = Columns::of(row);
        let (number, slot) = (row.next()?, row.next::<i16>()?);
        let key = row.next::<Option<&str>>()?.map(Into::into);
        let (due, now) = (row.time()?, row.time()?);
        Ok(Seen { number, slot: u8::try_from(slot).unwrap_or_default(), key, due, now })
    });
    seen.collect()
}

/// Those that are due; of each key only the first can be the one that may go.
fn candidates(seen: &[Seen], order: Order) -> Vec<Number> {
    let mut keys = HashSet::new();
    let first = |it: &&Seen| match (order, &it.key) {
        (Order::Key, Some(key)) => keys.insert(Arc::clone(key)),
        _ => true,
    };
    seen.iter().filter(first).filter(|it| it.is_due()).map(|it| it.number).collect()
}

/// Of the candidates those with nothing in front of them, the oldest first, locked. All of it is seen
/// at one moment: what dies or comes back is never in neither table. Another call's choice is waited
/// for, in the order of numbers as in every settle, and is then no longer due.
async fn free(
    transaction: &mut Transaction,
    ask: &PullAsk,
    candidates: Vec<Number>,
) -> Result<Vec<Delivery>, StoreError> {
    // Single values of one index entry each, which no planner turns into a join of whole tables.
    let unblocked = match ask.order {
        Order::None => "",
        Order::All => {
            " AND (SELECT d.number FROM pabal.dead_letter d WHERE d.holds <> 'nothing' \
             AND d.endpoint = o.destination AND d.number < o.number LIMIT 1) IS NULL"
        }
        Order::Key => {
            " AND (o.key IS NULL OR ((SELECT e.number FROM pabal.outbox e WHERE e.key IS NOT NULL \
             AND (e.destination, e.slot, e.key, e.number) >= (o.destination, o.slot, o.key, 0) \
             ORDER BY e.destination, e.slot, e.key, e.number LIMIT 1) = o.number \
             AND (SELECT d.number FROM pabal.dead_letter d WHERE d.holds <> 'nothing' \
             AND d.holds = 'key' AND d.endpoint = o.destination AND d.key = o.key \
             AND d.number < o.number LIMIT 1) IS NULL))"
        }
    };
    let unsuspected = if ask.unsuspected { " AND o.started = 0" } else { "" };
    let sql = format!(
        "SELECT {DELIVERY} FROM pabal.outbox o WHERE o.number = ANY($1) \
         AND o.due <= pabal.time(){unsuspected}{unblocked} ORDER BY o.number LIMIT $2 \
         FOR UPDATE OF o"
    );
    let query = sqlx::query(AssertSqlSafe(sql)).bind(candidates).bind(saturate(ask.max as u64));
    let rows = fetch(transaction, query).await?;
    rows.iter().map(delivery).collect()
}

/// What had lapsed is an attempt that failed; all are out from now on.
async fn hand_out(
    transaction: &mut Transaction,
    ask: &PullAsk,
    taken: &[Delivery],
) -> Result<(), StoreError> {
    if taken.is_empty() {
        return Ok(());
    }
    let lapsed: Vec<_> = taken.iter().filter(|it| it.started > 0).map(|it| it.number).collect();
    if !lapsed.is_empty() {
        let query = sqlx::query(
            "INSERT INTO pabal.delivery_log (day, at, message, number, destination, round, outcome, \
             duration, cause) SELECT pabal.today(), pabal.time(), message, number, destination, \
             round, 'transient', $1, $2 FROM pabal.outbox WHERE number = ANY($3) ORDER BY number",
        )
        .bind(micros(ask.lease))
        .bind(LAPSED)
        .bind(lapsed);
        execute(transaction, query).await?;
    }
    let query = sqlx::query(
        "UPDATE pabal.outbox SET due = pabal.time() + $1 * interval '1 microsecond', \
         attempts = attempts + started, started = 1 WHERE number = ANY($2)",
    )
    .bind(micros(ask.lease))
    .bind(taken.iter().map(|it| it.number).collect::<Vec<_>>());
    execute(transaction, query).await.map(drop)
}
