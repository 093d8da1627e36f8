//! The statements to a table, as its database wants them.

use std::time::Duration;

use super::{
    access::{Kind, Sql, Value},
    columns::Field,
    row::Row,
    settings::{OnFailed, SentRow},
    table::{IdType, Table},
};
use crate::name::Dialect;

/// Removed in one statement.
pub(super) const PRUNED_AT_ONCE: usize = 1_000;

/// Which of the unsent rows to look for.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// From here on; `None`: all.
    pub(super) from: Option<i64>,
    /// Without rows of these keys.
    pub(super) without_keys: Vec<String>,
    /// Without these rows.
    pub(super) without_rows: Vec<String>,
}

/// The columns of an answer to [`Table::head`].
pub(super) const HEAD: [Kind; 4] = [Kind::Text; 4];

impl Table {
    fn quoted(&self, field: Field) -> Option<String> {
        self.columns.get(field).map(|name| self.dialect.quoted(name))
    }

    /// A column as text.
    fn text(&self, field: Field) -> String {
        let Some(column) = self.quoted(field) else { return "NULL".to_owned() };
        match self.dialect {
            Dialect::Postgres => format!("{column}::text"),
            Dialect::MySql => format!("CAST({column} AS CHAR)"),
            Dialect::Sqlite => format!("CAST({column} AS TEXT)"),
        }
    }

    /// The body as bytes; text in UTF-8.
    fn body(&self) -> String {
        let column = self.quoted(Field::Body).unwrap_or_default();
        let name = self.type_of(Field::Body);
        match self.dialect {
            Dialect::Postgres if name == "BYTEA" => column,
            Dialect::Postgres => format!("convert_to({column}::text, 'UTF8')"),
            Dialect::MySql if name.contains("BLOB") || name.contains("BINARY") => column,
            Dialect::MySql => format!("CAST(CONVERT({column} USING utf8mb4) AS BINARY)"),
            Dialect::Sqlite => format!("CAST({column} AS BLOB)"),
        }
    }

    fn body_bytes(&self) -> String {
        let column = self.quoted(Field::Body).unwrap_or_default();
        match self.dialect {
            Dialect::Postgres if self.type_of(Field::Body) == "BYTEA" => {
                format!("octet_length({column})::text")
            }
            Dialect::Postgres => format!("octet_length({column}::text)::text"),
            Dialect::MySql => format!("CAST(octet_length({column}) AS CHAR)"),
            Dialect::Sqlite => format!("CAST(octet_length({column}) AS TEXT)"),
        }
    }

    /// The condition that the status is one of ours; always true where there is none.
    fn status_is(&self, word: &str) -> String {
        match self.quoted(Field::Status) {
            Some(column) => format!("{column} = {}", literal(word)),
            None => "1 = 1".to_owned(),
        }
    }

    fn is_new(&self) -> String {
        self.status_is(&self.words.new)
    }

    /// The same of a row that is named. MySQL must not find it by its status: it would wait for locks on
    /// all other rows that have the same.
    fn is_still_new(&self) -> String {
        match self.dialect {
            Dialect::MySql if self.shows_refusals() => {
                format!("CASE WHEN {} THEN 1 ELSE 0 END = 1", self.is_new())
            }
            _ => self.is_new(),
        }
    }

    /// The condition that a row is among these.
    fn among(&self, sql: &mut Sql, ids: &[String]) {
        let column = self.quoted(Field::Id).unwrap_or_default();
        self.list(sql, &format!("{column} IN ("), &format!("{column} = ANY ("), ids);
    }

    fn list(&self, sql: &mut Sql, listed: &str, array: &str, ids: &[String]) {
        if self.dialect == Dialect::Postgres {
            let (IdType::Text(cast) | IdType::Number(cast)) = self.id;
            sql.push(array);
            sql.texts(ids.to_vec());
            sql.push(&format!("::text[]::{cast}[])"));
            return;
        }
        sql.push(listed);
        for (place, id) in ids.iter().enumerate() {
            sql.push(if place == 0 { "" } else { ", " });
            self.id(sql, id);
        }
        sql.push(")");
    }

    fn id(&self, sql: &mut Sql, id: &str) {
        match (self.id, id.parse()) {
            (IdType::Number(_), Ok(number)) => sql.number(number),
            _ => sql.text(id),
        }
    }

    fn sql(&self, text: impl Into<String>) -> Sql {
        Sql::new(self.dialect, text)
    }

    /// All unsent rows, as [`Table::head`] tells of them.
    pub(super) fn all_heads(&self) -> String {
        format!("{} ORDER BY {}", self.heads(), self.order())
    }

    fn heads(&self) -> String {
        format!(
            "SELECT {}, {}, {}, {} FROM {} AS o WHERE {}",
            self.text(Field::Id),
            self.text(Field::Key),
            self.text(Field::Order),
            self.body_bytes(),
            self.name,
            self.is_new(),
        )
    }

