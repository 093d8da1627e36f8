//! Which adapters there are, and the keys their tables may hold.

use std::collections::BTreeMap;

use pabal_core::{Adapter, Schema};

/// The names of the tables that adapters read, and, as far as known, the keys in them: for telling
/// where a misplaced key belongs.
#[derive(Debug, Clone, Default)]
pub struct AdapterNames(BTreeMap<String, Keys>);

#[derive(Debug, Clone, Default)]
struct Keys {
    destination: Vec<String>,
    source: Vec<String>,
}

impl AdapterNames {
    /// Of these adapters, with the keys from their schemas.
    pub fn of<'a>(adapters: impl IntoIterator<Item = &'a dyn Adapter>) -> Self {
        let adapters = adapters.into_iter().map(|adapter| {
            let keys = Keys {
                destination: properties(&adapter.sender_schema()),
                source: properties(&adapter.receiver_schema()),
            };
            (adapter.name().to_owned(), keys)
        });
        Self(adapters.collect())
    }

    /// By names alone.
    pub fn named<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        let names = names.into_iter().map(|name| (name.into(), Keys::default()));
        Self(names.collect())
    }

    /// Adds the keys of an adapter's tables in destinations and in sources.
    #[must_use]
    pub fn with_keys(mut self, name: &str, destination: &[&str], source: &[&str]) -> Self {
        let owned = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect();
        let keys = Keys { destination: owned(destination), source: owned(source) };
        self.0.insert(name.to_owned(), keys);
        self
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The keys known of an adapter's table; none known means any may be.
    pub(crate) fn keys(&self, name: &str, destination: bool) -> &[String] {
        match self.0.get(name) {
            Some(keys) if destination => &keys.destination,
            Some(keys) => &keys.source,
            None => &[],
        }
    }

    /// The adapters whose table may hold `key`.
    pub(crate) fn with_key<'a>(
        &'a self,
        key: &'a str,
        destination: bool,
    ) -> impl Iterator<Item = &'a str> {
        self.names()
            .filter(move |name| self.keys(name, destination).iter().any(|known| known == key))
    }
}

fn properties(schema: &Schema) -> Vec<String> {
    let properties = schema.get("properties").and_then(|value| value.as_object());
    properties.map_or_else(Vec::new, |fields| fields.keys().cloned().collect())
}
