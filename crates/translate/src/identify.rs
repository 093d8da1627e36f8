//! `identify`: where the envelope's fields stand in the body, each a jq expression.

use pabal_core::{Body, Fingerprint, Message, Reader, Reason, SendError, View, shorten};

use crate::{
    Jq, JqError, JqErrorKind, Json,
    envelope::{Parsed, is_json},
};

/// The expressions as the operator wrote them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdentifyTexts {
    /// The origin's id of the message.
    pub id: Option<String>,
    /// The message type.
    pub message_type: Option<String>,
    /// The ordering key.
    pub key: Option<String>,
    /// The business version, an integer.
    pub version: Option<String>,
    /// What the message belongs to.
    pub correlation: Option<String>,
    /// What to do with a message that has no id.
    pub missing: MissingId,
}

/// What becomes of a message without an id, neither in the body nor from the transport.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MissingId {
    /// It is refused: without an id a repeat cannot be told from a new message.
    #[default]
    Refuse,
    /// Its content is its id: two messages with the same bytes are one.
    Content,
    /// It gets none, and every arrival counts as a new message.
    None,
}

/// Fills the envelope from the body.
#[derive(Debug)]
pub struct Identify {
    id: Option<Jq>,
    message_type: Option<Jq>,
    key: Option<Jq>,
    version: Option<Jq>,
    correlation: Option<Jq>,
    missing: MissingId,
}

impl Identify {
    /// Compiles the expressions. They see the body as JSON, and `$message` as the transport filled
    /// it.
    ///
    /// # Errors
    /// All that are wrong, each with its name in the configuration (`id`, `type`, `key`, `version`,
    /// `correlation`).
    pub fn compile(texts: &IdentifyTexts) -> Result<Self, Vec<(&'static str, JqError)>> {
        let mut faults = Vec::new();
        let mut compile = |field: &'static str, text: &Option<String>| {
            let compiled = text.as_deref().map(|text| Jq::compile(text, &["message"]))?;
            compiled.map_err(|error| faults.push((field, error))).ok()
        };
        let identify = Self {
            id: compile("id", &texts.id),
            message_type: compile("type", &texts.message_type),
            key: compile("key", &texts.key),
            version: compile("version", &texts.version),
            correlation: compile("correlation", &texts.correlation),
            missing: texts.missing,
        };
        if faults.is_empty() { Ok(identify) } else { Err(faults) }
    }

    fn fill(&self, message: &mut Message) -> Result<(), SendError> {
        let parsed = {
            let view = View::new(message);
            // Bytes that claim to be JSON must be; other bytes are null to the expressions.
            Parsed::of(view.message)
        };
        let body = parsed
            .body
            .map_err(|e| SendError::permanent(Reason::Unreadable, cause("the body", e)))?;
        let fields = Fields { body, envelope: parsed.envelope };
        if let Some(id) = fields.text("id", self.id.as_ref())? {
            message.origin.id = Some(id);
        }
        if let Some(message_type) = fields.text("type", self.message_type.as_ref())? {
            message.message_type = message_type;
        }
        if let Some(key) = fields.text("key", self.key.as_ref())? {
            message.key = Some(key);
        }
        if let Some(version) = fields.integer("version", self.version.as_ref())? {
            message.version = Some(version);
        }
        if let Some(correlation) = fields.text("correlation", self.correlation.as_ref())? {
            message.correlation = Some(correlation);
        }
        Ok(())
    }
}

impl Reader for Identify {
    fn read(&self, message: &mut Message) -> Result<(), SendError> {
        let expressions =
            [&self.id, &self.message_type, &self.key, &self.version, &self.correlation];
        // Without an expression nothing depends on the body, and it may be anything.
        if expressions.iter().any(|expression| expression.is_some()) {
            self.fill(message)?;
        }
        if message.origin.id.as_deref().is_none_or(str::is_empty) {
            message.origin.id = match (self.missing, &message.body) {
                (MissingId::None, _) => None,
                (MissingId::Content, Body::Inline(bytes)) => {
                    Some(format!("sha256:{}", Fingerprint::of(bytes)))
                }
                (MissingId::Content, Body::Stored(stored)) => {
                    Some(format!("sha256:{}", Fingerprint(stored.sha256)))
                }
                (MissingId::Refuse, _) => {
                    let none = "the message has none, neither in its body nor beside it";
                    return Err(match self.id.as_ref().and_then(|_| not_json(message)) {
                        Some(why) => invalid("id", format!("{none}: {why}")),
                        None => invalid("id", none),
                    });
                }
            };
        }
        Ok(())
    }
}

