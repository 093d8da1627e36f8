//! CloudEvents 1.0 in structured mode: one JSON document holds envelope and body.
//!
//! It is written and read around the body's own bytes: `data` is embedded and taken out as raw JSON,
//! so no digit of a number changes. What is not JSON travels as `data_base64`.

use std::borrow::Cow;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use pabal_core::{Bytes, Message, shorten};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::cloudevents::{attributes, is_json, set};

/// The media type of a structured message.
pub(crate) const STRUCTURED: &str = "application/cloudevents+json";
/// The media type of a batch: handed out to partners that fetch, and not taken.
pub(crate) const BATCH: &str = "application/cloudevents-batch+json";

/// Whether a body can be embedded as it is: a whole JSON text.
pub(crate) fn is_embedded(message: &Message, body: &[u8]) -> bool {
    message.content_type.as_deref().is_none_or(is_json)
        && serde_json::from_slice::<&RawValue>(body).is_ok()
}

/// The structured document of a message with this body, and with these attributes whatever the message
/// says of them.
pub(crate) fn write(message: &Message, body: &Bytes, more: &[(&str, String)]) -> Bytes {
    let mut out = Vec::with_capacity(body.len() + body.len() / 3 + 1024);
    let member = |out: &mut Vec<u8>, name: &str| {
        out.push(if out.is_empty() { b'{' } else { b',' });
        out.extend_from_slice(quoted(name).as_bytes());
        out.push(b':');
    };
    let ours = |name: &str| more.iter().any(|(own, _)| *own == name);
    let own = more.iter().map(|(name, value)| (Cow::Borrowed(*name), value.clone()));
    for (name, value) in attributes(message).into_iter().filter(|(name, _)| !ours(name)).chain(own)
    {
        member(&mut out, &name);
        // An Integer of the specification has 32 bits; a larger number stays text.
        if matches!(&*name, "hops" | "keyversion" | "pullattempt") && value.parse::<i32>().is_ok() {
            out.extend_from_slice(value.as_bytes());
        } else {
            out.extend_from_slice(quoted(&value).as_bytes());
        }
    }
    if let Some(trace) = &message.trace {
        member(&mut out, "traceparent");
        out.extend_from_slice(quoted(trace).as_bytes());
    }
    if let Some(content_type) = &message.content_type {
        member(&mut out, "datacontenttype");
        out.extend_from_slice(quoted(content_type).as_bytes());
    }
    let json = message.content_type.as_deref().is_none_or(is_json);
    match serde_json::from_slice::<&RawValue>(body) {
        Ok(raw) if json => {
            member(&mut out, "data");
            out.extend_from_slice(raw.get().as_bytes());
        }
        _ if body.is_empty() => {}
        _ => {
            member(&mut out, "data_base64");
            out.push(b'"');
            out.extend_from_slice(BASE64_STANDARD.encode(body).as_bytes());
            out.push(b'"');
        }
    }
    out.push(b'}');
    out.into()
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A JSON object's members as they stand; a name given twice is an error.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::<(String, &RawValue)>::new();
                while let Some((name, value)) = map.next_entry::<String, _>()? {
                    if members.iter().any(|(known, _)| *known == name) {
                        let name = shorten(&name, 80);
                        return Err(A::Error::custom(format!("`{name}` is given twice")));
                    }
                    if members.len() == MEMBERS_MAX {
                        return Err(A::Error::custom("too many attributes"));
                    }
                    members.push((name, value));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// So many attributes a structured document may have.
const MEMBERS_MAX: usize = 200;

/// Fills `message` from a structured document and gives the body.
///
/// # Errors
/// What is wrong with it, for the caller.
pub(crate) fn read(message: &mut Message, document: &Bytes) -> Result<Bytes, String> {
    let Members(members) = serde_json::from_slice(document).map_err(|error| {
        // The library quotes what it did not expect, however long that is.
        let why = error.to_string();
        format!("the body is not a structured CloudEvent: {}", shorten(&why, 200))
    })?;
    let mut data = None;
    let mut base64 = None;
    message.content_type = None;
    if !members.iter().any(|(name, _)| name == "specversion") {
        return Err("the attribute specversion is missing".into());
    }
    for (name, raw) in members {
        match name.as_str() {
            "data" => data = Some(raw),
            "data_base64" => base64 = Some(raw),
            _ => {
                if let Some(value) = scalar(&name, raw)? {
                    set(message, &name, value)?;
                }
            }
        }
    }
    match (data, base64) {
        (Some(_), Some(_)) => Err("data and data_base64 exclude each other".into()),
        (None, None) => Ok(Bytes::new()),
        (None, Some(raw)) => {
            let text: Cow<'_, str> =
                serde_json::from_str(raw.get()).map_err(|_| "data_base64 is not a string")?;
            let bytes = BASE64_STANDARD.decode(&*text);
            Ok(bytes.map_err(|_| "data_base64 is not base64")?.into())
        }
        (Some(raw), None) => {
            let raw = raw.get();
            let json = message.content_type.as_deref().is_none_or(is_json);
            if json {
                message.content_type.get_or_insert_with(|| "application/json".to_owned());
            } else if let Ok(text) = serde_json::from_str::<String>(raw) {
                return Ok(text.into_bytes().into());
            } else if raw == "null" {
                return Ok(Bytes::new());
            }
            Ok(document.slice_ref(raw.as_bytes()))
        }
    }
}

/// An attribute's JSON value as text; `None` for null.
fn scalar(name: &str, raw: &RawValue) -> Result<Option<String>, String> {
    match raw.get().as_bytes().first() {
        Some(b'"') => serde_json::from_str(raw.get())
            .map(Some)
            .map_err(|_| format!("the attribute {} cannot be read", shorten(name, 80))),
        Some(b'{' | b'[') => {
            Err(format!("the attribute {} is neither text nor number", shorten(name, 80)))
        }
        _ if raw.get() == "null" => Ok(None),
        _ => Ok(Some(raw.get().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message::new("p/s".parse().unwrap(), "", "")
    }

    #[test]
    fn no_digit_of_a_structured_body_changes_either_way() {
        let body = Bytes::from(
            r#"{ "amt":0.10,"b":4.81,"c":1.0,"d":117.63331139400017,"e":1E400,"n":"\ud64d" }"#,
        );
        let mut sent = message();
        sent.message_type = "t".into();
        sent.content_type = Some("application/json".into());
        let document = write(&sent, &body, &[]);
        let mut event = message();
        assert_eq!(read(&mut event, &document).unwrap(), body);
        assert_eq!(event.message_type, "t");
    }

    #[test]
    fn what_is_not_json_travels_as_base64() {
        for (content_type, body) in [
            ("application/octet-stream", &b"\0\xff\x10"[..]),
            ("text/plain", b"hej"),
            ("application/json", b"{broken"),
            ("application/json; charset=euc-kr", b"{}"),
        ] {
            let mut sent = message();
            sent.content_type = Some(content_type.into());
            let document = write(&sent, &Bytes::from_static(body), &[]);
            assert!(std::str::from_utf8(&document).unwrap().contains("data_base64"));
            let mut event = message();
            assert_eq!(read(&mut event, &document).unwrap(), body);
            assert_eq!(event.content_type.as_deref(), Some(content_type));
        }
    }

    #[test]
    fn text_and_binary_events_of_other_implementations_are_read() {
        let document = Bytes::from(
            r#"{"type": "com.example.text", "source": "urn:hub", "id": "t1",
                "datacontenttype": "text/plain", "specversion": "1.0", "data": "h\u00ebj"}"#,
        );
        let mut event = message();
        assert_eq!(read(&mut event, &document).unwrap(), "hëj");
        let document = Bytes::from(
            r#"{"id":"b1","specversion":"1.0","datacontenttype":"application/octet-stream",
                "data_base64":"AP8Q","hops":3,"keyversion":"9007199254740993","flag":true}"#,
        );
        let mut event = message();
        assert_eq!(read(&mut event, &document).unwrap(), &b"\0\xff\x10"[..]);
        assert_eq!(event.arrival.hops, 3);
        assert_eq!(event.version, Some(9_007_199_254_740_993));
        assert_eq!(event.headers.get("ce-flag"), Some("true"));
    }

    #[test]
    fn malformed_documents_are_refused_with_a_reason() {
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"specversion":"0.3"}"#,
            r#"{"specversion":"1.0","id":"1","id":"2"}"#,
            r#"{"specversion":"1.0","data":1,"data_base64":"AA=="}"#,
            r#"{"specversion":"1.0","data_base64":"*"}"#,
            r#"{"specversion":"1.0","data_base64":1}"#,
            r#"{"specversion":"1.0","subject":{}}"#,
            r#"{"specversion":"1.0","hops":-1}"#,
            r#"{"specversion":"1.0","Bad-Name":"x"}"#,
            r#"{"specversion":"1.0","id":"a\u0000b"}"#,
            r#"{"specversion":"1.0","data":1"#,
        ] {
            let document = Bytes::from(bad);
            assert!(read(&mut message(), &document).is_err(), "{bad}");
        }
    }
}
