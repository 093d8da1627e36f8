//! A message as rules see it: its JSON, and its envelope as `$message`.

use pabal_core::{Body, Headers, Message};

use crate::{Json, json::JsonError};

/// What is parsed once per message for all rules.
#[derive(Debug)]
pub(crate) struct Parsed {
    /// The canonical JSON, or why the body is not what it claims to be.
    pub(crate) body: Result<Json, String>,
    /// The envelope.
    pub(crate) envelope: Json,
}

impl Parsed {
    pub(crate) fn of(message: &Message) -> Self {
        Self { body: body(message), envelope: envelope(message) }
    }
}

/// The body if it claims to be JSON, else `null`.
fn body(message: &Message) -> Result<Json, String> {
    if !message.content_type.as_deref().is_some_and(is_json) {
        return Ok(Json::NULL);
    }
    match &message.body {
        Body::Inline(bytes) => {
            Json::parse(bytes).map_err(|e: JsonError| format!("the body is not JSON: {e}"))
        }
        Body::Stored(_) => Err("the body is kept elsewhere and was not fetched".to_owned()),
    }
}

/// `application/json` or anything `+json`, whatever its parameters.
pub(crate) fn is_json(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or("").trim();
    let media_type = media_type.to_ascii_lowercase();
    media_type == "application/json" || media_type.ends_with("+json")
}

fn envelope(message: &Message) -> Json {
    let text = |text: &Option<String>| text.as_deref().map_or(Json::NULL, Json::text);
    Json::object([
        ("id", Json::text(&message.id.to_string())),
        ("source", Json::text(message.source.as_str())),
        (
            "origin",
            Json::object([
                ("source", Json::text(&message.origin.source)),
                ("id", text(&message.origin.id)),
            ]),
        ),
        ("type", Json::text(&message.message_type)),
        ("key", text(&message.key)),
        ("version", message.version.map_or(Json::NULL, Json::integer)),
        ("schema", text(&message.schema)),
        ("content_type", text(&message.content_type)),
        ("correlation", text(&message.correlation)),
        ("causation", text(&message.causation)),
        ("subject", text(&message.subject)),
        ("time", text(&message.time)),
        ("destination", text(&message.destination)),
        ("headers", headers(&message.headers)),
    ])
}

/// Names in lower case; of one that comes twice the first value, as [`Headers::get`] has it.
pub(crate) fn headers(headers: &Headers) -> Json {
    let mut fields: Vec<(String, Json)> = Vec::new();
    for (name, value) in headers.iter() {
        let name = name.to_ascii_lowercase();
        if !fields.iter().any(|(known, _)| *known == name) {
            fields.push((name, Json::text(value)));
        }
    }
    Json::object(fields.iter().map(|(name, value)| (name.as_str(), value.clone())))
}
