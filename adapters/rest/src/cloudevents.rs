//! CloudEvents 1.0 over HTTP: the envelope as headers (binary) or as one JSON document (structured).
//!
//! A structured document is written and read around the body's own bytes: `data` is embedded and
//! taken out as raw JSON, so no digit of a number changes. What is not JSON travels as
//! `data_base64`.

use std::borrow::Cow;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use pabal_core::{Bytes, Message, shorten};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// The media type of a structured message.
pub(crate) const STRUCTURED: &str = "application/cloudevents+json";
/// The media type of a batch, which is not taken.
pub(crate) const BATCH: &str = "application/cloudevents-batch+json";

/// The attributes this hub has a field for; every other one travels as a header `ce-<name>`.
const OWN: [&str; 15] = [
    "id",
    "source",
    "type",
    "specversion",
    "originid",
    "partitionkey",
    "keyversion",
    "dataschema",
    "time",
    "subject",
    "correlationid",
    "causationid",
    "hops",
    "destination",
    "traceparent",
];

/// What the specification has encoded in a header: space, `"`, `%` and all that is not printable
/// ASCII.
const HEADER: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// An attribute's value as a header value.
pub(crate) fn encode(value: &str) -> Cow<'_, str> {
    utf8_percent_encode(value, HEADER).into()
}

/// A header value as an attribute's value: quotes taken off, then one round of percent-decoding.
pub(crate) fn decode(value: &[u8]) -> Option<String> {
    let value = std::str::from_utf8(value).ok()?;
    let value = match value.strip_prefix('"').and_then(|inner| inner.strip_suffix('"')) {
        Some(inner) => {
            let mut plain = String::with_capacity(inner.len());
            let mut characters = inner.chars();
            while let Some(character) = characters.next() {
                plain.push(if character == '\\' { characters.next()? } else { character });
            }
            Cow::Owned(plain)
        }
        None => Cow::Borrowed(value),
    };
    let value = percent_decode_str(&value).decode_utf8().ok()?;
    (!value.contains('\0')).then(|| value.into_owned())
}

/// Whether `name` may be the name of an extension: lower-case letters and digits.
fn is_extension(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        && !OWN.contains(&name)
        && !matches!(name, "data" | "datacontenttype")
}

/// Whether a header `ce-<name>` can hold an attribute.
pub(crate) fn is_attribute(name: &str) -> bool {
    OWN.contains(&name) || is_extension(name)
}

/// The extension in a message header `ce-<name>`, if this hub may pass it on as one.
pub(crate) fn extension(header: &str) -> Option<String> {
    let name = header.get(3..).filter(|_| header[..3].eq_ignore_ascii_case("ce-"))?;
    let name = name.to_ascii_lowercase();
    is_extension(&name).then_some(name)
}

/// The attributes of an outgoing message in a fixed order, extensions last, values not encoded.
pub(crate) fn attributes(message: &Message) -> Vec<(Cow<'static, str>, String)> {
    let mut all: Vec<(Cow<'static, str>, String)> = vec![
        ("specversion".into(), "1.0".into()),
        ("id".into(), message.id.to_string()),
        ("source".into(), message.origin.source.clone()),
        ("type".into(), message.message_type.clone()),
    ];
    let optional: [(&'static str, Option<String>); 8] = [
        ("originid", message.origin.id.clone()),
        ("partitionkey", message.key.clone()),
        ("keyversion", message.version.map(|version| version.to_string())),
        ("dataschema", message.schema.clone()),
        ("time", message.time.clone()),
        ("subject", message.subject.clone()),
        ("correlationid", message.correlation.clone()),
        ("causationid", message.causation.clone()),
    ];
    for (name, value) in optional {
        // The specification knows no empty attribute.
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            all.push((name.into(), value));
        }
    }
    all.push(("hops".into(), message.arrival.hops.saturating_add(1).to_string()));
    for (header, value) in message.headers.iter() {
        if let Some(name) = extension(header).filter(|_| !value.is_empty())
            && !all.iter().any(|(known, _)| *known == name)
        {
            all.push((name.into(), value.to_owned()));
        }
    }
    all
}

/// Whether a media type is JSON in UTF-8.
pub(crate) fn is_json(content_type: &str) -> bool {
    let mut parts = content_type.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default().to_ascii_lowercase();
    let utf8 = parts.all(|parameter| match parameter.split_once('=') {
        Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
            matches!(value.trim().trim_matches('"').to_ascii_lowercase().as_str(), "utf-8" | "utf8")
        }
        _ => true,
    });
    utf8 && (essence == "application/json" || essence == "text/json" || essence.ends_with("+json"))
}

/// Whether a media type without its parameters is `essence`.
pub(crate) fn is_type(content_type: &str, essence: &str) -> bool {
    content_type.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(essence)
}

