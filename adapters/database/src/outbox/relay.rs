//! The relay: looks for unsent rows, hands them over, and writes back what became of them.
//!
//! What was sent is known by the row's status and by nothing else, so that a row whose transaction
//! commits late is never passed over. A look is one question, in no transaction; only what is found is
//! locked, and what somebody else holds keeps the rest of its key from going. Nothing that is
//! remembered here decides anything: see `memory`.

use std::{sync::Arc, time::Duration};

use pabal_core::{Clock, EndpointName, ReceiveError, Sender, Stop};

use super::{
    access::Connection,
    hand_over::{Fate, Item, hand_over},
    memory::{Floor, Pace, Receipts, Waiting, Who},
    notify::Ear,
    settings::{Checked, RelayKind},
    table::Table,
    trouble::Trouble,
    write_back::PRUNE_FIRST,
};
use crate::connect::Pool;

/// Between attempts while the database is not to be had; it doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// No statement takes this long; a database that is silent is left.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// A transaction is open in the application's database for no longer than this: if the hub takes
/// longer, the rows are let go, and marked once it has them.
const HOLD_MAX: Duration = Duration::from_secs(10);

/// Relays the rows of one table.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(super) source: EndpointName,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) body_bytes_max: usize,
    pub(super) checked: Checked,
}

/// What a relay remembers.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) waiting: Waiting,
    pub(super) floor: Floor,
    pub(super) receipts: Receipts,
    pace: Pace,
    prune_at: Duration,
}

/// What a look found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// Nothing that could be dealt with.
    Nothing,
    /// All there was.
    All,
    /// There may be more at once.
    More,
}

