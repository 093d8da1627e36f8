//! What a named parameter takes from a message. Numbers stay as they stand in the body, digit for
//! digit: they are never read as a float.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use pabal_core::{Body, Cause, ConfigError, Message, Reason, SendError, nearest};
use serde_json::value::RawValue;

/// The parameters that every message has, beside `body.…`.
const NAMES: [(&str, Field); 15] = [
    ("id", Field::Id),
    ("source", Field::Source),
    ("origin_source", Field::OriginSource),
    ("origin_id", Field::OriginId),
    ("type", Field::Type),
    ("key", Field::Key),
    ("version", Field::Version),
    ("schema", Field::Schema),
    ("correlation", Field::Correlation),
    ("causation", Field::Causation),
    ("subject", Field::Subject),
    ("time", Field::Time),
    ("content_type", Field::ContentType),
    ("headers", Field::Headers),
    ("body", Field::Body),
];

/// A part of the envelope, or the body as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    Id,
    Source,
    OriginSource,
    OriginId,
    Type,
    Key,
    Version,
    Schema,
    Correlation,
    Causation,
    Subject,
    Time,
    ContentType,
    Headers,
    Body,
}

/// Where a parameter's value stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Parameter {
    /// In the message.
    Field(Field),
    /// In the JSON of its body.
    Path(Path),
}

/// A way into JSON, as jq writes it: `.a.b`, `.items[0]`, `."a name"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Path(Vec<Step>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

/// One value for a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    /// Not there, or JSON `null`.
    Null,
    /// Text; what JSON escapes is undone.
    Text(Cow<'a, str>),
    /// A number as it stands in the JSON.
    Number(&'a str),
    /// A whole number of the envelope.
    Integer(i64),
    /// JSON `true` or `false`.
    Bool(bool),
    /// An object or a list, as it stands.
    Json(&'a str),
    /// The body.
    Body(&'a [u8]),
}

impl Parameter {
    /// By its name in a statement; `own` are those that the settings define.
    ///
    /// # Errors
    /// What is wrong with it, with the nearest known one.
    pub(crate) fn named(
        key: &str,
        name: &str,
        own: &BTreeMap<String, Path>,
    ) -> Result<Self, ConfigError> {
        if let Some(path) = own.get(name) {
            return Ok(Self::Path(path.clone()));
        }
        if let Some((_, field)) = NAMES.iter().find(|(known, _)| *known == name) {
            return Ok(Self::Field(*field));
        }
        if let Some(inside) = name.strip_prefix("body.") {
            let step = |part: &str| match part.parse() {
                Ok(index) => Step::Index(index),
                Err(_) => Step::Key(part.to_owned()),
            };
            return Ok(Self::Path(Path(inside.split('.').map(step).collect())));
        }
        let known: Vec<&str> =
            NAMES.iter().map(|(known, _)| *known).chain(own.keys().map(String::as_str)).collect();
        let error = ConfigError::new(key, format!("there is no parameter `:{name}`"));
        Err(error.help(match nearest(name, &known) {
            Some(near) => format!("did you mean `:{near}`?"),
            None => format!(
                "of the body it is :body.{name}; of the message: {}",
                known.iter().map(|known| format!(":{known}")).collect::<Vec<_>>().join(" ")
            ),
        }))
    }

    /// Its value in a message.
    pub(crate) fn of<'v>(&self, values: &'v Values<'_>) -> Result<Value<'v>, SendError> {
        match self {
            Self::Field(field) => Ok(values.field(*field)),
            Self::Path(path) => path.of(values.json()?),
        }
    }
}

/// Whether the settings may define a parameter of this name.
pub(crate) fn is_taken(name: &str) -> bool {
    NAMES.iter().any(|(known, _)| *known == name)
}

/// A message as statements see it.
#[derive(Debug)]
pub(crate) struct Values<'a> {
    message: &'a Message,
    body: &'a [u8],
    headers: String,
}

impl<'a> Values<'a> {
    /// Of one message.
    ///
    /// # Errors
    /// If its body is not here.
    pub(crate) fn new(message: &'a Message) -> Result<Self, SendError> {
        let Body::Inline(body) = &message.body else {
            let cause = "the body lies elsewhere and was not fetched";
            return Err(SendError::permanent(Reason::BodyGone, cause));
        };
        // As an object, for a column of JSON; values of one name stand together, as HTTP has it.
        let mut all = BTreeMap::<String, String>::new();
        for (name, value) in message.headers.iter() {
            all.entry(name.to_ascii_lowercase())
                .and_modify(|held| *held = format!("{held}, {value}"))
                .or_insert_with(|| value.to_owned());
        }
        let headers = serde_json::to_string(&all).unwrap_or_else(|_| "{}".to_owned());
        Ok(Self { message, body, headers })
    }

    /// The message.
    pub(crate) fn message(&self) -> &'a Message {
        self.message
    }

    /// The body's bytes.
    pub(crate) fn body(&self) -> &'a [u8] {
        self.body
    }

    /// The further headers as a JSON object.
    pub(crate) fn headers(&self) -> &str {
        &self.headers
    }

    fn field(&self, field: Field) -> Value<'_> {
        let message = self.message;
        let text = |text: &'a Option<String>| -> Value<'_> {
            match text {
                Some(text) => Value::Text(Cow::Borrowed(text)),
                None => Value::Null,
            }
        };
        match field {
            Field::Id => Value::Text(message.id.to_string().into()),
            Field::Source => Value::Text(Cow::Borrowed(message.source.as_str())),
            Field::OriginSource => Value::Text(Cow::Borrowed(&message.origin.source)),
            Field::OriginId => text(&message.origin.id),
            Field::Type => Value::Text(Cow::Borrowed(&message.message_type)),
            Field::Key => text(&message.key),
            Field::Version => message.version.map_or(Value::Null, Value::Integer),
            Field::Schema => text(&message.schema),
            Field::Correlation => text(&message.correlation),
            Field::Causation => text(&message.causation),
            Field::Subject => text(&message.subject),
            Field::Time => text(&message.time),
            Field::ContentType => text(&message.content_type),
            Field::Headers => Value::Json(&self.headers),
            Field::Body => Value::Body(self.body),
        }
    }

    fn json(&self) -> Result<&'a RawValue, SendError> {
        serde_json::from_slice(self.body).map_err(|error| {
            let place = format!("line {}, column {}", error.line(), error.column());
            let cause = Cause::with("a parameter asks for a field, and the body is no JSON", place);
            SendError::permanent(Reason::Unreadable, cause)
        })
    }
}