struct Fields {
    body: Json,
    envelope: Json,
}

impl Fields {
    /// The one value of an expression; `None` if there is no expression or it yields null.
    fn value(&self, field: &str, expression: Option<&Jq>) -> Result<Option<Json>, SendError> {
        let Some(expression) = expression else {
            return Ok(None);
        };
        let outputs = expression
            .run(&self.body, std::slice::from_ref(&self.envelope))
            .map_err(|error| failed(field, &error))?;
        let mut outputs = outputs.into_iter();
        match (outputs.next(), outputs.next()) {
            (None, _) => Ok(None),
            (Some(one), None) => Ok(Some(one).filter(|one| !one.is_null())),
            (Some(_), Some(_)) => {
                Err(invalid(field, format!("yielded {} values, not one", outputs.len() + 2)))
            }
        }
    }

    fn text(&self, field: &str, expression: Option<&Jq>) -> Result<Option<String>, SendError> {
        let Some(value) = self.value(field, expression)? else {
            return Ok(None);
        };
        match value.as_plain_text() {
            Some(text) => Ok(Some(text).filter(|text| !text.is_empty())),
            None => Err(invalid(field, format!("is {}, not a string or a number", value.kind()))),
        }
    }

    fn integer(&self, field: &str, expression: Option<&Jq>) -> Result<Option<i64>, SendError> {
        let Some(value) = self.value(field, expression)? else {
            return Ok(None);
        };
        let text = value.as_plain_text().unwrap_or_default();
        match text.parse() {
            Ok(version) if text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => {
                Ok(Some(version))
            }
            _ => Err(invalid(
                field,
                format!("is {}, not an integer of at most 64 bits", value.excerpt()),
            )),
        }
    }
}

/// Why the expressions saw no body, if they did not.
fn not_json(message: &Message) -> Option<String> {
    let why = match message.content_type.as_deref().map(str::trim) {
        Some(media_type) if is_json(media_type) => return None,
        None | Some("") => "no media type was given".to_owned(),
        Some(media_type) => format!("its media type is `{}`", shorten(media_type, 100)),
    };
    Some(format!(
        "the body was not read as JSON, because {why}; if it is JSON, send it with \
         `Content-Type: application/json`"
    ))
}

/// A slow or busy evaluator says nothing about the message; all else does.
fn failed(field: &str, error: &JqError) -> SendError {
    match error.kind {
        JqErrorKind::Busy => SendError::transient(cause(field, error.to_string())),
        _ => invalid(field, error.to_string()),
    }
}

fn invalid(field: &str, detail: impl AsRef<str>) -> SendError {
    SendError::permanent(Reason::Invalid, cause(field, detail))
}

