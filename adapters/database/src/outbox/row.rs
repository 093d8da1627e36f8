//! From a row of the table to a message.

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use pabal_core::{Body, Bytes, Cause, EndpointName, Headers, Message, Reason, SendError};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::columns::Field;

/// The header that names what kind of thing the key is of.
const AGGREGATE: &str = "ce-aggregatetype";

/// What a row holds: texts as the database writes them, and the body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Row {
    texts: [Option<String>; Field::COUNT],
    /// The body as it was written; what a text column holds, in UTF-8.
    pub body: Bytes,
}

impl Row {
    /// Sets what a column holds that is not the body.
    pub(crate) fn set(&mut self, field: Field, text: Option<String>) {
        self.texts[field as usize] = text;
    }

    /// What a column holds; `None` also if the table has none.
    pub(crate) fn get(&self, field: Field) -> Option<&str> {
        self.texts[field as usize].as_deref()
    }

    /// The id that the application gave it.
    pub(crate) fn id(&self) -> Option<&str> {
        self.get(Field::Id)
    }

    /// As a message. What the row does not say is left to the source's own rules.
    ///
    /// # Errors
    /// `Permanent`, if it says something that cannot be read.
    pub(crate) fn message(
        mut self,
        source: &EndpointName,
        content_type: &str,
    ) -> Result<Message, SendError> {
        let headers = headers(self.get(Field::Headers), self.get(Field::Aggregate))?;
        let version = match self.get(Field::Version) {
            None => None,
            Some(text) => Some(text.parse().map_err(|_| {
                let cause = Cause::with("the version is not a whole number", text);
                SendError::permanent(Reason::Invalid, cause)
            })?),
        };
        let (time, origin_time) = match self.get(Field::Time) {
            Some(text) => read_time(text),
            None => (None, None),
        };
        let mut take = |field: Field| self.texts[field as usize].take();
        let filled = |text: &String| !text.is_empty();
        let message_type = take(Field::Type).unwrap_or_default();
        let mut message = Message::new(source.clone(), message_type, Bytes::new());
        message.origin.id = take(Field::Id);
        if let Some(origin) = take(Field::Source).filter(filled) {
            message.origin.source = origin;
        }
        message.key = take(Field::Key).filter(filled);
        message.version = version;
        message.schema = take(Field::Schema).filter(filled);
        message.content_type =
            take(Field::ContentType).filter(filled).or_else(|| Some(content_type.to_owned()));
        message.time = time;
        message.subject = take(Field::Subject).filter(filled);
        message.correlation = take(Field::Correlation).filter(filled);
        message.causation = take(Field::Causation).filter(filled);
        message.trace = take(Field::Trace).filter(filled);
        message.destination = take(Field::Destination).filter(filled);
        message.headers = headers;
        message.body = Body::Inline(self.body);
        message.arrival.origin_time = origin_time;
        Ok(message)
    }
}

/// What is written in the column of headers, and the aggregate's type.
fn headers(written: Option<&str>, aggregate: Option<&str>) -> Result<Headers, SendError> {
    let pairs = match written {
        None => Vec::new(),
        Some(text) => {
            serde_json::from_str::<Pairs>(text).map(|pairs| pairs.0).map_err(|error| {
                let what = "the headers are not a JSON object of strings";
                SendError::permanent(Reason::Unreadable, Cause::with(what, error.to_string()))
            })?
        }
    };
    let mut headers: Headers = pairs.into_iter().collect();
    if let Some(aggregate) = aggregate.filter(|text| !text.is_empty())
        && headers.get(AGGREGATE).is_none()
    {
        headers.push(AGGREGATE, aggregate);
    }
    Ok(headers)
}

