//! Every key there is, by table: for saying where a misplaced one belongs, and what a mistyped one
//! was meant to be.

use pabal_core::nearest;

use crate::AdapterNames;

/// The tables of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    Hub,
    Http,
    Tls,
    Admin,
    Log,
    Retention,
    Postgres,
    Partner,
    Contact,
    Destination,
    Retry,
    Breaker,
    Answer,
    Source,
    HotCache,
    Read,
    Identify,
}

impl Table {
    /// The keys it may hold. Tables of adapters beside them are known elsewhere.
    pub(crate) fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Hub => &[
                "name",
                "node",
                "store",
                "files",
                "lease",
                "retention",
                "http",
                "admin",
                "timezone",
                "body_max",
                "grace",
                "log",
            ],
            Self::Retention => &["bodies", "history", "inbox", "dead_letters"],
            Self::Postgres => &["env", "file", "listen", "connections"],
            Self::Http => &["listen", "tls"],
            Self::Tls => &["cert", "key", "client_ca"],
            Self::Admin => &["listen", "token"],
            Self::Log => &["format", "filter"],
            Self::Partner => &["name", "contacts", "destination", "source"],
            Self::Contact => &["name", "email", "role", "phone"],
            Self::Destination => &[
                "id",
                "title",
                "takes",
                "from",
                "when",
                "order",
                "on_dead",
                "retry",
                "breaker",
                "lanes",
                "concurrency",
                "rate",
            ],
            Self::Retry => &["attempts", "first", "max"],
            Self::Breaker => &["failures", "after", "refusals", "probe_first", "probe_max"],
            Self::Answer => &["format", "charset", "success", "duplicate", "retry", "dead", "else"],
            Self::Source => &[
                "id",
                "title",
                "read",
                "on_invalid",
                "may_address",
                "body_max",
                "redelivery_window",
                "hot_cache",
            ],
            Self::HotCache => &["messages", "redis", "keep"],
            Self::Read => &["identify"],
            Self::Identify => &["id", "type", "key", "version", "correlation", "missing"],
        }
    }

    /// The table under `key`, if it is one of these.
    pub(crate) fn inner(self, key: &str) -> Option<Self> {
        Some(match (self, key) {
            (Self::Hub, "http") => Self::Http,
            (Self::Hub, "admin") => Self::Admin,
            (Self::Hub, "log") => Self::Log,
            (Self::Hub, "retention") => Self::Retention,
            (Self::Http, "tls") => Self::Tls,
            (Self::Partner, "contacts") => Self::Contact,
            (Self::Destination, "retry") => Self::Retry,
            (Self::Destination, "breaker") => Self::Breaker,
            (Self::Source, "read") => Self::Read,
            (Self::Source, "hot_cache") => Self::HotCache,
            (Self::Read, "identify") => Self::Identify,
            _ => return None,
        })
    }

    /// How it is written, for an endpoint called `name`.
    fn written(self, name: &str) -> String {
        match self {
            Self::Hub => "hub.toml, above the first table".to_owned(),
            Self::Http => "the table `http`".to_owned(),
            Self::Tls => "the table `http.tls`".to_owned(),
            Self::Admin => "the table `admin`".to_owned(),
            Self::Log => "the table `log`".to_owned(),
            Self::Retention => "the table `retention`".to_owned(),
            Self::Postgres => "`store = { postgres = { … } }`".to_owned(),
            Self::Partner => "the top of the partner's file".to_owned(),
            Self::Contact => "`contacts = [{ … }]`".to_owned(),
            Self::Destination => format!("[destination.{name}]"),
            Self::Retry => format!("[destination.{name}.retry]"),
            Self::Breaker => format!("[destination.{name}.breaker]"),
            Self::Answer => "`answer = { … }` in the adapter's table".to_owned(),
            Self::Source => format!("[source.{name}]"),
            Self::HotCache => format!("[source.{name}.hot_cache]"),
            Self::Read => format!("[source.{name}.read]"),
            Self::Identify => format!("`identify = {{ … }}` in [source.{name}.read]"),
        }
    }

    fn family(self) -> &'static [Self] {
        match self {
            Self::Hub
            | Self::Http
            | Self::Tls
            | Self::Admin
            | Self::Log
            | Self::Retention
            | Self::Postgres => &[
                Self::Hub,
                Self::Http,
                Self::Tls,
                Self::Admin,
                Self::Log,
                Self::Retention,
                Self::Postgres,
            ],
            Self::Partner | Self::Contact => &[Self::Partner, Self::Contact, Self::Destination],
            Self::Destination | Self::Retry | Self::Breaker | Self::Answer => {
                &[Self::Destination, Self::Retry, Self::Breaker, Self::Answer, Self::Partner]
            }
            Self::Source | Self::HotCache | Self::Read | Self::Identify => {
                &[Self::Source, Self::HotCache, Self::Identify, Self::Read, Self::Partner]
            }
        }
    }
}

