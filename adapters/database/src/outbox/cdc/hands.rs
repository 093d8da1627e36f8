//! From rows to the hub's inbox, and back: what was taken and what was refused is written back where
//! this account may.

use std::{collections::HashMap, sync::Arc, time::Duration};

use pabal_core::{Message, SendError, Sender, Stop};

use super::{
    super::{
        access::{Connection, Sql, Value},
        columns::Field,
        hand_over::told,
        row,
        settings::SentRow,
        statements::HEAD,
        table::Table,
    },
    Fault,
    pgoutput::{Column, Relation},
    relay::{ALERT_AFTER, Cdc, Waits},
    stream,
};
use crate::name::Dialect;

/// What carries rows to the inbox.
pub(super) struct Hands<'a> {
    cdc: &'a Cdc,
    table: &'a Table,
    inbox: &'a Arc<dyn Sender>,
    stop: &'a Stop,
    /// This account may write that a row was sent, or delete it.
    may_mark: bool,
    /// This account may write that a row was refused.
    may_refuse: bool,
    layout: Option<Layout>,
}

/// The table as the stream described it last, and what its columns hold.
struct Layout {
    relation: Arc<Relation>,
    fields: Arc<[Option<Field>]>,
}

/// A row that is no message, or one that the hub refuses: its id and why.
type Refused = (String, String);

impl<'a> Hands<'a> {
    /// Finds out what this account may write.
    ///
    /// # Errors
    /// If the server cannot say.
    pub(super) async fn new(
        cdc: &'a Cdc,
        table: &'a Table,
        inbox: &'a Arc<dyn Sender>,
        stop: &'a Stop,
    ) -> Result<Self, Fault> {
        let column = |field| table.columns.get(field).map(str::to_owned);
        let status = column(Field::Status);
        let updated: Vec<String> = [&status, &column(Field::Sent), &column(Field::Error)]
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        let (may_update, may_delete): (bool, bool) = sqlx::query_as(
            "SELECT coalesce((SELECT bool_and(has_column_privilege(t.oid, c, 'UPDATE')) \
             FROM unnest($2::text[]) AS c), false), has_table_privilege(t.oid, 'DELETE') \
             FROM (SELECT to_regclass($1) AS oid) AS t",
        )
        .bind(cdc.slot.table.quoted(Dialect::Postgres))
        .bind(updated)
        .fetch_one(&cdc.pool)
        .await?;
        let may_refuse = status.is_some() && may_update;
        let may_mark = if table.sent == SentRow::Delete { may_delete } else { may_refuse };
        if !may_mark {
            tracing::info!(
                source = %cdc.poll.source,
                "rows stay as they are once they are taken: this account may not change them"
            );
        }
        Ok(Self { cdc, table, inbox, stop, may_mark, may_refuse, layout: None })
    }

    /// Rows of one call of the inbox.
    pub(super) fn rows_max(&self) -> usize {
        self.cdc.options.rows_max.min(self.inbox.limits().batch_max).max(1)
    }

    /// Whether a row can say that it was refused, and so be made new again.
    pub(super) fn may_refuse(&self) -> bool {
        self.may_refuse
    }

    /// Hands over rows of the stream until each has its verdict.
    ///
    /// # Errors
    /// If what became of them cannot be written back, or [`Stop`] fired before all had theirs.
    pub(super) async fn hand_over(&mut self, rows: Vec<stream::Row>) -> Result<(), Fault> {
        let (mut messages, mut refused) = (Vec::with_capacity(rows.len()), Vec::new());
        for row in rows {
            match self.read(row)? {
                Some(Ok(message)) => messages.push(message),
                Some(Err(row)) => refused.push(row),
                None => {}
            }
        }
        self.until_taken(messages, refused).await
    }