    /// By the columns and not by their texts, which have the same names.
    fn order(&self) -> String {
        let id = format!("o.{}", self.quoted(Field::Id).unwrap_or_default());
        match (self.quoted(Field::Order), self.quoted(Field::Time)) {
            (Some(order), _) => format!("o.{order}"),
            (None, Some(time)) => format!("o.{time}, {id}"),
            (None, None) => id,
        }
    }

    /// The first unsent rows: id, key, order and size of the body. It locks nothing.
    pub(super) fn head(&self, wanted: &Wanted) -> Sql {
        let mut sql = self.sql(self.heads());
        if let (Some(from), Some(order)) = (wanted.from, self.quoted(Field::Order)) {
            sql.push(&format!(" AND {order} >= "));
            sql.number(from);
        }
        if let Some(key) = self.quoted(Field::Key)
            && !wanted.without_keys.is_empty()
        {
            sql.push(&format!(" AND ({key} IS NULL OR "));
            let text = self.text(Field::Key);
            if self.dialect == Dialect::Postgres {
                sql.push(&format!("{text} <> ALL ("));
                sql.texts(wanted.without_keys.clone());
                sql.push("))");
            } else {
                sql.push(&format!("{text} NOT IN ("));
                for (place, key) in wanted.without_keys.iter().enumerate() {
                    sql.push(if place == 0 { "" } else { ", " });
                    sql.text(key.as_str());
                }
                sql.push("))");
            }
        }
        if !wanted.without_rows.is_empty() {
            let id = self.quoted(Field::Id).unwrap_or_default();
            let (listed, array) = (format!("{id} NOT IN ("), format!("{id} <> ALL ("));
            sql.push(" AND ");
            self.list(&mut sql, &listed, &array, &wanted.without_rows);
        }
        if let (OnFailed::Hold, Some(key), Some(order)) =
            (self.on_failed, self.quoted(Field::Key), self.quoted(Field::Order))
        {
            let status = self.quoted(Field::Status).unwrap_or_default();
            sql.push(&format!(
                " AND NOT EXISTS (SELECT 1 FROM {} AS f WHERE f.{status} = {} AND f.{key} = o.{key} \
                 AND f.{order} < o.{order})",
                self.name,
                literal(&self.words.failed)
            ));
        }
        sql.push(&format!(" ORDER BY {} LIMIT {}", self.order(), self.batch));
        sql
    }

    /// The fields of a message, as [`Table::load`] gives them, the body last.
    pub(super) fn fields(&self) -> impl Iterator<Item = Field> {
        let is_of_a_message = |field: &Field| *field < Field::Status && *field != Field::Body;
        self.columns.iter().map(|(field, _)| field).filter(is_of_a_message)
    }

    /// The columns of an answer to [`Table::load`].
    pub(super) fn loaded(&self) -> Vec<Kind> {
        self.fields().map(|_| Kind::Text).chain([Kind::Bytes]).collect()
    }

    /// One row of an answer to [`Table::load`].
    pub(super) fn read(&self, mut cells: impl Iterator<Item = Value>) -> Row {
        let mut row = Row::default();
        for field in self.fields() {
            row.set(field, cells.next().and_then(Value::text));
        }
        row.body = cells.next().map(Value::bytes).unwrap_or_default();
        row
    }

    /// These rows as far as they are unsent; with `lock` those that nobody else holds, which nobody
    /// else gets until the end of the transaction.
    pub(super) fn load(&self, ids: &[String], lock: bool) -> Sql {
        let mut columns: Vec<_> = self.fields().map(|field| self.text(field)).collect();
        columns.push(self.body());
        let mut sql = self.sql(format!("SELECT {} FROM {} WHERE ", columns.join(", "), self.name));
        self.among(&mut sql, ids);
        sql.push(&format!(" AND {}", self.is_still_new()));
        if lock && self.dialect != Dialect::Sqlite {
            sql.push(" FOR UPDATE SKIP LOCKED");
        }
        sql
    }

    /// What one does with a row that was sent; the condition is missing.
    fn send(&self) -> String {
        if self.sent == SentRow::Delete {
            return format!("DELETE FROM {} WHERE ", self.name);
        }
        let status = self.quoted(Field::Status).unwrap_or_default();
        let sent = match self.quoted(Field::Sent) {
            Some(sent) => format!(", {sent} = {}", self.now()),
            None => String::new(),
        };
        let word = literal(&self.words.sent);
        format!("UPDATE {} SET {status} = {word}{sent} WHERE ", self.name)
    }

    /// These were sent.
    pub(super) fn mark_sent(&self, ids: &[String]) -> Sql {
        let mut sql = self.sql(self.send());
        self.among(&mut sql, ids);
        sql.push(&format!(" AND {}", self.is_still_new()));
        sql
    }

