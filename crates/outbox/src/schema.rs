//! Which version of which schema a payload follows.

use std::{borrow::Cow, fmt, str::FromStr};

use crate::Error;

/// `name@major.minor`: a reader of one major version understands all its minor ones. Not to be
/// mixed up with the business version of an aggregate
/// ([`MessageBuilder::version`](crate::MessageBuilder::version)).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Schema {
    name: Cow<'static, str>,
    major: u32,
    minor: u32,
}

/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 64;

impl Schema {
    /// A schema whose name is known when the program is built.
    ///
    /// # Panics
    /// If the name is not 1 to 64 lower-case letters, digits, `-`, `_` or `.`; as the value of a
    /// constant that is an error of the build.
    #[must_use]
    pub const fn new(name: &'static str, major: u32, minor: u32) -> Self {
        assert!(
            is_name(name),
            "a schema's name is 1 to 64 lower-case letters, digits, `-`, `_` or `.`"
        );
        Self { name: Cow::Borrowed(name), major, minor }
    }

    /// The name without the version.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

const fn is_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if !matches!(bytes[at], b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.') {
            return false;
        }
        at += 1;
    }
    !bytes.is_empty() && bytes.len() <= NAME_BYTES_MAX
}

impl FromStr for Schema {
    type Err = Error;
    /// Reads `name@major.minor`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let parts = || {
            let (name, version) = text.split_once('@')?;
            let (major, minor) = version.split_once('.')?;
            let name = is_name(name).then(|| name.to_owned())?;
            Some(Self { name: name.into(), major: number(major)?, minor: number(minor)? })
        };
        parts().ok_or_else(|| {
            Error::invalid("schema", "write name@major.minor, such as application@1.0")
        })
    }
}

/// Without the `+` that `parse` allows.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, major, minor } = self;
        write!(f, "{name}@{major}.{minor}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_reads_as_it_is_written() {
        const SCHEMA: Schema = Schema::new("welfare.application", 2, 10);
        assert_eq!(SCHEMA.to_string(), "welfare.application@2.10");
        assert_eq!("welfare.application@2.10".parse::<Schema>().unwrap(), SCHEMA);
        for text in ["", "a", "a@1", "@1.0", "a@1.", "a@+1.0", "A@1.0", "a b@1.0", "a@1.0.0"] {
            assert!(text.parse::<Schema>().is_err(), "{text}");
        }
    }
}
