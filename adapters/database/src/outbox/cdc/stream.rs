//! The stream of committed rows: batches out of it, and the confirmed position back into it. One task
//! drives it; nothing is read ahead of what is being handed over, so the server waits when the hub does,
//! and it hears from us all the same.

use std::{collections::HashMap, pin::pin, sync::Arc, time::Duration};

use bytes::{Buf, BytesMut};
use futures_util::FutureExt;
use pabal_core::{Clock, Stop};
use postgres_protocol::message::frontend;

use super::{
    Fault,
    pgoutput::{self, Column, Event, Head, Insert, Lsn, Relation},
    slot::Slot,
    target::Target,
    wire::{Frame, HEADER, Wire},
};

/// How soon a position is confirmed that nothing waits for.
const CONFIRM_WITHIN: Duration = Duration::from_secs(1);
/// How long the last words of a stream may take.
const FAREWELL: Duration = Duration::from_secs(1);
/// Of a row, the bytes beside its largest column.
const ROW_REST: usize = 1024 * 1024;

/// What to open, and how much of it may be held.
#[derive(Debug, Clone)]
pub(super) struct Options {
    /// Schema and name of the one table whose rows are wanted.
    pub(super) table: (String, String),
    /// How often the server hears from us at least.
    pub(super) heartbeat: Duration,
    /// Rows of a batch.
    pub(super) rows_max: usize,
    /// Bytes of a batch; one row may be more.
    pub(super) bytes_max: usize,
    /// Bytes of a column as the server writes it.
    pub(super) column_max: usize,
    /// `bytea`, and the domains over it.
    pub(super) byte_types: Vec<u32>,
}

/// An open stream.
#[derive(Debug)]
pub(super) struct Stream {
    wire: Wire,
    options: Options,
    clock: Arc<dyn Clock>,
    stop: Stop,
    relations: HashMap<u32, Arc<Relation>>,
    /// Between the beginning and the end of a transaction.
    inside: bool,
    /// All before it is safe; nought: nothing to say yet.
    confirmed: Lsn,
    /// When the server is to hear from us next.
    status_at: Duration,
}

/// Rows in the order of their commits, and how far the stream is confirmed once they are all safe.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) rows: Vec<Row>,
    /// `None`: these are the first rows of a transaction whose end is still to come.
    pub(super) upto: Option<Lsn>,
}

/// One inserted row.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) relation: Arc<Relation>,
    pub(super) columns: Vec<Column>,
}

impl Stream {
    /// Opens the stream from the slot's own confirmed position on.
    ///
    /// # Errors
    /// If the server is not there, or does not allow it.
    pub(super) async fn open(
        target: &Target,
        slot: &Slot,
        options: Options,
        clock: Arc<dyn Clock>,
        stop: Stop,
    ) -> Result<Self, Fault> {
        // The server gives us up after six silent heartbeats; values are written in one way whatever
        // the role's settings are.
        let patience = (options.heartbeat * 6).as_millis().to_string();
        let parameters = [
            ("replication", "database"),
            ("application_name", "pabal"),
            ("client_encoding", "UTF8"),
            ("bytea_output", "hex"),
            ("DateStyle", "ISO"),
            ("IntervalStyle", "iso_8601"),
            ("TimeZone", "UTC"),
            ("extra_float_digits", "3"),
            ("wal_sender_timeout", &patience),
        ];
        let mut wire = Wire::connect(target, &parameters, &*clock).await?;
        // Nought is where the slot stands. Neither name has a quote in it.
        let start = format!(
            "START_REPLICATION SLOT \"{}\" LOGICAL 0/0 \
             (proto_version '1', publication_names '\"{}\"')",
            slot.name, slot.publication
        );
        wire.start_copy(&start).await?;
        let status_at = clock.elapsed() + options.heartbeat;
        Ok(Self {
            wire,
            options,
            clock,
            stop,
            relations: HashMap::new(),
            inside: false,
            confirmed: Lsn::default(),
            status_at,
        })
    }

