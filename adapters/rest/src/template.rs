//! Texts with placeholders that a message fills.

use pabal_core::{ConfigError, Message};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Everything but what RFC 3986 calls unreserved, so that a value stays inside its place.
const URL: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What may stand in braces.
const NAMES: [(&str, Field); 6] = [
    ("key", Field::Key),
    ("id", Field::Id),
    ("type", Field::Type),
    ("version", Field::Version),
    ("correlation", Field::Correlation),
    ("origin_id", Field::OriginId),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Key,
    Id,
    Type,
    Version,
    Correlation,
    OriginId,
}

#[derive(Debug, Clone)]
enum Part {
    Text(String),
    Field(&'static str, Field),
}

/// A text with placeholders.
#[derive(Debug, Clone)]
pub(crate) struct Template(Vec<Part>);

impl Template {
    /// Reads `text`; a fault is told under `key`.
    pub(crate) fn parse(key: &str, text: &str) -> Result<Self, ConfigError> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find(['{', '}']) {
            let (before, after) = rest.split_at(open);
            let name = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
            let Some((name, behind)) = name else {
                return Err(ConfigError::new(key, "a brace has no partner"));
            };
            let Some((name, field)) = NAMES.iter().find(|(known, _)| *known == name) else {
                let known: Vec<_> = NAMES.iter().map(|(name, _)| format!("{{{name}}}")).collect();
                return Err(ConfigError::new(key, format!("unknown placeholder `{{{name}}}`"))
                    .help(format!("known here: {}", known.join(", "))));
            };
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            parts.push(Part::Field(name, *field));
            rest = behind;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Self(parts))
    }

    /// With every placeholder replaced by `value`, to check the text around them.
    pub(crate) fn with_all(&self, value: &str) -> String {
        self.0
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.as_str(),
                Part::Field(..) => value,
            })
            .collect()
    }

    /// Filled from `message`, values as they are.
    ///
    /// # Errors
    /// The name of the first placeholder the message has nothing for.
    pub(crate) fn plain(&self, message: &Message) -> Result<String, &'static str> {
        self.fill(message, |value| value.to_owned())
    }

    /// Filled from `message`, values percent-encoded for a path segment or query value.
    ///
    /// # Errors
    /// The name of the first placeholder the message has nothing for.
    pub(crate) fn url(&self, message: &Message) -> Result<String, &'static str> {
        self.fill(message, |value| utf8_percent_encode(value, URL).to_string())
    }

    fn fill(
        &self,
        message: &Message,
        encode: impl Fn(&str) -> String,
    ) -> Result<String, &'static str> {
        let mut filled = String::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Field(name, field) => {
                    let value = value(message, *field).filter(|value| !value.is_empty());
                    filled.push_str(&encode(&value.ok_or(*name)?));
                }
            }
        }
        Ok(filled)
    }
}

fn value(message: &Message, field: Field) -> Option<String> {
    match field {
        Field::Key => message.key.clone(),
        Field::Id => Some(message.id.to_string()),
        Field::Type => Some(message.message_type.clone()),
        Field::Version => message.version.map(|version| version.to_string()),
        Field::Correlation => message.correlation.clone(),
        Field::OriginId => message.origin.id.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_inside_their_place_in_a_url() {
        let mut message = Message::new("p/s".parse().unwrap(), "a.b", "");
        message.key = Some("서울/11?x=1&y#z".into());
        let template = Template::parse("url", "http://h/{key}/{type}").unwrap();
        assert_eq!(
            template.url(&message).unwrap(),
            "http://h/%EC%84%9C%EC%9A%B8%2F11%3Fx%3D1%26y%23z/a.b"
        );
    }

    #[test]
    fn unknown_and_broken_placeholders_are_faults() {
        for text in ["{kee}", "{", "}", "{key", "{}", "a}b{key}"] {
            assert!(Template::parse("url", text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_missing_or_empty_value_is_named() {
        let mut message = Message::new("p/s".parse().unwrap(), "t", "");
        let template = Template::parse("url", "x{key}").unwrap();
        assert_eq!(template.plain(&message), Err("key"));
        message.key = Some(String::new());
        assert_eq!(template.plain(&message), Err("key"));
    }
}
