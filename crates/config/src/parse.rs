//! From a tree of plain values to our types, with every fault brought to its place.

use pabal_core::Settings;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{
    AdapterNames, Fault, Faults, JqText, Position,
    known::{self, Table},
    redact,
};

/// Reads tables and collects what is wrong with them.
pub(crate) struct Parser<'a> {
    pub(crate) adapters: &'a AdapterNames,
    pub(crate) faults: &'a mut Faults,
    /// The source or destination at hand, for saying how a table is written.
    pub(crate) endpoint: String,
}

impl Parser<'_> {
    /// The table as `T`, without what is wrong in it or in the tables inside, which is reported.
    /// `None` if what is left is no `T`.
    pub(crate) fn table<T: DeserializeOwned>(
        &mut self,
        mut fields: Map<String, Value>,
        table: Table,
        position: &Position,
    ) -> Option<T> {
        self.only_known(&mut fields, table, position);
        match Settings(Value::Object(fields.clone())).parse() {
            Ok(parsed) => Some(parsed),
            Err(errors) => {
                self.faults.extend(errors.iter().map(|error| Fault::of(position, error)));
                for error in errors {
                    fields.remove(error.key.split('.').next().unwrap_or_default());
                }
                Settings(Value::Object(fields)).parse().ok()
            }
        }
    }

    /// How many faults there are so far: none new means that what was read is whole.
    pub(crate) fn count(&self) -> usize {
        self.faults.iter().count()
    }

    /// Takes out what `table` does not have, and reports it.
    pub(crate) fn only_known(
        &mut self,
        fields: &mut Map<String, Value>,
        table: Table,
        position: &Position,
    ) {
        for (key, value) in fields.iter_mut() {
            let Some(inner) = table.inner(key) else {
                continue;
            };
            let position = position.child(key);
            match value {
                Value::Object(fields) => self.only_known(fields, inner, &position),
                Value::Array(items) => {
                    for (index, item) in items.iter_mut().enumerate() {
                        if let Value::Object(fields) = item {
                            let position = position.child(&index.to_string());
                            self.only_known(fields, inner, &position);
                        }
                    }
                }
                _ => {}
            }
        }
        fields.retain(|key, _| {
            let is_known = table.keys().contains(&key.as_str());
            if !is_known {
                self.unknown(key, table, position);
            }
            is_known
        });
    }

    /// Reports a key that `table` does not have.
    pub(crate) fn unknown(&mut self, key: &str, table: Table, position: &Position) {
        let (message, help) =
            known::unknown_key(key, table, &self.endpoint, self.adapters, known::REMOVED);
        let position = position.child(key);
        self.faults.push(Fault::at_key(&position, message).maybe_help(help));
    }

    /// Reports every string that can only be a secret written where it must not be.
    pub(crate) fn literal_secrets(&mut self, value: &Value, position: &Position) -> bool {
        match value {
            Value::Object(fields) if redact::is_reference(fields) => true,
            Value::Object(fields) => fields.iter().fold(true, |fine, (key, inner)| {
                let position = position.child(key);
                if inner.is_string() && redact::must_be_reference(key) {
                    self.faults.push(Fault::literal_secret(&position));
                    return false;
                }
                self.literal_secrets(inner, &position) && fine
            }),
            Value::Array(items) => items.iter().enumerate().fold(true, |fine, (index, inner)| {
                self.literal_secrets(inner, &position.child(&index.to_string())) && fine
            }),
            _ => true,
        }
    }
}

impl Position {
    /// The position of one key below this one, dots in it included.
    pub(crate) fn child(&self, key: &str) -> Self {
        let mut path = self.path.clone();
        path.push(key.to_owned());
        Self { layers: std::sync::Arc::clone(&self.layers), path }
    }

    /// The expression that stands under `key`.
    pub(crate) fn jq(&self, key: &str, text: Option<String>) -> Option<JqText> {
        text.map(|text| JqText { text, position: self.child(key) })
    }
}
