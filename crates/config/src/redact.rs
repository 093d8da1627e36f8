//! What must not be printed although it stands in a file: values under keys that look secret, and
//! credentials inside URLs.

use std::borrow::Cow;

use serde_json::Value;

/// Parts of a key that make its value secret.
const WORDS: [&str; 16] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "auth",
    "bearer",
    "basic",
    "credential",
    "apikey",
    "api_key",
    "private",
    "signature",
    "cookie",
    "pasword",
    "webhook",
];

/// Keys under which a string can only be a secret written where it must not be.
const SECRETS: [&str; 9] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "bearer",
    "api_key",
    "apikey",
    "private_key",
];

/// Whether the value under this key, or under any table around it, may be a secret.
pub(crate) fn is_secret(path: &[String]) -> bool {
    path.iter().any(|part| looks_secret(part))
}

pub(crate) fn looks_secret(key: &str) -> bool {
    let plain = key.to_ascii_lowercase().replace('-', "_");
    WORDS.iter().any(|word| plain.contains(word))
}

/// Whether a string under this key is a secret for certain.
pub(crate) fn must_be_reference(key: &str) -> bool {
    SECRETS.contains(&key.to_ascii_lowercase().replace('-', "_").as_str())
}

/// The text without what stands between `://` and `@`.
pub(crate) fn without_credentials(text: &str) -> Cow<'_, str> {
    if !text.contains("://") {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("://") {
        let (before, after) = rest.split_at(start + 3);
        out.push_str(before);
        let end = after.find(['/', '"', '\'', ' ', '?', '#']).unwrap_or(after.len());
        rest = match after[..end].rfind('@') {
            Some(at) => {
                out.push('…');
                &after[at..]
            }
            None => after,
        };
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// The text with `…` for every value in the query of a URL; a placeholder of ours stays.
fn without_query(text: &str) -> String {
    let query = text.find("://").and_then(|scheme| text[scheme..].find('?').map(|at| scheme + at));
    let Some(query) = query else {
        return text.to_owned();
    };
    let (before, query) = text.split_at(query + 1);
    let end = query.find('#').unwrap_or(query.len());
    let (query, fragment) = query.split_at(end);
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((name, value)) if !is_placeholder(value) => format!("{name}=…"),
        Some(_) => pair.to_owned(),
        // Without a name it may be a key all by itself.
        None if pair.is_empty() || is_placeholder(pair) => pair.to_owned(),
        None => "…".to_owned(),
    });
    format!("{before}{}{fragment}", pairs.collect::<Vec<_>>().join("&"))
}

fn is_placeholder(text: &str) -> bool {
    let name = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    name.is_some_and(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
}

/// The value with everything secret taken out, for printing.
pub(crate) fn printable(value: &Value, secret: bool) -> Value {
    match value {
        Value::Object(fields) if is_reference(fields) => value.clone(),
        Value::Object(fields) => {
            let fields = fields.iter();
            let shown = fields.map(|(key, inner)| {
                // A private key: in these tables it is a reference, or stands where it must not. And
                // many services take their key in the query.
                let secret = secret || looks_secret(key) || matches!(key.as_str(), "key" | "query");
                (key.clone(), printable(inner, secret))
            });
            Value::Object(shown.collect())
        }
        Value::Array(items) => items.iter().map(|item| printable(item, secret)).collect(),
        // `auth = "none"` must be visible.
        Value::String(text) if text == "none" || is_placeholder(text) => value.clone(),
        Value::String(_) | Value::Number(_) if secret => Value::String("[secret]".to_owned()),
        Value::String(text) => Value::String(without_query(&without_credentials(text))),
        _ => value.clone(),
    }
}

/// `{ env = "NAME" }` or `{ file = "path" }`: says where a secret is, not what.
pub(crate) fn is_reference(fields: &serde_json::Map<String, Value>) -> bool {
    fields.len() == 1
        && fields
            .iter()
            .all(|(key, value)| matches!(key.as_str(), "env" | "file") && value.is_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_was_written_out_is_not_printed_wherever_one_may_be_named() {
        let settings = serde_json::json!({
            "sign": { "standard_webhooks": ["s3cret", { "env": "NAME" }] },
            "tls": { "ca": "ca.pem", "key": "s3cret" },
            "auth": { "header": { "name": "x", "value": "s3cret" } },
            "query": { "serviceKey": "s3cret", "id": "{id}" },
        });
        let printed = printable(&settings, false);
        assert!(!printed.to_string().contains("s3cret"), "{printed}");
        assert_eq!(printed["sign"]["standard_webhooks"][1]["env"], "NAME");
        assert_eq!(printed["tls"]["ca"], "ca.pem");
        assert_eq!(printed["query"]["id"], "{id}");
    }

    #[test]
    fn values_in_the_query_of_a_url_are_not_printed() {
        for (text, shown) in [
            ("http://h/x?apikey=s3&id={id}&v=", "http://h/x?apikey=…&id={id}&v=…"),
            ("http://h/?s3#top", "http://h/?…#top"),
            ("a?b=c", "a?b=c"),
        ] {
            let printed = printable(&Value::String(text.to_owned()), false);
            assert_eq!(printed, Value::String(shown.to_owned()));
        }
    }

    #[test]
    fn credentials_in_a_url_are_not_printed() {
        for (text, shown) in [
            ("http://u:p@h/x", "http://…@h/x"),
            ("url = \"https://u:p@ss@h\"", "url = \"https://…@h\""),
            ("http://h/a@b", "http://h/a@b"),
            ("a://b c://u@d", "a://b c://…@d"),
            ("no url", "no url"),
        ] {
            assert_eq!(without_credentials(text), shown);
        }
    }
}