    /// The next rows, as soon as there are some: as many as have already come, within the limits. With
    /// no rows it is a position that may be confirmed, or nothing at all for a heartbeat.
    ///
    /// # Errors
    /// If the stream is over, or [`Stop`] fired.
    pub(super) async fn batch(&mut self) -> Result<Batch, Fault> {
        if self.stop.fired() {
            return Err(Fault::Stopped);
        }
        let mut batch = Batch::default();
        let mut bytes = 0;
        let until = self.clock.elapsed() + self.options.heartbeat;
        loop {
            while let Some(event) = self.next().await? {
                match event {
                    Event::Begin => self.inside = true,
                    Event::Commit(end) => {
                        self.inside = false;
                        batch.upto = Some(end);
                    }
                    // Within a transaction it says nothing about that one.
                    Event::KeepAlive { end, answer } => {
                        if answer {
                            self.status_at = Duration::ZERO;
                        }
                        if !self.inside {
                            batch.upto = batch.upto.max(Some(end));
                        }
                    }
                    Event::Relation(relation) => self.meet(relation),
                    Event::Insert(Insert { relation, columns }) => {
                        if let Some(relation) = self.relations.get(&relation) {
                            let row = self.row(relation, columns)?;
                            bytes += row.columns.iter().map(Column::size).sum::<usize>();
                            batch.rows.push(row);
                        }
                    }
                    Event::Other => {}
                }
                if batch.rows.len() >= self.options.rows_max || bytes >= self.options.bytes_max {
                    return Ok(batch);
                }
            }
            let something = !batch.rows.is_empty() || batch.upto.is_some();
            if something && !self.inside {
                // What has come by now belongs to it, and nothing is waited for.
                match self.wire.fill().now_or_never() {
                    Some(filled) => filled?,
                    None => return Ok(batch),
                }
            } else if self.inside {
                self.wait().await?;
            } else if !self.wait_until(until).await? {
                return Ok(batch);
            }
        }
    }