fn cause(field: &str, detail: impl AsRef<str>) -> pabal_core::Cause {
    let summary = match field {
        "the body" => "cannot read the body".to_owned(),
        field => format!("identify.{field}"),
    };
    pabal_core::Cause::with(summary, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(pairs: &[(&str, &str)]) -> IdentifyTexts {
        let get = |name: &str| {
            let pair = pairs.iter().find(|(field, _)| *field == name);
            pair.map(|(_, text)| (*text).to_owned())
        };
        IdentifyTexts {
            id: get("id"),
            message_type: get("type"),
            key: get("key"),
            version: get("version"),
            correlation: get("correlation"),
            missing: MissingId::Refuse,
        }
    }

    fn message(body: &str) -> Message {
        let mut message = Message::new("a/b".parse().unwrap(), "plain", body.to_owned());
        message.content_type = Some("application/json".into());
        message
    }

    fn read(pairs: &[(&str, &str)], body: &str) -> Result<Message, SendError> {
        let mut message = message(body);
        Identify::compile(&texts(pairs)).unwrap().read(&mut message)?;
        Ok(message)
    }

    #[test]
    fn fields_are_filled_digit_for_digit() {
        let all = [
            ("id", ".msgId"),
            ("type", r#""decision.made""#),
            ("key", ".no"),
            ("version", ".seq"),
            ("correlation", ".head.ref"),
        ];
        let body =
            r#"{"msgId":12345678901234567890123,"no":0.10,"seq":"007","head":{"ref":"R-1"}}"#;
        let message = read(&all, body).unwrap();
        assert_eq!(message.origin.id.as_deref(), Some("12345678901234567890123"));
        assert_eq!(message.message_type, "decision.made");
        assert_eq!(message.key.as_deref(), Some("0.10"));
        assert_eq!(message.version, Some(7));
        assert_eq!(message.correlation.as_deref(), Some("R-1"));
    }

    #[test]
    fn a_missing_id_falls_back_to_what_the_transport_gave() {
        for body in [r#"{"msgId":null}"#, "{}", r#"{"msgId":""}"#] {
            let mut message = message(body);
            message.origin.id = Some("K-1".into());
            let identify = Identify::compile(&texts(&[("id", ".msgId")])).unwrap();
            identify.read(&mut message).unwrap();
            assert_eq!(message.origin.id.as_deref(), Some("K-1"), "{body}");
        }
    }

    #[test]
    fn a_message_without_any_id_is_refused_or_known_by_its_content() {
        let error = read(&[("id", ".msgId")], "{}").unwrap_err().to_string();
        let none = "the message has none, neither in its body nor beside it";
        assert_eq!(error, format!("refused (invalid): identify.id: {none}"));
        let mut texts = IdentifyTexts::default();
        assert!(Identify::compile(&texts).unwrap().read(&mut message("{}")).is_err());
        for (missing, id) in [
            (MissingId::None, None),
            (MissingId::Content, Some(format!("sha256:{}", Fingerprint::of(b"not json")))),
        ] {
            texts.missing = missing;
            let mut message = message("not json");
            Identify::compile(&texts).unwrap().read(&mut message).unwrap();
            assert_eq!(message.origin.id, id);
        }
    }

    #[test]
    fn a_body_that_was_not_read_as_json_is_told_with_what_to_send() {
        let identify = Identify::compile(&texts(&[("id", ".msgId")])).unwrap();
        let error = |media_type: Option<&str>| {
            let mut message = message(r#"{"msgId":1}"#);
            message.content_type = media_type.map(str::to_owned);
            identify.read(&mut message).unwrap_err().to_string()
        };
        let form = error(Some("application/x-www-form-urlencoded"));
        assert!(form.contains("its media type is `application/x-www-form-urlencoded`"), "{form}");
        assert!(form.ends_with("send it with `Content-Type: application/json`"), "{form}");
        assert!(error(None).contains("because no media type was given"), "{}", error(None));
    }

    #[test]
    fn what_cannot_be_read_names_its_field() {
        for (pairs, body, error) in [
            (
                [("version", ".v"), ("id", r#""1""#)],
                r#"{"v":1.5}"#,
                "refused (invalid): identify.version: is 1.5, not an integer of at most 64 bits",
            ),
            (
                [("version", ".v"), ("id", r#""1""#)],
                r#"{"v":9223372036854775808}"#,
                "refused (invalid): identify.version: is 9223372036854775808, not an integer of at most 64 bits",
            ),
            (
                [("key", ".v"), ("id", r#""1""#)],
                r#"{"v":[1]}"#,
                "refused (invalid): identify.key: is an array, not a string or a number",
            ),
            (
                [("key", ".v[]"), ("id", r#""1""#)],
                r#"{"v":[1,2,3]}"#,
                "refused (invalid): identify.key: yielded 3 values, not one",
            ),
            (
                [("key", ".v.w"), ("id", r#""1""#)],
                r#"{"v":"x"}"#,
                "refused (invalid): identify.key: cannot index \"x\" with \"w\"",
            ),
            (
                [("key", ".v"), ("id", ".id")],
                "{,}",
                "refused (unreadable): cannot read the body: the body is not JSON: key must be a string at line 1 column 2",
            ),
        ] {
            assert_eq!(read(&pairs, body).unwrap_err().to_string(), error);
        }
    }

    #[test]
    fn all_expressions_that_are_wrong_are_reported_with_their_names() {
        let faults = Identify::compile(&texts(&[("id", ".["), ("key", "now"), ("type", ".t")]));
        let fields: Vec<_> = faults.unwrap_err().into_iter().map(|(field, _)| field).collect();
        assert_eq!(fields, ["id", "key"]);
    }
}
