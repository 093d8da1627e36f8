//! A table as it was found.

use super::{
    access::{Connection, Kind, Sql, Value},
    columns::{Columns, Field},
    settings::{Checked, OnFailed, SentRow, StatusWords},
};
use crate::name::Dialect;

/// The outbox table: what it has of what was looked for.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) dialect: Dialect,
    /// Quoted.
    pub(super) name: String,
    pub(super) columns: Columns,
    pub(super) types: Vec<(String, String)>,
    pub(super) words: StatusWords,
    pub(super) sent: SentRow,
    pub(super) on_failed: OnFailed,
    pub(super) batch: usize,
    /// How an id is compared: as a number, or as this type of PostgreSQL's.
    pub(super) id: IdType,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdType {
    Text(&'static str),
    Number(&'static str),
}

impl Table {
    /// Looks what there is of what the settings ask for.
    ///
    /// # Errors
    /// What is missing, for people; or what the database said.
    pub(super) async fn find(
        checked: &Checked,
        connection: &mut Connection,
    ) -> Result<Result<Self, String>, sqlx::Error> {
        let dialect = checked.pool.dialect();
        let name = checked.table.quoted(dialect);
        let types = match dialect {
            // The types of an answer do not tell text with a binary order from bytes.
            Dialect::MySql => columns_of_mysql(checked, connection).await?,
            Dialect::Postgres | Dialect::Sqlite => {
                connection.describe(&format!("SELECT * FROM {name}")).await?
            }
        };
        if types.is_empty() {
            return Ok(Err(format!(
                "there is no table {}, or this account may not see it",
                checked.table
            )));
        }
        Ok(Self::of(checked, dialect, name, types))
    }

    fn of(
        checked: &Checked,
        dialect: Dialect,
        name: String,
        types: Vec<(String, String)>,
    ) -> Result<Self, String> {
        let has = |wanted: &str| {
            let found = types.iter().find(|(name, _)| match dialect {
                Dialect::Postgres => name == wanted,
                Dialect::MySql | Dialect::Sqlite => name.eq_ignore_ascii_case(wanted),
            });
            found.map(|(name, _)| name.as_str())
        };
        let columns = checked.columns.of_table(has).map_err(|missing| {
            format!("the table {} has no column {}", checked.table, missing.join(", "))
        })?;
        if checked.sent == SentRow::Mark && columns.get(Field::Status).is_none() {
            return Err(format!(
                "the table {} has no column for the status: name it in `columns`, or set \
                 `sent = \"delete\"`",
                checked.table
            ));
        }
        let mut table = Self {
            dialect,
            name,
            columns,
            types,
            words: checked.settings.status.clone(),
            sent: checked.sent,
            on_failed: checked.settings.on_failed,
            batch: checked.settings.batch,
            id: IdType::Text("text"),
        };
        table.id = table.id_type().ok_or_else(|| {
            format!(
                "the id of {} is of a type that cannot be compared as text, a number or a UUID: {}",
                checked.table,
                table.type_of(Field::Id)
            )
        })?;
        Ok(table)
    }

    /// The database's name for the type of a column; empty if there is none.
    pub(super) fn type_of(&self, field: Field) -> &str {
        let column = self.columns.get(field).unwrap_or_default();
        let found = self.types.iter().find(|(name, _)| name == column);
        found.map_or("", |(_, type_name)| type_name.as_str())
    }

    fn id_type(&self) -> Option<IdType> {
        let name = self.type_of(Field::Id).to_ascii_uppercase();
        Some(match (self.dialect, name.as_str()) {
            (Dialect::Postgres, "TEXT" | "NAME") => IdType::Text("text"),
            (Dialect::Postgres, "VARCHAR") => IdType::Text("varchar"),
            (Dialect::Postgres, "CHAR" | "BPCHAR") => IdType::Text("bpchar"),
            (Dialect::Postgres, "UUID") => IdType::Text("uuid"),
            (Dialect::Postgres, "INT2") => IdType::Number("int2"),
            (Dialect::Postgres, "INT4") => IdType::Number("int4"),
            (Dialect::Postgres, "INT8") => IdType::Number("int8"),
            (Dialect::Postgres, _) => return None,
            (_, name) if name.contains("INT") => IdType::Number(""),
            (Dialect::MySql, name) if name.contains("CHAR") || name.contains("TEXT") => {
                IdType::Text("")
            }
            (Dialect::MySql, "UUID") => IdType::Text(""),
            (Dialect::MySql, _) => return None,
            (Dialect::Sqlite, _) => IdType::Text(""),
        })
    }

    /// An id as any row could have it.
    pub(super) fn some_id(&self) -> String {
        match self.id {
            IdType::Number(_) => "1",
            IdType::Text("uuid") => "00000000-0000-0000-0000-000000000000",
            IdType::Text(_) => "x",
        }
        .to_owned()
    }

    /// Whether the order is a whole number, from which one can go on.
    pub(super) fn has_numbers(&self) -> bool {
        self.type_of(Field::Order).to_ascii_uppercase().contains("INT")
    }

    /// Whether a row can say that it was refused.
    pub(super) fn shows_refusals(&self) -> bool {
        self.columns.get(Field::Status).is_some()
    }
}

async fn columns_of_mysql(
    checked: &Checked,
    connection: &mut Connection,
) -> Result<Vec<(String, String)>, sqlx::Error> {
    let mut sql = Sql::new(
        Dialect::MySql,
        "SELECT CAST(column_name AS CHAR), CAST(upper(data_type) AS CHAR) \
         FROM information_schema.columns WHERE table_name = ",
    );
    sql.text(checked.table.name());
    sql.push(" AND table_schema = coalesce(");
    match checked.table.schema() {
        Some(schema) => sql.text(schema),
        None => sql.push("NULL"),
    }
    sql.push(", database()) ORDER BY ordinal_position");
    let rows = connection.fetch(&sql, &[Kind::Text; 2]).await?;
    let read = |mut cells: std::vec::IntoIter<Value>| {
        let mut text = || cells.next().and_then(Value::text);
        Some((text()?, text()?))
    };
    Ok(rows.into_iter().filter_map(read).collect())
}
