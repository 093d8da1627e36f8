//! One TOML file: its text, its values, and where each of them stands.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use serde_json::{Map, Number, Value};
use toml_edit::{Document, Item, TableLike};

/// A file that was read and is TOML.
pub(crate) struct SourceFile {
    pub(crate) path: PathBuf,
    document: Document<String>,
}

/// Where a key and its value stand, in bytes of the text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spans {
    pub(crate) key: Option<Range<usize>>,
    pub(crate) value: Option<Range<usize>>,
    /// How many parts of the path were found.
    pub(crate) depth: usize,
}

impl SourceFile {
    /// Parses; or the text, the message and the place of the fault.
    pub(crate) fn parse(path: &Path, text: String) -> Result<Self, (String, Option<Range<usize>>)> {
        match Document::parse(text) {
            Ok(document) => Ok(Self { path: path.to_owned(), document }),
            Err(error) => Err((error.message().to_owned(), error.span())),
        }
    }

    pub(crate) fn text(&self) -> &str {
        self.document.raw()
    }

    /// All of it as plain values. Dates become strings.
    pub(crate) fn value(&self) -> Map<String, Value> {
        table(self.document.as_table())
    }

    /// Where the deepest part of `path` stands that the file has.
    pub(crate) fn find(&self, path: &[String]) -> Spans {
        let mut found = Spans::default();
        let mut at = Place::Item(self.document.as_item());
        for part in path {
            let Some((key, next)) = at.child(part) else {
                break;
            };
            found = Spans {
                value: next.span().or_else(|| key.clone()),
                key: key.or_else(|| next.span()),
                depth: found.depth + 1,
            };
            at = next;
        }
        found
    }
}

/// A place in the document; what is inside an inline value is no item of its own.
enum Place<'a> {
    Item(&'a Item),
    Value(&'a toml_edit::Value),
    Table(&'a toml_edit::Table),
}

impl<'a> Place<'a> {
    fn span(&self) -> Option<Range<usize>> {
        match self {
            Self::Item(item) => item.span(),
            Self::Value(value) => value.span(),
            Self::Table(table) => table.span(),
        }
    }

    fn child(&self, part: &str) -> Option<(Option<Range<usize>>, Place<'a>)> {
        let tables: Option<&'a dyn TableLike> = match self {
            Self::Item(item) => item.as_table_like(),
            Self::Value(value) => value.as_inline_table().map(|table| table as &dyn TableLike),
            Self::Table(table) => Some(*table as &dyn TableLike),
        };
        if let Some(tables) = tables {
            let (key, item) = tables.get_key_value(part)?;
            return Some((key.span(), Place::Item(item)));
        }
        let index: usize = part.parse().ok()?;
        let value: &'a toml_edit::Value = match self {
            Self::Item(Item::ArrayOfTables(array)) => {
                return Some((None, Place::Table(array.get(index)?)));
            }
            Self::Item(Item::Value(value)) => value,
            Self::Value(value) => value,
            _ => return None,
        };
        Some((None, Place::Value(value.as_array()?.get(index)?)))
    }
}

fn table(table: &dyn TableLike) -> Map<String, Value> {
    let fields = table.iter();
    fields
        .filter(|(_, item)| !item.is_none())
        .map(|(key, item)| (key.to_owned(), plain(item)))
        .collect()
}

fn plain(item: &Item) -> Value {
    match item {
        Item::None => Value::Null,
        Item::Value(value) => plain_value(value),
        Item::Table(inner) => Value::Object(table(inner)),
        Item::ArrayOfTables(array) => {
            Value::Array(array.iter().map(|inner| Value::Object(table(inner))).collect())
        }
    }
}

fn plain_value(value: &toml_edit::Value) -> Value {
    match value {
        toml_edit::Value::String(text) => Value::String(text.value().clone()),
        toml_edit::Value::Integer(number) => Value::Number((*number.value()).into()),
        toml_edit::Value::Float(number) => {
            // JSON has no infinity; as a string it is a wrong type wherever a number is wanted.
            Number::from_f64(*number.value())
                .map_or_else(|| Value::String(number.value().to_string()), Value::Number)
        }
        toml_edit::Value::Boolean(value) => Value::Bool(*value.value()),
        toml_edit::Value::Datetime(time) => Value::String(time.value().to_string()),
        toml_edit::Value::Array(items) => items.iter().map(plain_value).collect(),
        toml_edit::Value::InlineTable(inner) => Value::Object(table(inner)),
    }
}