    /// Lets `future` run to its end while the server hears from us.
    pub(super) async fn during<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        tokio::select! {
            biased;
            output = &mut future => return output,
            // The connection is gone; whoever uses it next is told.
            () = self.stay_alive() => {}
        }
        future.await
    }

    async fn stay_alive(&mut self) {
        loop {
            self.clock.sleep_until(self.status_at).await;
            if self.status().await.is_err() {
                return;
            }
        }
    }

    /// All before this position is safe. What somebody waits for is said at once.
    ///
    /// # Errors
    /// If the stream is over.
    pub(super) async fn confirm(&mut self, position: Lsn, at_once: bool) -> Result<(), Fault> {
        if position > self.confirmed {
            self.confirmed = position;
            self.status_at = self.status_at.min(self.clock.elapsed() + CONFIRM_WITHIN);
        }
        if at_once || self.status_at <= self.clock.elapsed() {
            self.status().await?;
        }
        Ok(())
    }

    /// Says what was confirmed last, and goes.
    pub(super) async fn close(mut self) {
        let clock = Arc::clone(&self.clock);
        let farewell = async {
            self.say_status()?;
            frontend::copy_done(&mut self.wire.output);
            frontend::terminate(&mut self.wire.output);
            self.wire.flush().await
        };
        // If it cannot be said, some rows come again.
        let _ = clock.timeout(FAREWELL, farewell).await;
    }

    /// Waits until more has come, or [`Stop`] fires.
    async fn wait(&mut self) -> Result<(), Fault> {
        while !self.wait_until(Duration::MAX).await? {}
        Ok(())
    }

    /// The same for so long; whether more has come.
    async fn wait_until(&mut self, until: Duration) -> Result<bool, Fault> {
        loop {
            // A server that sends without a pause hears from us as well.
            if self.status_at <= self.clock.elapsed() {
                self.status().await?;
            }
            tokio::select! {
                biased;
                () = self.stop.wait() => return Err(Fault::Stopped),
                filled = self.wire.fill() => return filled.map(|()| true),
                () = self.clock.sleep_until(self.status_at.min(until)) => {}
            }
            if until <= self.clock.elapsed() {
                return Ok(false);
            }
        }
    }

    async fn status(&mut self) -> Result<(), Fault> {
        self.say_status()?;
        self.wire.flush().await
    }

    fn say_status(&mut self) -> Result<(), Fault> {
        let mut status = Vec::with_capacity(34);
        status.push(b'r');
        for _written_flushed_applied in 0..3 {
            status.extend_from_slice(&self.confirmed.0.to_be_bytes());
        }
        // Our time, which the server does not use, and that no answer is needed.
        status.extend_from_slice(&[0; 8 + 1]);
        let message = frontend::CopyData::new(&status[..]);
        message.map_err(|error| Fault::Lost(error.to_string()))?.write(&mut self.wire.output);
        self.status_at = self.clock.elapsed() + self.options.heartbeat;
        Ok(())
    }

    fn row(&self, relation: &Arc<Relation>, columns: Vec<Column>) -> Result<Row, Fault> {
        let types = relation.types.iter().copied().chain(std::iter::repeat(0));
        let columns = columns.into_iter().zip(types).map(|(column, its_type)| {
            if self.options.byte_types.contains(&its_type) {
                column.into_bytes()
            } else {
                Ok(column)
            }
        });
        let columns = columns.collect::<Result<_, _>>().map_err(unreadable)?;
        Ok(Row { relation: Arc::clone(relation), columns })
    }

    fn meet(&mut self, relation: Relation) {
        let (schema, table) = &self.options.table;
        if (schema, table) == (&relation.schema, &relation.table) {
            self.relations.insert(relation.id, Arc::new(relation));
        } else {
            self.relations.remove(&relation.id);
        }
    }

    /// The next event, if it has already come.
    async fn next(&mut self) -> Result<Option<Event>, Fault> {
        let whole_max = self.options.column_max + ROW_REST;
        if self.wire.next_size()?.is_some_and(|size| size > whole_max) {
            return self.large(whole_max).await.map(Some);
        }
        let Some(frame) = self.wire.take(whole_max)? else { return Ok(None) };
        Ok(Some(match frame.kind {
            b'd' => pgoutput::event(frame.body()).map_err(unreadable)?,
            b'E' => return Err(Frame::fault(frame)),
            b'c' | b'C' => return Err(Fault::Lost("the server ended the stream".into())),
            _ => Event::Other,
        }))
    }

    /// Takes a message that is too large to be held: of a row the columns that fit, of all else
    /// nothing.
    async fn large(&mut self, whole_max: usize) -> Result<Event, Fault> {
        let kind = self.wire.input[0];
        let mut left = self.wire.next_size()?.unwrap_or_default();
        self.wire.input.advance(HEADER);
        let head = self.exactly(pgoutput::XLOG_DATA_HEADER + 1, &mut left).await?;
        if kind != b'd' || head[0] != b'w' || head[pgoutput::XLOG_DATA_HEADER] != b'I' {
            self.pass_over(left).await?;
            return Ok(Event::Other);
        }
        let mut head = self.exactly(pgoutput::INSERT_HEAD, &mut left).await?;
        let (relation, count) = pgoutput::insert_head(&mut head).map_err(unreadable)?;
        let mut columns = Vec::new();
        let mut room = whole_max;
        for _ in 0..count {
            let kind = self.exactly(1, &mut left).await?[0];
            let mut head = BytesMut::from(&[kind][..]);
            if kind == b't' {
                head.extend_from_slice(&self.exactly(4, &mut left).await?);
            }
            columns.push(match pgoutput::column_head(&mut head).map_err(unreadable)? {
                Head::Null => Column::Null,
                Head::Unchanged => Column::Unchanged,
                Head::Value(size) if size <= room => {
                    room -= size;
                    Column::Value(self.exactly(size, &mut left).await?.freeze())
                }
                Head::Value(size) => {
                    left = left.checked_sub(size).ok_or_else(cut)?;
                    self.pass_over(size).await?;
                    Column::TooLarge(size)
                }
            });
        }
        self.pass_over(left).await?;
        Ok(Event::Insert(Insert { relation, columns }))
    }

    async fn need(&mut self, count: usize) -> Result<(), Fault> {
        while self.wire.input.len() < count {
            self.wait().await?;
        }
        Ok(())
    }

    async fn exactly(&mut self, count: usize, left: &mut usize) -> Result<BytesMut, Fault> {
        *left = left.checked_sub(count).ok_or_else(cut)?;
        self.need(count).await?;
        Ok(self.wire.input.split_to(count))
    }

    async fn pass_over(&mut self, mut count: usize) -> Result<(), Fault> {
        while count > 0 {
            if self.wire.input.is_empty() {
                self.wait().await?;
            }
            let here = self.wire.input.len().min(count);
            self.wire.input.advance(here);
            count -= here;
        }
        Ok(())
    }
}

fn unreadable(error: pgoutput::Unreadable) -> Fault {
    Fault::Unavailable(error.to_string())
}

fn cut() -> Fault {
    Fault::Lost("a message ends too early".into())
}
