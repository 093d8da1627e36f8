//! Which table is the outbox.

use crate::Error;

/// The longest part of a table's name, in bytes: PostgreSQL would cut a longer one off in silence.
const NAME_BYTES_MAX: usize = 63;

/// The name of an outbox table; `outbox` unless said otherwise. It is quoted wherever it is written
/// into SQL, so that upper and lower case count and no character of it has a meaning.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Table(Vec<String>);

impl Table {
    /// A table by its name, or by `schema.table`.
    ///
    /// # Errors
    /// If a part is empty, over 63 bytes or has a control character, or there are more than two.
    pub fn new(name: &str) -> Result<Self, Error> {
        let parts: Vec<String> = name.split('.').map(str::to_owned).collect();
        let is_part = |part: &String| {
            (1..=NAME_BYTES_MAX).contains(&part.len()) && !part.chars().any(char::is_control)
        };
        if parts.len() > 2 || !parts.iter().all(is_part) {
            let why = "write `table` or `schema.table`, each of 1 to 63 bytes";
            return Err(Error::invalid("table", why));
        }
        Ok(Self(parts))
    }

    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    /// Its name in SQL, between these quotation marks.
    pub(crate) fn quoted(&self, mark: char) -> String {
        let doubled = String::from_iter([mark, mark]);
        let quote = |part: &String| format!("{mark}{}{mark}", part.replace(mark, &doubled));
        self.0.iter().map(quote).collect::<Vec<_>>().join(".")
    }
}

impl Default for Table {
    fn default() -> Self {
        Self(vec!["outbox".to_owned()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_quoted_and_can_say_nothing_else() {
        for (name, expected) in [
            ("outbox", "\"outbox\""),
            ("app.Outbox", "\"app\".\"Outbox\""),
            ("민원 발신함", "\"민원 발신함\""),
            ("a\" (id) SELECT 1; --", "\"a\"\" (id) SELECT 1; --\""),
        ] {
            assert_eq!(Table::new(name).unwrap().quoted('"'), expected);
        }
        assert_eq!(Table::new("a`b").unwrap().quoted('`'), "`a``b`");
        assert_eq!(Table::new("outbox").unwrap(), Table::default());
        let long = "t".repeat(64);
        for name in ["", ".", "a.", "a.b.c", "a\0", "a\nb", &long] {
            assert!(Table::new(name).is_err(), "{name:?}");
        }
    }
}