    /// The same as a statement for the hub's store, with the rows as its one parameter, a list of
    /// texts.
    pub(super) fn mark_sent_alongside(&self) -> String {
        let (IdType::Text(cast) | IdType::Number(cast)) = self.id;
        let id = self.quoted(Field::Id).unwrap_or_default();
        format!("{}{id} = ANY ($1::text[]::{cast}[]) AND {}", self.send(), self.is_still_new())
    }

    /// These were refused for good, each for a reason; none where the table cannot show it.
    pub(super) fn mark_failed(&self, rows: &[(String, String)], reasons: bool) -> Option<Sql> {
        let status = self.quoted(Field::Status)?;
        let set = format!("{status} = {}", literal(&self.words.failed));
        Some(self.mark(&set, rows, reasons))
    }

    /// These failed for now; none where the table cannot show it.
    pub(super) fn count_retries(&self, rows: &[(String, String)], reasons: bool) -> Option<Sql> {
        match self.quoted(Field::Retries) {
            Some(retries) => Some(self.mark(&format!("{retries} = {retries} + 1"), rows, reasons)),
            None if reasons && self.columns.get(Field::Error).is_some() => {
                Some(self.mark("", rows, reasons))
            }
            None => None,
        }
    }

    fn mark(&self, set: &str, rows: &[(String, String)], reasons: bool) -> Sql {
        let ids: Vec<_> = rows.iter().map(|(id, _)| id.clone()).collect();
        let mut sql = self.sql(format!("UPDATE {} SET {set}", self.name));
        let comma = if set.is_empty() { "" } else { ", " };
        let id = self.quoted(Field::Id).unwrap_or_default();
        match self.quoted(Field::Error).filter(|_| reasons) {
            Some(error) if self.dialect == Dialect::Postgres => {
                let (IdType::Text(cast) | IdType::Number(cast)) = self.id;
                sql.push(&format!("{comma}{error} = new_error FROM unnest("));
                sql.texts(ids);
                sql.push("::text[], ");
                sql.texts(rows.iter().map(|(_, reason)| reason.clone()).collect());
                sql.push(&format!(
                    "::text[]) AS new_rows (new_id, new_error) WHERE {id} = new_id::{cast} AND {}",
                    self.is_still_new()
                ));
                return sql;
            }
            Some(error) => {
                sql.push(&format!("{comma}{error} = CASE {id}"));
                for (id, reason) in rows {
                    sql.push(" WHEN ");
                    self.id(&mut sql, id);
                    sql.push(" THEN ");
                    sql.text(reason.as_str());
                }
                sql.push(" END");
            }
            None => {}
        }
        sql.push(" WHERE ");
        self.among(&mut sql, &ids);
        sql.push(&format!(" AND {}", self.is_still_new()));
        sql
    }

    /// The present, as the column of when a row was sent wants it.
    fn now(&self) -> &'static str {
        match self.dialect {
            Dialect::Postgres => "now()",
            Dialect::MySql => "utc_timestamp(6)",
            Dialect::Sqlite if self.type_of(Field::Sent).contains("INT") => "unixepoch()",
            Dialect::Sqlite => "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
        }
    }

    /// Removes some rows that were sent so long ago.
    pub(super) fn prune(&self, keep: Duration) -> Option<Sql> {
        let (sent, id) = (self.quoted(Field::Sent)?, self.quoted(Field::Id)?);
        let is_sent = self.status_is(&self.words.sent);
        let seconds = keep.as_secs();
        let before = match self.dialect {
            Dialect::Postgres => format!("now() - interval '{seconds} seconds'"),
            Dialect::MySql => format!("utc_timestamp(6) - INTERVAL {seconds} SECOND"),
            Dialect::Sqlite if self.type_of(Field::Sent).contains("INT") => {
                format!("unixepoch() - {seconds}")
            }
            Dialect::Sqlite => {
                format!("strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-{seconds} seconds')")
            }
        };
        let name = &self.name;
        let old = format!("{is_sent} AND {sent} < {before} ORDER BY {sent} LIMIT {PRUNED_AT_ONCE}");
        Some(self.sql(match self.dialect {
            Dialect::Postgres => format!(
                "DELETE FROM {name} WHERE {id} IN (SELECT {id} FROM {name} WHERE {old} \
                 FOR UPDATE SKIP LOCKED)"
            ),
            Dialect::MySql => format!("DELETE FROM {name} WHERE {old}"),
            Dialect::Sqlite => {
                format!("DELETE FROM {name} WHERE {id} IN (SELECT {id} FROM {name} WHERE {old})")
            }
        }))
    }
}

/// A word in a statement; the settings let neither backslashes nor control characters through.
fn literal(word: &str) -> String {
    format!("'{}'", word.replace('\'', "''"))
}