    /// Hands over all that stands in the table unsent. The server keeps the list, so that this takes
    /// little memory and no transaction stays open.
    ///
    /// # Errors
    /// As [`Hands::hand_over`].
    pub(super) async fn take_unsent(&mut self) -> Result<(), Fault> {
        let mut connection = Connection::of(&self.cdc.poll.checked.pool).await?;
        let sql = |text: String| Sql::new(Dialect::Postgres, text);
        let list =
            format!("DECLARE unsent NO SCROLL CURSOR WITH HOLD FOR {}", self.table.all_heads());
        connection.execute(&sql(list)).await?;
        let (rows_max, bytes_max) = (self.rows_max(), self.cdc.options.bytes_max);
        let next = sql(format!("FETCH {rows_max} FROM unsent"));
        loop {
            let found = connection.fetch(&next, &HEAD).await?;
            let more = found.len() == rows_max;
            let mut heads = found.into_iter().filter_map(Head::read).peekable();
            while let Some(first) = heads.next() {
                // A single row may be larger than all of a batch.
                let mut bytes = first.bytes;
                let mut batch = vec![first];
                while let Some(head) = heads.next_if(|head| bytes + head.bytes <= bytes_max) {
                    bytes += head.bytes;
                    batch.push(head);
                }
                self.take(batch, &mut connection).await?;
            }
            if !more {
                break;
            }
        }
        connection.execute(&sql("CLOSE unsent".to_owned())).await?;
        connection.give_back();
        Ok(())
    }

    /// Reads these rows and hands them over.
    async fn take(&mut self, heads: Vec<Head>, connection: &mut Connection) -> Result<(), Fault> {
        let bytes_max = self.cdc.poll.body_bytes_max;
        let (fit, large): (Vec<_>, Vec<_>) =
            heads.into_iter().partition(|head| head.bytes <= bytes_max);
        let mut refused: Vec<Refused> =
            large.into_iter().map(|head| self.too_large(head.id, head.bytes)).collect();
        let ids: Vec<String> = fit.into_iter().map(|head| head.id).collect();
        let found = connection.fetch(&self.table.load(&ids, false), &self.table.loaded()).await?;
        let found = found.into_iter().map(|cells| self.table.read(cells));
        let mut rows: HashMap<String, row::Row> =
            found.filter_map(|row| Some((row.get(Field::Id)?.to_owned(), row))).collect();
        let mut messages = Vec::with_capacity(ids.len());
        // What is gone by now, or sent, is none of ours.
        for row in ids.iter().filter_map(|id| rows.remove(id)) {
            match self.message(row) {
                Ok(message) => messages.push(message),
                Err(row) => refused.push(row),
            }
        }
        self.until_taken(messages, refused).await
    }

    /// A row of the stream as a message; `None` if it was written as one that needs no sending, by
    /// who restored a table for example.
    fn read(&mut self, row: stream::Row) -> Result<Option<Result<Message, Refused>>, Fault> {
        let fields = self.fields(&row.relation)?;
        let new = self.cdc.poll.checked.settings.status.new.as_bytes();
        let (mut its, mut too_large) = (row::Row::default(), 0);
        for (field, column) in fields.iter().zip(row.columns) {
            match (field, column) {
                (Some(Field::Status), Column::Value(status)) if status == new => {}
                (Some(Field::Status), _) => return Ok(None),
                (Some(Field::Body), Column::Value(value)) => its.body = value,
                (Some(field), Column::Value(value)) => {
                    its.set(*field, Some(String::from_utf8_lossy(&value).into_owned()));
                }
                (Some(_), Column::TooLarge(size)) => too_large = size,
                (_, _) => {}
            }
        }
        if too_large > 0 {
            let id = its.get(Field::Id).unwrap_or_default().to_owned();
            return Ok(Some(Err(self.too_large(id, too_large))));
        }
        Ok(Some(self.message(its)))
    }

    /// What the columns of the stream's rows hold.
    fn fields(&mut self, relation: &Arc<Relation>) -> Result<Arc<[Option<Field>]>, Fault> {
        if let Some(layout) = &self.layout
            && Arc::ptr_eq(&layout.relation, relation)
        {
            return Ok(Arc::clone(&layout.fields));
        }
        let columns = &self.cdc.poll.checked.columns;
        let has =
            |wanted: &str| relation.columns.iter().find(|name| *name == wanted).map(String::as_str);
        let found = columns.of_table(has).map_err(|missing| {
            Fault::Unavailable(format!(
                "rows of {} come without the column {}: the publication must not leave it out",
                self.cdc.slot.table,
                missing.join(", ")
            ))
        })?;
        let fields: Arc<[_]> = relation.columns.iter().map(|name| found.field(name)).collect();
        self.layout = Some(Layout { relation: Arc::clone(relation), fields: Arc::clone(&fields) });
        Ok(fields)
    }

