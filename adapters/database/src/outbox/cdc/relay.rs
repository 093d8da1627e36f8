//! The life of a stream: opened, read, confirmed, opened again; and what happens while there is none.

use std::{
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use pabal_core::{Clock, Sender, State, Stop, StoreError};
use sqlx::PgPool;

use super::{
    super::relay::Relay as Poll,
    Fault,
    facts::Facts,
    hands::Hands,
    slot::Slot,
    stream::{Options, Stream},
    target::Target,
    watch::Watch,
};

/// The first wait before a stream is opened again, or a hand-over is tried again; it doubles.
const WAIT_FIRST: Duration = Duration::from_secs(1);
/// The longest.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// So many times in vain, and somebody is to look.
pub(super) const ALERT_AFTER: u32 = 3;
/// A slot that is not made by then waits for somebody.
const MADE_WITHIN: Duration = Duration::from_secs(10);
/// After so many quiet heartbeats the table is looked at for rows that were made new again.
const LOOK_AFTER: u32 = 6;
/// The durable value that says for which slot the table itself has been read.
const READ_FOR: &str = "cdc.read-for";

/// Relays the rows of one table out of the server's log.
#[derive(Debug)]
pub(crate) struct Cdc {
    /// The relay by polling: it knows the table, and steps in.
    pub(super) poll: Poll,
    pub(super) pool: PgPool,
    pub(super) slot: Slot,
    pub(super) options: Options,
    pub(super) kept_bytes_max: u64,
    /// Whether the table is polled while there is no stream.
    pub(super) fall_back: bool,
    pub(super) state: Arc<dyn State>,
    /// What was said last of why there is no stream, so that it is said once.
    pub(super) told: Mutex<Option<String>>,
}

impl Cdc {
    /// Relays until `stop` fires; whatever goes wrong, it tries again.
    pub(crate) async fn run(&self, inbox: &Arc<dyn Sender>, stop: &Stop) {
        let mut waits = Waits::default();
        while !stop.fired() {
            let began = self.clock().elapsed();
            let Err(fault) = Box::pin(self.session(inbox, stop)).await else { return };
            if fault == Fault::Stopped {
                return;
            }
            if self.clock().elapsed().saturating_sub(began) >= WAIT_MAX {
                waits = Waits::default();
            }
            let wait = waits.next();
            self.tell(&fault, waits.0, wait);
            if matches!(fault, Fault::Unavailable(_)) {
                // Whatever it was, rows may have passed the stream by.
                let forgotten = self.remember("").await;
                if self.fall_back && forgotten.is_ok() {
                    Box::pin(self.poll_meanwhile(inbox, stop)).await;
                    continue;
                }
            }
            self.pause(wait, stop).await;
        }
    }

    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.poll.clock
    }

    /// One stream, from its opening to its end.
    async fn session(&self, inbox: &Arc<dyn Sender>, stop: &Stop) -> Result<(), Fault> {
        let (table, facts) = tokio::select! {
            biased;
            () = stop.wait() => return Err(Fault::Stopped),
            found = async { Ok::<_, Fault>((self.poll.find().await?, self.prepare().await?)) } => found?,
        };
        let hands = Hands::new(self, &table, inbox, stop).await?;
        let options = Options {
            table: facts.table.unwrap_or_default(),
            byte_types: Slot::byte_types(&self.pool).await?,
            rows_max: hands.rows_max(),
            ..self.options.clone()
        };
        let target = Target::new(&self.pool.connect_options());
        let clock = Arc::clone(&self.poll.clock);
        // Who has the stream has the slot: what follows is done by one alone.
        let mut stream = Stream::open(&target, &self.slot, options, clock, stop.clone()).await?;
        let watch = Watch {
            source: &self.poll.source,
            pool: &self.pool,
            slot: &self.slot,
            kept_bytes_max: self.kept_bytes_max,
            every: self.options.heartbeat,
            clock: self.clock(),
        };
        let ended = tokio::select! {
            ended = self.relay(&mut stream, hands) => ended,
            ended = watch.run() => Err(ended),
            () = self.poll.keep_pruned(&table) => Ok(()),
        };
        if ended == Err(Fault::Stopped) {
            stream.close().await;
        }
        ended
    }

    /// Makes the slot if it is missing. What stands in the table is then to be read from there.
    async fn prepare(&self) -> Result<Facts, Fault> {
        let facts = self.slot.check(&self.pool).await?;
        if facts.slot.is_some() {
            return Ok(facts);
        }
        let (source, slot) = (&self.poll.source, &*self.slot.name);
        if self.read_for().await? == slot {
            tracing::error!(
                alert = true, %source, slot,
                "the slot is gone and is made anew: rows that still stand in the table are taken, rows \
                 deleted in the meantime are not"
            );
        } else {
            tracing::info!(%source, slot, "the slot is being made");
        }
        self.remember("").await?;
        let mut making = pin!(self.slot.create(&self.pool));
        tokio::select! {
            biased;
            made = &mut making => return made.map(|()| facts),
            () = self.clock().sleep(MADE_WITHIN) => {}
        }
        tracing::warn!(
            alert = true, %source, slot,
            "the slot is not made yet: it waits for transactions that began before it; \
             pg_stat_activity shows them"
        );
        making.await.map(|()| facts)
    }

    async fn relay(&self, stream: &mut Stream, mut hands: Hands<'_>) -> Result<(), Fault> {
        if self.read_for().await? != self.slot.name {
            stream.during(hands.take_unsent()).await?;
            self.remember(&self.slot.name).await?;
        }
        if self.told.lock().is_ok_and(|mut told| told.take().is_some()) {
            let (source, slot) = (&self.poll.source, &*self.slot.name);
            tracing::info!(%source, slot, "the stream is there again");
        }
        let next_look = || self.clock().elapsed() + self.options.heartbeat * LOOK_AFTER;
        let mut look_at = next_look();
        loop {
            let batch = stream.batch().await?;
            let waited_for = !batch.rows.is_empty();
            if waited_for {
                stream.during(hands.hand_over(batch.rows)).await?;
            } else if hands.may_refuse() && look_at <= self.clock().elapsed() {
                stream.during(hands.take_unsent()).await?;
                look_at = next_look();
            }
            if let Some(position) = batch.upto {
                stream.confirm(position, waited_for).await?;
            }
        }
    }

    /// Polls the table until the slot is there.
    async fn poll_meanwhile(&self, inbox: &Arc<dyn Sender>, stop: &Stop) {
        let source = &self.poll.source;
        tracing::warn!(%source, "the table is polled until there is a stream");
        let enough = Stop::new();
        let mut polling = pin!(self.poll.run(inbox, &enough, None));
        let back = async {
            loop {
                self.pause(self.options.heartbeat, stop).await;
                if stop.fired() || self.prepare().await.is_ok() {
                    return;
                }
            }
        };
        tokio::select! {
            ended = &mut polling => {
                let why = ended.map_or_else(|error| error.to_string(), |()| "it ended".to_owned());
                tracing::error!(alert = true, %source, why, "the table cannot be polled either");
                self.pause(WAIT_MAX, stop).await;
            }
            () = back => {
                enough.fire();
                // What is in hand is finished.
                let _ = polling.await;
            }
        }
    }

    /// For which slot the table itself has been read; empty: for none.
    async fn read_for(&self) -> Result<String, Fault> {
        let value = self.state.get(READ_FOR).await.map_err(not_kept)?;
        Ok(value.map_or_else(String::new, |it| String::from_utf8_lossy(&it.value).into_owned()))
    }

    async fn remember(&self, slot: &str) -> Result<(), Fault> {
        let before = self.state.get(READ_FOR).await.map_err(not_kept)?;
        let revision = before.map_or(0, |value| value.revision);
        let value = Bytes::copy_from_slice(slot.as_bytes());
        match self.state.compare_and_set(READ_FOR, revision, value).await.map_err(not_kept)? {
            Ok(()) => Ok(()),
            Err(conflict) => Err(Fault::Busy(format!("another node relays as well: {conflict}"))),
        }
    }

    fn tell(&self, fault: &Fault, tries: u32, again_in: Duration) {
        let why = fault.to_string();
        let is_new = self.told.lock().is_ok_and(|mut told| {
            let is_new = told.as_ref() != Some(&why);
            *told = Some(why.clone());
            is_new
        });
        let alert = match fault {
            Fault::Unavailable(_) => is_new,
            _ => tries == ALERT_AFTER,
        };
        let (source, slot) = (&self.poll.source, &*self.slot.name);
        if alert {
            tracing::error!(alert = true, %source, slot, why, ?again_in, "there is no stream");
        } else {
            tracing::warn!(%source, slot, why, ?again_in, "there is no stream");
        }
    }

    pub(super) async fn pause(&self, time: Duration, stop: &Stop) {
        tokio::select! {
            () = self.clock().sleep(time) => {}
            () = stop.wait() => {}
        }
    }
}

fn not_kept(error: StoreError) -> Fault {
    Fault::Lost(format!("the hub's store: {error}"))
}

/// Waits that double, and how many there were.
#[derive(Debug, Default)]
pub(super) struct Waits(pub(super) u32);

impl Waits {
    pub(super) fn next(&mut self) -> Duration {
        let wait = WAIT_FIRST.saturating_mul(1 << self.0.min(16));
        self.0 = self.0.saturating_add(1);
        wait.min(WAIT_MAX)
    }
}