/// Words people use for a key that has another name here.
const OTHER_WORDS: [(&str, Table, &str); 22] = [
    ("storage", Table::Hub, "store"),
    ("storage_backend", Table::Hub, "store"),
    ("database", Table::Hub, "store"),
    ("db", Table::Hub, "store"),
    ("max_body", Table::Hub, "body_max"),
    ("tz", Table::Hub, "timezone"),
    ("logging", Table::Hub, "log"),
    ("level", Table::Log, "filter"),
    ("address", Table::Http, "listen"),
    ("port", Table::Http, "listen"),
    ("max_retries", Table::Destination, "retry.attempts"),
    ("retries", Table::Destination, "retry.attempts"),
    ("max_attempts", Table::Destination, "retry.attempts"),
    ("backoff", Table::Destination, "retry.first"),
    ("topics", Table::Destination, "takes"),
    ("types", Table::Destination, "takes"),
    ("filter", Table::Destination, "when"),
    ("max_retries", Table::Retry, "attempts"),
    ("max_attempts", Table::Retry, "attempts"),
    ("initial", Table::Retry, "first"),
    ("ordering", Table::Destination, "order"),
    ("rate_limit", Table::Destination, "rate"),
];

/// A key that was taken away or renamed, and what to do instead.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Removed {
    pub(crate) table: Table,
    pub(crate) key: &'static str,
    pub(crate) instead: &'static str,
}

/// None yet. One stays here for as long as somebody may still write it.
pub(crate) const REMOVED: &[Removed] = &[];

/// What is wrong with a key that `table` does not have, and what to do.
pub(crate) fn unknown_key(
    key: &str,
    table: Table,
    endpoint: &str,
    adapters: &AdapterNames,
    removed: &[Removed],
) -> (String, Option<String>) {
    if let Some(gone) = removed.iter().find(|gone| gone.table == table && gone.key == key) {
        return (format!("`{key}` is gone"), Some(gone.instead.to_owned()));
    }
    let own = table.keys();
    let message = format!("unknown key `{key}`");
    let plain = plain(key);
    if own.contains(&plain.as_str()) {
        return (message, Some(format!("did you mean `{plain}`?")));
    }
    // In its place in another table, letter for letter?
    if let Some(right) = table.family().iter().find(|other| other.keys().contains(&key)) {
        return (message, Some(format!("`{key}` belongs in {}", right.written(endpoint))));
    }
    if let Some(kind) = side(table) {
        let mut tables = adapters.with_key(key, kind == "destination");
        if let Some(adapter) = tables.next() {
            return (message, Some(format!("`{key}` belongs in [{kind}.{endpoint}.{adapter}]")));
        }
    }
    let others = OTHER_WORDS.iter().filter(|(_, at, _)| *at == table);
    let others: Vec<_> = others.collect();
    let mut words: Vec<&str> = own.to_vec();
    words.extend(others.iter().map(|(word, ..)| *word));
    let help = match nearest(key, &words) {
        Some(near) => {
            let meant =
                others.iter().find(|(word, ..)| *word == near).map_or(near, |(.., meant)| meant);
            format!("did you mean `{meant}`?")
        }
        None => format!("known here: {}", own.join(", ")),
    };
    (message, Some(help))
}

/// Whether the table is part of a destination or of a source.
pub(crate) fn side(table: Table) -> Option<&'static str> {
    match table {
        Table::Destination | Table::Retry | Table::Breaker | Table::Answer => Some("destination"),
        Table::Source | Table::Read | Table::Identify => Some("source"),
        _ => None,
    }
}

/// Where a key of a destination's or source's own tables belongs that stands in an adapter's table.
pub(crate) fn misplaced_in_adapter(key: &str, side: Table, endpoint: &str) -> Option<String> {
    // What an adapter may well have itself says nothing.
    const SHARED: [&str; 7] = ["id", "title", "type", "key", "name", "from", "max"];
    if SHARED.contains(&key) {
        return None;
    }
    let right = side.family().iter().find(|table| {
        **table != Table::Answer && **table != Table::Partner && table.keys().contains(&key)
    })?;
    Some(format!("`{key}` belongs in {}", right.written(endpoint)))
}

fn plain(key: &str) -> String {
    key.to_ascii_lowercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_gone_says_what_to_do_instead() {
        let removed = [Removed {
            table: Table::Destination,
            key: "retries",
            instead: "write retry = { attempts = … }",
        }];
        let adapters = AdapterNames::named(["rest"]);
        assert_eq!(
            unknown_key("retries", Table::Destination, "x", &adapters, &removed),
            ("`retries` is gone".to_owned(), Some("write retry = { attempts = … }".to_owned()))
        );
    }

    #[test]
    fn a_key_says_what_it_was_meant_to_be_or_where_it_belongs() {
        let adapters = AdapterNames::default().with_keys("rest", &["url", "method"], &["auth"]);
        for (key, table, help) in [
            ("ordr", Table::Destination, "did you mean `order`?"),
            ("on-dead", Table::Destination, "did you mean `on_dead`?"),
            ("max_retires", Table::Destination, "did you mean `retry.attempts`?"),
            ("url", Table::Destination, "`url` belongs in [destination.x.rest]"),
            ("url", Table::Retry, "`url` belongs in [destination.x.rest]"),
            ("attempts", Table::Destination, "`attempts` belongs in [destination.x.retry]"),
            (
                "success",
                Table::Destination,
                "`success` belongs in `answer = { … }` in the adapter's table",
            ),
            (
                "version",
                Table::Source,
                "`version` belongs in `identify = { … }` in [source.x.read]",
            ),
            ("storage-backend", Table::Hub, "did you mean `store`?"),
            ("filter", Table::Hub, "`filter` belongs in the table `log`"),
            ("xyzzy", Table::Retry, "known here: attempts, first, max"),
        ] {
            let (_, given) = unknown_key(key, table, "x", &adapters, REMOVED);
            assert_eq!(given.as_deref(), Some(help), "{key} in {table:?}");
        }
    }
}