/// The structured document of a message with this body.
pub(crate) fn structured(message: &Message, body: &Bytes) -> Bytes {
    let mut out = Vec::with_capacity(body.len() + body.len() / 3 + 1024);
    let member = |out: &mut Vec<u8>, name: &str| {
        out.push(if out.is_empty() { b'{' } else { b',' });
        out.extend_from_slice(quoted(name).as_bytes());
        out.push(b':');
    };
    for (name, value) in attributes(message) {
        member(&mut out, &name);
        // An Integer of the specification has 32 bits; a larger number stays text.
        if matches!(&*name, "hops" | "keyversion") && value.parse::<i32>().is_ok() {
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

/// Puts an attribute that came in where it belongs.
///
/// # Errors
/// What is wrong with it, for the caller.
pub(crate) fn set(message: &mut Message, name: &str, value: String) -> Result<(), String> {
    if value.contains('\0') {
        return Err(format!("the attribute {name} holds a zero character"));
    }
    let value = Some(value).filter(|value| !value.is_empty());
    match name {
        "specversion" => {
            if value.as_deref() != Some("1.0") {
                return Err("only CloudEvents specversion 1.0 is taken".into());
            }
        }
        "id" => message.origin.id = value,
        "source" => {
            if let Some(source) = value {
                message.origin.source = source;
            }
        }
        "type" => message.message_type = value.unwrap_or_default(),
        "partitionkey" => message.key = value,
        "keyversion" => message.version = number(name, value)?,
        "dataschema" => message.schema = value,
        "time" => message.time = value,
        "subject" => message.subject = value,
        "correlationid" => message.correlation = value,
        "causationid" => message.causation = value,
        "destination" => message.destination = value,
        "hops" => message.arrival.hops = number(name, value)?.unwrap_or(0),
        "traceparent" => message.trace = message.trace.take().or(value),
        "datacontenttype" => message.content_type = value,
        // Another hub's `originid` is only for those who search; the way out writes its own.
        _ if name == "originid" || is_extension(name) => {
            if let Some(value) = value {
                message.headers.push(format!("ce-{name}"), value);
            }
        }
        _ => {
            let name = shorten(name, 80);
            return Err(format!("`{name}` is not the name of a CloudEvents attribute"));
        }
    }
    Ok(())
}

fn number<T: std::str::FromStr>(name: &str, value: Option<String>) -> Result<Option<T>, String> {
    value
        .map(|value| value.trim().parse().map_err(|_| format!("{name} is not a number in range")))
        .transpose()
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
pub(crate) fn read_structured(message: &mut Message, document: &Bytes) -> Result<Bytes, String> {
    let Members(members) = serde_json::from_slice(document)
        .map_err(|error| format!("the body is not a structured CloudEvent: {error}"))?;
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
    fn header_values_are_encoded_as_other_implementations_do() {
        let text = "Zoë \"q\" 100% 日本";
        let wire = "Zo%C3%AB%20%22q%22%20100%25%20%E6%97%A5%E6%9C%AC";
        assert_eq!(encode(text), wire);
        assert_eq!(decode(wire.as_bytes()).as_deref(), Some(text));
        assert_eq!(encode("a\r\nb\u{7f}"), "a%0D%0Ab%7F");
        assert_eq!(decode(br#""a \"b\"""#).as_deref(), Some("a \"b\""));
        assert_eq!(decode("홍".as_bytes()).as_deref(), Some("홍"));
        for bad in [&b"%ff"[..], b"\xff", b"a%00b"] {
            assert_eq!(decode(bad), None);
        }
    }

    #[test]
    fn no_digit_of_a_structured_body_changes_either_way() {
        let body = Bytes::from(
            r#"{ "amt":0.10,"b":4.81,"c":1.0,"d":117.63331139400017,"e":1E400,"n":"\ud64d" }"#,
        );
        let mut sent = message();
        sent.message_type = "t".into();
        sent.content_type = Some("application/json".into());
        let document = structured(&sent, &body);
        let mut read = message();
        assert_eq!(read_structured(&mut read, &document).unwrap(), body);
        assert_eq!(read.message_type, "t");
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
            let document = structured(&sent, &Bytes::from_static(body));
            assert!(std::str::from_utf8(&document).unwrap().contains("data_base64"));
            let mut read = message();
            assert_eq!(read_structured(&mut read, &document).unwrap(), body);
            assert_eq!(read.content_type.as_deref(), Some(content_type));
        }
    }

    #[test]
    fn text_and_binary_events_of_other_implementations_are_read() {
        let document = Bytes::from(
            r#"{"type": "com.example.text", "source": "urn:hub", "id": "t1",
                "datacontenttype": "text/plain", "specversion": "1.0", "data": "h\u00ebj"}"#,
        );
        let mut read = message();
        assert_eq!(read_structured(&mut read, &document).unwrap(), "hëj");
        let document = Bytes::from(
            r#"{"id":"b1","specversion":"1.0","datacontenttype":"application/octet-stream",
                "data_base64":"AP8Q","hops":3,"keyversion":"9007199254740993","flag":true}"#,
        );
        let mut read = message();
        assert_eq!(read_structured(&mut read, &document).unwrap(), &b"\0\xff\x10"[..]);
        assert_eq!(read.arrival.hops, 3);
        assert_eq!(read.version, Some(9_007_199_254_740_993));
        assert_eq!(read.headers.get("ce-flag"), Some("true"));
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
            assert!(read_structured(&mut message(), &document).is_err(), "{bad}");
        }
    }
}
