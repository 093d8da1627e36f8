//! Which column holds what: presets for known layouts, and names for any other table.

use std::collections::BTreeMap;

use pabal_core::ConfigError;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::name;

/// What a column may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Field {
    /// The id that the application gave the message: its primary key.
    Id,
    /// Grows with every row: the order within a key.
    Order,
    /// What kind of thing the key names.
    Aggregate,
    /// The ordering key.
    Key,
    /// What happened or is asked.
    Type,
    /// The body.
    Body,
    /// Its media type.
    ContentType,
    /// The schema of the body.
    Schema,
    /// The business version, growing per key.
    Version,
    /// What the message belongs to.
    Correlation,
    /// What caused it.
    Causation,
    /// W3C trace context.
    Trace,
    /// The one destination it is for.
    Destination,
    /// Further headers: a JSON object of strings.
    Headers,
    /// Where the message says it comes from (CloudEvents `source`).
    Source,
    /// CloudEvents `subject`.
    Subject,
    /// When it happened; without a zone it is UTC.
    Time,
    /// What became of the row.
    Status,
    /// How often it failed for a time.
    Retries,
    /// Why it failed.
    Error,
    /// When it was sent.
    Sent,
}

impl Field {
    /// How many there are.
    pub(crate) const COUNT: usize = 21;

    /// Its key in the settings, and its columns in the two presets; empty: the layout has none.
    const ALL: [(Self, &'static str, [&'static str; 2]); Self::COUNT] = [
        (Self::Id, "id", ["id", "id"]),
        (Self::Order, "order", ["seq", ""]),
        (Self::Aggregate, "aggregate", ["aggregate_type", "aggregatetype"]),
        (Self::Key, "key", ["aggregate_id", "aggregateid"]),
        (Self::Type, "type", ["event_type", "type"]),
        (Self::Body, "body", ["payload", "payload"]),
        (Self::ContentType, "content_type", ["content_type", ""]),
        (Self::Schema, "schema", ["schema_version", ""]),
        (Self::Version, "version", ["version", ""]),
        (Self::Correlation, "correlation", ["correlation_id", ""]),
        (Self::Causation, "causation", ["causation_id", ""]),
        (Self::Trace, "trace", ["traceparent", ""]),
        (Self::Destination, "destination", ["destination", ""]),
        (Self::Headers, "headers", ["headers", ""]),
        (Self::Source, "source", ["", ""]),
        (Self::Subject, "subject", ["", ""]),
        (Self::Time, "time", ["created_at", ""]),
        (Self::Status, "status", ["status", ""]),
        (Self::Retries, "retries", ["retry_count", ""]),
        (Self::Error, "error", ["last_error", ""]),
        (Self::Sent, "sent", ["sent_at", ""]),
    ];

    /// Its key in the settings.
    pub(crate) fn key(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// A known layout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Preset {
    /// The table in `migrations/app-side`.
    #[default]
    Pabal,
    /// Debezium's outbox table: `id`, `aggregatetype`, `aggregateid`, `type`, `payload`. It has no
    /// status, so what is sent is deleted; and no order of its own, so give `columns.order` if rows
    /// of one key must keep theirs.
    Debezium,
}

/// The column of each field that has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Columns(BTreeMap<Field, Column>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Column {
    name: String,
    /// Named in the settings, and not by a preset: it must be there.
    asked_for: bool,
}

impl Columns {
    /// Those of a preset, with some named otherwise; an empty name means that the table has none.
    pub(crate) fn new(
        preset: Preset,
        named: &BTreeMap<Field, String>,
    ) -> Result<Self, Vec<ConfigError>> {
        let mut columns = BTreeMap::new();
        for (field, _, names) in Field::ALL {
            let name = names[preset as usize];
            if !name.is_empty() {
                columns.insert(field, Column { name: name.to_owned(), asked_for: false });
            }
        }
        let mut faults = Vec::new();
        for (field, name) in named {
            if name.is_empty() {
                columns.remove(field);
                continue;
            }
            if let Err(fault) = name::check(&format!("columns.{}", field.key()), name) {
                faults.push(fault);
            }
            columns.insert(*field, Column { name: name.clone(), asked_for: true });
        }
        for needed in [Field::Id, Field::Body] {
            if !columns.contains_key(&needed) {
                let key = format!("columns.{}", needed.key());
                faults.push(ConfigError::new(key, "no row goes without it"));
            }
        }
        if faults.is_empty() { Ok(Self(columns)) } else { Err(faults) }
    }

    /// Its column.
    pub(crate) fn get(&self, field: Field) -> Option<&str> {
        self.0.get(&field).map(|column| column.name.as_str())
    }

    /// What this column holds.
    pub(crate) fn field(&self, name: &str) -> Option<Field> {
        self.0.iter().find(|(_, column)| column.name == name).map(|(field, _)| *field)
    }

    /// Only those that a table has. What a preset names and the table lacks is left out, unless
    /// nothing works without it.
    ///
    /// # Errors
    /// The columns that must be there and are not.
    pub(crate) fn of_table<'a>(
        &self,
        has: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<Self, Vec<String>> {
        let (mut found, mut missing) = (BTreeMap::new(), Vec::new());
        for (field, column) in &self.0 {
            let needed = column.asked_for || matches!(field, Field::Id | Field::Body);
            match has(&column.name) {
                Some(name) => {
                    found.insert(*field, Column { name: name.to_owned(), ..column.clone() });
                }
                None if needed => missing.push(column.name.clone()),
                None => {}
            }
        }
        if missing.is_empty() { Ok(Self(found)) } else { Err(missing) }
    }

    /// All of them, in the order of their fields.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Field, &str)> {
        self.0.iter().map(|(field, column)| (*field, column.name.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_stands_at_its_place() {
        for (place, (field, key, _)) in Field::ALL.iter().enumerate() {
            assert_eq!(*field as usize, place, "{key}");
            let read: Field = serde_json::from_value((*key).into()).unwrap();
            assert_eq!(read, *field);
        }
    }

    #[test]
    fn a_preset_is_what_is_not_named_otherwise() {
        let named = [(Field::Key, "case_no"), (Field::Schema, "")];
        let named = named.map(|(field, name)| (field, name.to_owned())).into();
        let columns = Columns::new(Preset::Pabal, &named).unwrap();
        assert_eq!(columns.get(Field::Key), Some("case_no"));
        assert_eq!(columns.get(Field::Schema), None);
        assert_eq!(columns.field("event_type"), Some(Field::Type));
        // The table lacks what nobody asked for, and writes the rest in its own way.
        let table = ["ID", "CASE_NO", "PAYLOAD"];
        let has = |name: &str| table.into_iter().find(|it| it.eq_ignore_ascii_case(name));
        let found = columns.of_table(has).unwrap();
        let found: Vec<_> = found.iter().collect();
        let expected = [(Field::Id, "ID"), (Field::Key, "CASE_NO"), (Field::Body, "PAYLOAD")];
        assert_eq!(found, expected);
        assert_eq!(columns.of_table(|_| None).unwrap_err(), ["id", "case_no", "payload"]);
    }

    #[test]
    fn a_table_without_id_or_body_and_a_name_that_is_none_are_faults() {
        let named = [(Field::Id, ""), (Field::Body, ""), (Field::Type, "a; DROP TABLE b")];
        let named = named.map(|(field, name)| (field, name.to_owned())).into();
        let faults = Columns::new(Preset::Debezium, &named).unwrap_err();
        let mut keys: Vec<_> = faults.iter().map(|fault| fault.key.as_str()).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["columns.body", "columns.id", "columns.type"]);
    }
}
