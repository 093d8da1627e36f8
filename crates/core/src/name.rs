//! The full name of a source or destination, `partner/name`.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

/// The full name of a source or destination: `partner/name`, both parts lower-case ASCII letters,
/// digits, `-` and `_`, at most 64 bytes each. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EndpointName(Arc<str>);

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a name: write partner/name, each of 1 to 64 lower-case letters, digits, `-` or `_`"
)]
pub struct NameError(String);

impl EndpointName {
    /// Puts the two parts together.
    ///
    /// # Errors
    /// If a part is empty, over 64 bytes or has another character.
    pub fn new(partner: &str, name: &str) -> Result<Self, NameError> {
        format!("{partner}/{name}").parse()
    }

    /// The agency: the stem of its configuration file.
    #[must_use]
    pub fn partner(&self) -> &str {
        self.0.split_once('/').map_or("", |(partner, _)| partner)
    }

    /// The source's or destination's name within its partner.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or("", |(_, name)| name)
    }

    /// `partner/name`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_part(part: &str) -> bool {
    (1..=64).contains(&part.len())
        && part.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'))
}

impl FromStr for EndpointName {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        match text.split_once('/') {
            Some((partner, name)) if is_part(partner) && is_part(name) => Ok(Self(text.into())),
            _ => Err(NameError(crate::shorten(text, 140).into_owned())),
        }
    }
}

impl TryFrom<String> for EndpointName {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<EndpointName> for String {
    fn from(name: EndpointName) -> Self {
        name.0.as_ref().to_owned()
    }
}

impl fmt::Display for EndpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for EndpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_two_parts_of_safe_characters() {
        let name: EndpointName = "welfare/applications".parse().unwrap();
        assert_eq!((name.partner(), name.name()), ("welfare", "applications"));
        for bad in
            ["", "a", "a/", "/b", "a/b/c", "A/b", "a/b c", "../x", "복지/신청", &"a/".repeat(90)]
        {
            assert!(bad.parse::<EndpointName>().is_err(), "{bad:?} was taken");
        }
    }
}