impl Path {
    /// Reads `.a.b[0]."a name"`.
    ///
    /// # Errors
    /// If it is anything else, told under `key`.
    pub(crate) fn parse(key: &str, text: &str) -> Result<Self, ConfigError> {
        let fault = || {
            ConfigError::new(key, format!("`{}` is no way into a body", pabal_core::shorten(text, 70)))
                .help("write .a.b, .items[0] or .\"a name\"; what must be worked out is a matter for the SQL")
        };
        let mut steps = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let (step, behind) = step(rest).ok_or_else(fault)?;
            steps.push(step);
            rest = behind;
        }
        if steps.is_empty() { Err(fault()) } else { Ok(Self(steps)) }
    }

    fn of<'a>(&self, json: &'a RawValue) -> Result<Value<'a>, SendError> {
        let mut at = json;
        for step in &self.0 {
            let next = match step {
                Step::Key(key) => {
                    let fields: Option<BTreeMap<String, &'a RawValue>> = inside(at);
                    fields.and_then(|fields| fields.get(key).copied())
                }
                Step::Index(index) => {
                    let items: Option<Vec<&'a RawValue>> = inside(at);
                    match items {
                        Some(items) => items.get(*index).copied(),
                        // `:body.2026` may mean a field, too.
                        None => inside::<BTreeMap<String, &'a RawValue>>(at)
                            .and_then(|fields| fields.get(&index.to_string()).copied()),
                    }
                }
            };
            match next {
                Some(next) => at = next,
                None => return Ok(Value::Null),
            }
        }
        let text = at.get();
        Ok(match text.as_bytes().first() {
            Some(b'n') => Value::Null,
            Some(b't') => Value::Bool(true),
            Some(b'f') => Value::Bool(false),
            Some(b'"') => match serde_json::from_str::<String>(text) {
                Ok(plain) => Value::Text(plain.into()),
                // Half of a pair of surrogates.
                Err(_) => {
                    let cause = Cause::with("a text in the body is no Unicode", self.to_string());
                    return Err(SendError::permanent(Reason::Unreadable, cause));
                }
            },
            Some(b'{' | b'[') => Value::Json(text),
            _ => Value::Number(text),
        })
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|step| match step {
            Step::Key(key) => write!(f, ".{key}"),
            Step::Index(index) => write!(f, "[{index}]"),
        })
    }
}

/// What is inside, if it is of this kind.
fn inside<'a, T: serde::Deserialize<'a>>(json: &'a RawValue) -> Option<T> {
    serde_json::from_str(json.get()).ok()
}