impl Relay {
    /// Until `stop` fires.
    pub(super) async fn run(
        &self,
        inbox: &Arc<dyn Sender>,
        stop: &Stop,
        ear: Option<&Ear>,
    ) -> Result<(), ReceiveError> {
        let mut pause = PAUSE_FIRST;
        loop {
            match Box::pin(self.go_on(inbox, stop, ear, &mut pause)).await {
                Ok(()) => return Ok(()),
                Err(Trouble::Lasting(why)) => return Err(ReceiveError(why)),
                Err(Trouble::Passing(why)) => {
                    tracing::warn!(source = %self.source, why, again_in = ?pause, "the relay waits");
                }
            }
            tokio::select! {
                biased;
                () = stop.wait() => return Ok(()),
                () = self.clock.sleep(pause) => {}
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn go_on(
        &self,
        inbox: &Arc<dyn Sender>,
        stop: &Stop,
        ear: Option<&Ear>,
        pause: &mut Duration,
    ) -> Result<(), Trouble> {
        let settings = &self.checked.settings;
        let table = tokio::select! {
            biased;
            () = stop.wait() => return Ok(()),
            table = self.find() => table?,
        };
        let mut memory = Memory {
            waiting: Waiting::new(settings.interval),
            floor: Floor::default(),
            pace: Pace::new(settings.interval, settings.idle_interval),
            receipts: Receipts::new(),
            prune_at: self.clock.elapsed() + PRUNE_FIRST,
        };
        loop {
            if ear.is_some_and(Ear::may_have_missed) {
                memory.floor.reset();
            }
            let found = self.round(&table, &mut memory, inbox, stop).await?;
            if *pause > PAUSE_FIRST {
                tracing::info!(source = %self.source, "the relay goes on");
                *pause = PAUSE_FIRST;
            }
            let now = self.clock.elapsed();
            if stop.fired() {
                return Ok(());
            }
            if now >= memory.prune_at {
                memory.prune_at = now.saturating_add(self.prune(&table).await);
            }
            if found == Found::More {
                continue;
            }
            let hears = ear.is_some_and(Ear::is_listening);
            let mut wait = match found {
                _ if hears => settings.idle_interval,
                Found::Nothing => memory.pace.wait(),
                Found::All | Found::More => {
                    memory.pace.busy();
                    settings.interval
                }
            };
            if let Some(next) = memory.waiting.next(now) {
                wait = wait.min(next - now).max(settings.interval);
            }
            let heard = async {
                match ear {
                    Some(ear) => ear.heard().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stop.wait() => return Ok(()),
                () = heard => {}
                () = self.clock.sleep(wait) => {}
            }
        }
    }

    /// Limits the time that the database may say nothing.
    pub(super) async fn ask<T>(
        &self,
        what: &str,
        question: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, Trouble> {
        match self.clock.timeout(SILENCE_MAX, question).await {
            Some(answer) => answer.map_err(|error| Trouble::of(what, &error)),
            None => Err(Trouble::Passing(format!("{what}: no answer in {SILENCE_MAX:?}"))),
        }
    }

    pub(super) async fn connect(&self) -> Result<Connection, Trouble> {
        self.ask("connecting to the database", Connection::of(&self.checked.pool)).await
    }

    /// Looks what the table has.
    pub(super) async fn find(&self) -> Result<Table, Trouble> {
        let mut connection = self.connect().await?;
        let what = format!("looking at the table {}", self.checked.table);
        let found = self.ask(&what, Table::find(&self.checked, &mut connection)).await?;
        connection.give_back();
        found.map_err(Trouble::Lasting)
    }

    /// One look and what follows.
    async fn round(
        &self,
        table: &Table,
        memory: &mut Memory,
        inbox: &Arc<dyn Sender>,
        stop: &Stop,
    ) -> Result<Found, Trouble> {
        let prepared = tokio::select! {
            biased;
            () = stop.wait() => return Ok(Found::Nothing),
            prepared = self.prepare(table, memory) => prepared?,
        };
        let Some((mut items, connection, more)) = prepared else { return Ok(Found::Nothing) };
        let on_failed = self.checked.settings.on_failed;
        let mut held = connection;
        {
            let mut handing_over = std::pin::pin!(hand_over(&mut items, inbox, on_failed, stop));
            tokio::select! {
                biased;
                () = &mut handing_over => {}
                () = self.clock.sleep(HOLD_MAX), if held.is_some() => {
                    if let Some(connection) = held.take() {
                        let _ = self.clock.timeout(HOLD_MAX, connection.roll_back()).await;
                    }
                    handing_over.await;
                }
            }
        }
        self.write_back(table, &items, held, memory).await?;
        let moved = self.remember(table, &items, memory);
        Ok(match moved {
            false => Found::Nothing,
            true if more => Found::More,
            true => Found::All,
        })
    }

    /// Remembers who has to wait. Whether the next look finds others than this one.
    fn remember(&self, table: &Table, items: &[Item], memory: &mut Memory) -> bool {
        let now = self.clock.elapsed();
        let mut moved = false;
        let mut place = None;
        for item in items {
            match &item.fate {
                Fate::Taken => {
                    memory.waiting.forget(&item.who);
                    moved = true;
                }
                Fate::Refused(reason) => {
                    tracing::error!(
                        alert = true, source = %self.source, row = item.id, reason,
                        "a row was refused for good"
                    );
                    if table.shows_refusals() {
                        memory.waiting.forget(&item.who);
                    } else {
                        memory.waiting.wait(Who::Row(item.id.clone()), item.order, now);
                    }
                    moved = true;
                }
                Fate::Failed(reason) => {
                    tracing::warn!(source = %self.source, row = item.id, reason, "a row failed for now");
                    memory.waiting.wait(item.who.clone(), item.order, now);
                    moved = true;
                }
                Fate::Elsewhere => {
                    memory.waiting.try_soon(item.who.clone(), item.order, now);
                    moved = true;
                }
                Fate::Untouched(why) => {
                    if let Some(why) = why {
                        place = Some(why);
                    }
                }
                Fate::Ready(_) => {}
            }
        }
        if let Some(why) = place {
            tracing::warn!(source = %self.source, why, "the hub takes nothing at the moment");
        }
        let all = items
            .iter()
            .all(|item| !matches!(item.fate, Fate::Untouched(Some(_)) | Fate::Ready(_)));
        if let Some(highest) = items.iter().filter_map(|item| item.order).max()
            && all
        {
            memory.floor.saw(now, highest);
        }
        moved
    }

    /// The ear, where one listens.
    pub(super) fn ear(&self) -> Option<Ear> {
        match (&self.checked.pool, self.checked.settings.relay) {
            (Pool::Postgres(pool), RelayKind::Notify) => Some(Ear::listen(
                pool.clone(),
                self.checked.settings.notify.channel.clone(),
                self.source.clone(),
                Arc::clone(&self.clock),
            )),
            _ => None,
        }
    }
}