    fn message(&self, row: row::Row) -> Result<Message, Refused> {
        let id = row.get(Field::Id).unwrap_or_default().to_owned();
        let poll = &self.cdc.poll;
        match row.message(&poll.source, &poll.checked.settings.content_type) {
            Ok(mut message) => {
                message.arrival.one_way = !self.may_refuse;
                Ok(message)
            }
            Err(error) => Err((id, why(&error))),
        }
    }

    fn too_large(&self, id: String, bytes: usize) -> Refused {
        let max = self.cdc.poll.body_bytes_max;
        (id, format!("too-large: it has {bytes} bytes, this source takes {max}"))
    }

    /// Hands messages over until each is taken or refused, and writes that back.
    async fn until_taken(
        &self,
        mut left: Vec<Message>,
        mut refused: Vec<Refused>,
    ) -> Result<(), Fault> {
        let mut waits = Waits::default();
        loop {
            let verdicts = if left.is_empty() { Vec::new() } else { self.inbox.send(&left).await };
            let mut verdicts = verdicts.into_iter();
            let (mut taken, mut later) = (Vec::new(), Vec::new());
            let (mut reason, mut not_before) = (None, Duration::ZERO);
            for message in left {
                // Silence never means success.
                match verdicts.next().unwrap_or(Err(SendError::NotSent)) {
                    Ok(_) => taken.extend(message.origin.id),
                    Err(error @ SendError::Permanent { .. }) => {
                        refused.push((message.origin.id.unwrap_or_default(), why(&error)));
                    }
                    Err(error) => {
                        if let SendError::Unreachable { retry_after: Some(wish), .. }
                        | SendError::Transient { retry_after: Some(wish), .. } = &error
                        {
                            not_before = not_before.max(*wish);
                        }
                        reason.get_or_insert(error);
                        later.push(message);
                    }
                }
            }
            self.write_back(&taken, std::mem::take(&mut refused)).await?;
            if later.is_empty() {
                return Ok(());
            }
            let again_in = waits.next().max(not_before);
            let why = reason.map_or_else(String::new, |error| error.to_string());
            let source = &self.cdc.poll.source;
            if waits.0 == ALERT_AFTER {
                tracing::error!(alert = true, %source, why, ?again_in, "the hub takes no rows");
            } else {
                tracing::warn!(%source, why, ?again_in, "the hub takes no rows for now");
            }
            self.cdc.pause(again_in, self.stop).await;
            if self.stop.fired() {
                return Err(Fault::Stopped);
            }
            left = later;
        }
    }

    /// Writes back what became of rows, as far as this account may. Of a refused row somebody is told
    /// in any case.
    async fn write_back(&self, taken: &[String], refused: Vec<Refused>) -> Result<(), Fault> {
        for (row, reason) in &refused {
            tracing::error!(
                alert = true, source = %self.cdc.poll.source, row, reason,
                "a row was refused for good"
            );
        }
        let refused: Vec<Refused> =
            refused.into_iter().filter(|(id, _)| !id.is_empty() && self.may_refuse).collect();
        if !taken.is_empty() && self.may_mark {
            self.write(&self.table.mark_sent(taken)).await?;
        }
        if let Some(with_reasons) = self.table.mark_failed(&refused, true)
            && !refused.is_empty()
            && let Err(error) = self.write(&with_reasons).await
        {
            // A reason may be too long for its column.
            let without = self.table.mark_failed(&refused, false).ok_or(error)?;
            self.write(&without).await?;
        }
        Ok(())
    }

    async fn write(&self, statement: &Sql) -> Result<(), Fault> {
        let mut connection = Connection::of(&self.cdc.poll.checked.pool).await?;
        connection.execute(statement).await?;
        connection.give_back();
        Ok(())
    }
}

/// An unsent row, before it is read.
struct Head {
    id: String,
    /// Of its body.
    bytes: usize,
}

impl Head {
    fn read(mut cells: impl Iterator<Item = Value>) -> Option<Self> {
        let id = cells.next()?.text()?;
        let bytes = cells.nth(2)?.text().and_then(|bytes| bytes.parse().ok()).unwrap_or_default();
        Some(Self { id, bytes })
    }
}

fn why(error: &SendError) -> String {
    match error {
        SendError::Permanent { reason, cause } => told(&format!("{reason}: {cause}")),
        other => told(&other.to_string()),
    }
}
