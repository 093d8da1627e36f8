//! Names of tables and channels, as they stand in a setting and as they go into a statement.

use pabal_core::ConfigError;

/// How a database writes what it would otherwise read as a word of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// PostgreSQL.
    Postgres,
    /// MariaDB and MySQL.
    MySql,
    /// SQLite.
    Sqlite,
}

impl Dialect {
    /// One name, quoted. It holds no quote of its own.
    pub(crate) fn quoted(self, name: &str) -> String {
        match self {
            Self::MySql => format!("`{name}`"),
            Self::Postgres | Self::Sqlite => format!("\"{name}\""),
        }
    }
}

/// A table, with its schema where one is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableName {
    schema: Option<String>,
    name: String,
}

impl TableName {
    /// Reads `table` or `schema.table`; a fault is told under `key`.
    ///
    /// # Errors
    /// If it is not made of letters, digits, `_` and `$`.
    pub(crate) fn parse(key: &str, text: &str) -> Result<Self, ConfigError> {
        let (schema, name) = match text.split_once('.') {
            Some((schema, name)) => (Some(schema), name),
            None => (None, text),
        };
        for part in schema.into_iter().chain([name]) {
            check(key, part)?;
        }
        Ok(Self { schema: schema.map(str::to_owned), name: name.to_owned() })
    }

    /// As it stands in a statement.
    pub(crate) fn quoted(&self, dialect: Dialect) -> String {
        match &self.schema {
            Some(schema) => format!("{}.{}", dialect.quoted(schema), dialect.quoted(&self.name)),
            None => dialect.quoted(&self.name),
        }
    }

    /// Its schema, if one is named.
    pub(crate) fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// Its own name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl std::fmt::Display for TableName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// The longest name that all three take.
const NAME_BYTES_MAX: usize = 63;

/// Whether `name` is one; a fault is told under `key`.
///
/// # Errors
/// If it is not made of letters, digits, `_` and `$`.
pub(crate) fn check(key: &str, name: &str) -> Result<(), ConfigError> {
    let fits = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    let starts = name.chars().next().is_some_and(|c| !c.is_ascii_digit() && c != '$');
    if starts && name.chars().all(fits) && name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    Err(ConfigError::new(key, format!("`{}` is not a name", pabal_core::shorten(name, 70)))
        .help("letters, digits and `_`, as the database writes it: `inbox` or `app.inbox`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_quoted_as_its_database_wants_and_nothing_else_is_a_name() {
        let quoted = |text: &str, dialect| TableName::parse("", text).unwrap().quoted(dialect);
        assert_eq!(quoted("inbox", Dialect::Postgres), "\"inbox\"");
        assert_eq!(quoted("App.inbox", Dialect::Postgres), "\"App\".\"inbox\"");
        assert_eq!(quoted("app.inbox", Dialect::MySql), "`app`.`inbox`");
        assert_eq!(quoted("수신함", Dialect::Sqlite), "\"수신함\"");
        let long = "a".repeat(64);
        for bad in ["", ".", "a.", ".a", "a.b.c", "a b", "a\"b", "a`b", "a;b", "1a", "$a", &long] {
            let error = TableName::parse("inbox", bad).unwrap_err();
            assert_eq!(error.key, "inbox", "{bad}");
        }
    }
}
