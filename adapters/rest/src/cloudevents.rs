//! CloudEvents 1.0 over HTTP: the attributes, and how they stand in headers.

use std::borrow::Cow;

use pabal_core::{Message, shorten};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