/// The first step of a path, and what is behind it.
fn step(text: &str) -> Option<(Step, &str)> {
    if let Some(inner) = text.strip_prefix('[') {
        let (inner, behind) = inner.split_once(']')?;
        return match inner.parse() {
            Ok(index) => Some((Step::Index(index), behind)),
            Err(_) => Some((Step::Key(serde_json::from_str(inner).ok()?), behind)),
        };
    }
    let rest = text.strip_prefix('.')?;
    if rest.starts_with('[') {
        return step(rest);
    }
    if rest.starts_with('"') {
        let mut names = serde_json::Deserializer::from_str(rest).into_iter::<String>();
        let name = names.next()?.ok()?;
        return Some((Step::Key(name), &rest[names.byte_offset()..]));
    }
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    let (name, behind) = rest.split_at(end);
    let starts = name.chars().next().is_some_and(|c| !c.is_numeric());
    starts.then(|| (Step::Key(name.to_owned()), behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(body: &str, name: &str) -> String {
        let message = Message::new("p/s".parse().unwrap(), "t", body.to_owned());
        let values = Values::new(&message).unwrap();
        let parameter = Parameter::named("", name, &BTreeMap::new()).unwrap();
        match parameter.of(&values) {
            Ok(value) => format!("{value:?}"),
            Err(error) => format!("! {error}"),
        }
    }

    #[test]
    fn numbers_and_text_are_taken_as_they_stand() {
        let body = r#"{"id": 9007199254740993, "n": 12345678901234567890123, "d": 1.10, "e": 1E400,
            "s": "a\u0000b\"", "t": true, "z": null, "o": {"p": [1, {"q": "r"}]}, "금액": 3,
            "twice": 1, "twice": 2, "2026": "y", "half": "\ud800"}"#;
        for (name, expected) in [
            ("body.id", "Number(\"9007199254740993\")"),
            ("body.n", "Number(\"12345678901234567890123\")"),
            ("body.d", "Number(\"1.10\")"),
            ("body.e", "Number(\"1E400\")"),
            ("body.s", "Text(\"a\\0b\\\"\")"),
            ("body.t", "Bool(true)"),
            ("body.z", "Null"),
            ("body.none", "Null"),
            ("body.id.none", "Null"),
            ("body.o.p", "Json(\"[1, {\\\"q\\\": \\\"r\\\"}]\")"),
            ("body.o.p.1.q", "Text(\"r\")"),
            ("body.o.p.2", "Null"),
            ("body.금액", "Number(\"3\")"),
            ("body.twice", "Number(\"2\")"),
            ("body.2026", "Text(\"y\")"),
            ("source", "Text(\"p/s\")"),
            ("type", "Text(\"t\")"),
            ("key", "Null"),
        ] {
            assert_eq!(value(body, name), expected, "{name}");
        }
        assert!(value(body, "body.half").starts_with("! refused (unreadable)"));
        assert!(value("<xml/>", "body.id").starts_with("! refused (unreadable)"));
        assert_eq!(value("<xml/>", "body"), format!("Body({:?})", b"<xml/>"));
        assert_eq!(value(" [5] ", "body.0"), "Number(\"5\")");
    }

    #[test]
    fn a_way_into_the_body_is_that_and_nothing_more() {
        let body = r#"{"a b": {"c": [10, 20]}}"#;
        let message = Message::new("p/s".parse().unwrap(), "t", body);
        let values = Values::new(&message).unwrap();
        for text in [r#"."a b".c[1]"#, r#".["a b"].c.[1]"#, r#" ["a b"]["c"][1] "#] {
            let path = Path::parse("", text).unwrap();
            let value = Parameter::Path(path).of(&values).unwrap();
            assert_eq!(value, Value::Number("20"), "{text}");
        }
        for bad in ["", ".", "a", ".a + 1", ".a | .b", ".a[]", ".a[-1]", ".a..b", ".1a", ".\"a"] {
            assert!(Path::parse("", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_unknown_parameter_is_told_the_nearest() {
        let own = BTreeMap::from([("applicant".to_owned(), Path::parse("", ".a").unwrap())]);
        let help = |name: &str| Parameter::named("apply", name, &own).unwrap_err().help.unwrap();
        assert_eq!(help("verison"), "did you mean `:version`?");
        assert_eq!(help("aplicant"), "did you mean `:applicant`?");
        assert!(help("amount").starts_with("of the body it is :body.amount"));
        assert!(Parameter::named("apply", "applicant", &own).is_ok());
    }
}