/// The pairs of a JSON object in the order in which they stand there, numbers digit for digit.
struct Pairs(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Pairs;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_unit<E>(self) -> Result<Pairs, E> {
                Ok(Pairs(Vec::new()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                    let text = match value.get().as_bytes().first() {
                        Some(b'"') => {
                            serde_json::from_str(value.get()).map_err(serde::de::Error::custom)?
                        }
                        Some(b'{' | b'[') => {
                            let what = format!("`{name}` is not a string");
                            return Err(serde::de::Error::custom(what));
                        }
                        _ if value.get() == "null" => continue,
                        _ => value.get().to_owned(),
                    };
                    pairs.push((name, text));
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_any(Object)
    }
}

/// A time as the message carries it, and as an instant. What is RFC 3339 stays as it was written;
/// what a database wrote becomes it, without a zone as UTC; what is none is left out.
fn read_time(text: &str) -> (Option<String>, Option<Timestamp>) {
    let instant = text.parse::<Timestamp>().ok().or_else(|| {
        let civil: DateTime = text.parse().ok()?;
        Some(civil.to_zoned(TimeZone::UTC).ok()?.timestamp())
    });
    let Some(instant) = instant else { return (None, None) };
    let is_rfc_3339 = text.as_bytes().get(10) == Some(&b'T')
        && (text.ends_with('Z') || text.len() > 6 && text.as_bytes()[text.len() - 3] == b':')
        && text.parse::<Timestamp>().is_ok();
    let time = if is_rfc_3339 { text.to_owned() } else { instant.to_string() };
    (Some(time), Some(instant))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(texts: &[(Field, &str)]) -> Row {
        let mut row = Row { body: "{}".into(), ..Row::default() };
        texts.iter().for_each(|(field, text)| row.set(*field, Some((*text).to_owned())));
        row
    }

    fn message(texts: &[(Field, &str)]) -> Result<Message, SendError> {
        row(texts).message(&"p/s".parse().unwrap(), "application/json")
    }

    #[test]
    fn every_column_has_its_place_in_the_message() {
        let m = message(&[
            (Field::Id, "a-1"),
            (Field::Aggregate, "application"),
            (Field::Key, "11"),
            (Field::Type, "application.submitted"),
            (Field::ContentType, "text/plain"),
            (Field::Schema, "application@1"),
            (Field::Version, "9007199254740993"),
            (Field::Correlation, "c"),
            (Field::Causation, "b"),
            (Field::Trace, "00-1-2-01"),
            (Field::Destination, "w/d"),
            (Field::Headers, r#"{"z":"\u0041","n":12345678901234567890,"b":true,"o":null}"#),
            (Field::Source, "/시청"),
            (Field::Subject, "s"),
            (Field::Time, "2026-11-30 12:00:00.5+09"),
        ])
        .unwrap();
        assert_eq!(m.origin.id.as_deref(), Some("a-1"));
        assert_eq!((m.origin.source.as_str(), m.key.as_deref()), ("/시청", Some("11")));
        assert_eq!(m.message_type, "application.submitted");
        assert_eq!(m.content_type.as_deref(), Some("text/plain"));
        assert_eq!((m.schema.as_deref(), m.version), (Some("application@1"), Some(1 + (1 << 53))));
        assert_eq!((m.correlation.as_deref(), m.causation.as_deref()), (Some("c"), Some("b")));
        assert_eq!(
            (m.trace.as_deref(), m.destination.as_deref()),
            (Some("00-1-2-01"), Some("w/d"))
        );
        assert_eq!(m.subject.as_deref(), Some("s"));
        let headers: Vec<_> = m.headers.iter().collect();
        let expected = [
            ("z", "A"),
            ("n", "12345678901234567890"),
            ("b", "true"),
            ("ce-aggregatetype", "application"),
        ];
        assert_eq!(headers, expected);
        assert_eq!(m.time.as_deref(), Some("2026-11-30T03:00:00.5Z"));
    }

    #[test]
    fn what_is_not_there_is_left_open() {
        let m = message(&[(Field::Id, "a"), (Field::Key, ""), (Field::Destination, "")]).unwrap();
        assert_eq!((m.key, m.destination, m.message_type), (None, None, String::new()));
        assert_eq!(m.origin.source, "/p/s");
        assert_eq!(m.content_type.as_deref(), Some("application/json"));
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for text in ["[]", "1", "{\"a\":{}}", "{\"a\":[1]}", "{", "no"] {
            let error = message(&[(Field::Headers, text)]).unwrap_err();
            assert!(
                matches!(error, SendError::Permanent { reason: Reason::Unreadable, .. }),
                "{text}"
            );
        }
        let error = message(&[(Field::Version, "1.5")]).unwrap_err();
        assert!(matches!(error, SendError::Permanent { reason: Reason::Invalid, .. }));
    }

    #[test]
    fn a_time_is_kept_as_written_or_becomes_the_same_instant() {
        for (text, expected) in [
            ("2026-11-30T12:00:00.123000+09:00", Some("2026-11-30T12:00:00.123000+09:00")),
            ("2026-11-30T12:00:00Z", Some("2026-11-30T12:00:00Z")),
            ("2026-11-30 12:00:00.123456+00", Some("2026-11-30T12:00:00.123456Z")),
            ("2026-11-30 12:00:00+05:30", Some("2026-11-30T06:30:00Z")),
            ("2026-11-30 12:00:00.123456", Some("2026-11-30T12:00:00.123456Z")),
            ("2026-11-30T12:00:00.123", Some("2026-11-30T12:00:00.123Z")),
            ("2026-11-30", Some("2026-11-30T00:00:00Z")),
            ("infinity", None),
            ("1764504000", None),
            ("", None),
        ] {
            assert_eq!(read_time(text).0.as_deref(), expected, "{text}");
        }
    }
}
