//! Finds the next unsent rows, locks them and reads them.

use std::{collections::HashMap, sync::Arc};

use pabal_core::{Alongside, SendError};

use super::{
    access::{Connection, Value},
    hand_over::{Fate, Item, told},
    memory::Who,
    relay::{Memory, Relay},
    row::Row,
    statements::{HEAD, Wanted},
    table::Table,
    trouble::Trouble,
};
use crate::name::Dialect;

/// The bodies of one batch, in bytes; a single larger one goes alone.
const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A row at the head of those that are unsent.
struct Head {
    id: String,
    who: Who,
    order: Option<i64>,
    bytes: usize,
}

impl Relay {
    /// Finds the next rows and locks them. With them comes the transaction that holds them, if one
    /// does, and whether there are more.
    pub(super) async fn prepare(
        &self,
        table: &Table,
        memory: &mut Memory,
    ) -> Result<Option<(Vec<Item>, Option<Connection>, bool)>, Trouble> {
        let begun = self.clock.elapsed();
        if memory.waiting.all(begun) {
            return Ok(None);
        }
        memory.waiting.forget_old(begun);
        let mut wanted = Wanted::default();
        if table.has_numbers() {
            wanted.from = memory.floor.begin(begun, &memory.waiting);
        }
        memory.waiting.leave_out(begun, &mut wanted);
        let mut connection = self.connect().await?;
        let question = table.head(&wanted);
        let found = self.ask("looking for unsent rows", connection.fetch(&question, &HEAD)).await?;
        let now = self.clock.elapsed();
        if wanted.from.is_none() {
            memory.floor.looked_through(now, now.saturating_sub(begun));
        }
        let mut head: Vec<Head> = found.into_iter().filter_map(read_head).collect();
        if head.is_empty() {
            connection.give_back();
            return Ok(None);
        }
        let mut more = head.len() >= self.checked.settings.batch;
        let (mut fits, mut bytes) = (0, 0);
        for row in &head {
            bytes += if row.bytes > self.body_bytes_max { 0 } else { row.bytes };
            if fits > 0 && bytes > BATCH_BYTES_MAX {
                break;
            }
            fits += 1;
        }
        more |= fits < head.len();
        head.truncate(fits);
        let locks = table.dialect != Dialect::Sqlite && !self.checked.settings.one_transaction;
        if locks {
            self.ask("beginning a transaction", connection.begin()).await?;
        }
        let items = self.load(table, head, &mut connection, locks).await?;
        let held = if locks {
            Some(connection)
        } else {
            connection.give_back();
            None
        };
        Ok(Some((items, held, more)))
    }

    /// Reads rows, and locks them.
    async fn load(
        &self,
        table: &Table,
        head: Vec<Head>,
        connection: &mut Connection,
        lock: bool,
    ) -> Result<Vec<Item>, Trouble> {
        let wanted: Vec<String> = head
            .iter()
            .filter(|row| row.bytes <= self.body_bytes_max)
            .map(|row| row.id.clone())
            .collect();
        let mut loaded: HashMap<String, Row> = HashMap::new();
        if !wanted.is_empty() {
            let question = table.load(&wanted, lock);
            let kinds = table.loaded();
            let found = self.ask("reading rows", connection.fetch(&question, &kinds)).await?;
            for cells in found {
                let row = table.read(cells);
                if let Some(id) = row.id() {
                    loaded.insert(id.to_owned(), row);
                }
            }
        }
        let alongside: Option<Arc<str>> =
            self.checked.settings.one_transaction.then(|| table.mark_sent_alongside().into());
        let item = |row: Head| {
            let fate = match loaded.remove(&row.id) {
                _ if row.bytes > self.body_bytes_max => Fate::Refused(told(&format!(
                    "too-large: the body has {} bytes, this source takes {}",
                    row.bytes, self.body_bytes_max
                ))),
                None => Fate::Elsewhere,
                Some(found) => self.read(table, found, &row.id, alongside.as_ref()),
            };
            Item { id: row.id, who: row.who, order: row.order, fate }
        };
        Ok(head.into_iter().map(item).collect())
    }

    fn read(&self, table: &Table, row: Row, id: &str, alongside: Option<&Arc<str>>) -> Fate {
        match row.message(&self.source, &self.checked.settings.content_type) {
            Ok(mut message) => {
                message.arrival.one_way = !table.shows_refusals();
                message.arrival.alongside = alongside.map(|statement| Alongside {
                    statement: Arc::clone(statement),
                    row: id.to_owned(),
                });
                Fate::Ready(Box::new(message))
            }
            Err(error) => Fate::Refused(told(&match error {
                SendError::Permanent { reason, cause } => format!("{reason}: {cause}"),
                other => other.to_string(),
            })),
        }
    }
}

fn read_head(mut cells: impl Iterator<Item = Value>) -> Option<Head> {
    let mut text = || cells.next().and_then(Value::text);
    let id = text()?;
    let key = text().filter(|key| !key.is_empty());
    let order = text().and_then(|order| order.parse().ok());
    let bytes = text().and_then(|bytes| bytes.parse().ok()).unwrap_or_default();
    let who = key.map_or_else(|| Who::Row(id.clone()), Who::Key);
    Some(Head { id, who, order, bytes })
}
