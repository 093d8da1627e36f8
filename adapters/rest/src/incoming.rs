//! From a request to a message.
//!
//! Structured CloudEvents are told by their content type, whatever `ce-` headers stand beside it.
//! Everything else is a body with an envelope in `ce-` headers, or a plain one with an id in
//! `Idempotency-Key` (or `webhook-id`, where signatures are verified).
//!
//! Of the other headers `traceparent` and `tracestate` are kept, and those the source names in
//! `keep_headers`; nothing else.

use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use pabal_core::{Body, Bytes, EndpointName, Message, Timestamp};

use crate::{auth::Check, cloudevents, problem::Problem, structured, webhook};

/// The header of a plain hand-over's id.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Headers that say who or what: given twice, two readers could see two different requests.
const ONCE: [&str; 7] = [
    "authorization",
    "content-type",
    IDEMPOTENCY_KEY,
    "traceparent",
    webhook::ID,
    webhook::TIMESTAMP,
    webhook::SIGNATURE,
];

/// What a request must be to become a message of this source.
#[derive(Debug)]
pub(crate) struct Form<'a> {
    /// The source.
    pub source: &'a EndpointName,
    /// How its callers are checked.
    pub check: &'a Check,
    /// The type of plain bodies.
    pub message_type: Option<&'a str>,
    /// Further headers to keep.
    pub keep_headers: &'a [HeaderName],
}

/// Refuses headers that are given twice where one reader could take the first and another the last.
pub(crate) fn unambiguous(headers: &HeaderMap, check: &Check) -> Result<(), Problem> {
    for name in headers.keys() {
        let once = ONCE.contains(&name.as_str())
            || name.as_str().starts_with("ce-")
            || check.header() == Some(name);
        if once && headers.get_all(name).iter().nth(1).is_some() {
            return Err(Problem::unreadable(format!("the header {name} is given more than once")));
        }
    }
    Ok(())
}

impl Form<'_> {
    /// The message in a request; for signed ones the signature over `body` is verified first.
    pub(crate) fn read(
        &self,
        headers: &HeaderMap,
        body: Bytes,
        now: Timestamp,
    ) -> Result<Message, Problem> {
        let signed = match self.check {
            Check::Webhook(keys) => {
                let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
                let [id, time, signature] = [webhook::ID, webhook::TIMESTAMP, webhook::SIGNATURE]
                    .map(|name| text(name).unwrap_or_default());
                let time = keys.verify(id, time, signature, &body, now.as_second());
                let time = time.map_err(|why| unauthorized(self.check, why.to_string()))?;
                Some((id.to_owned(), time))
            }
            _ => None,
        };
        if headers.get(header::CONTENT_ENCODING).is_some_and(|value| value != "identity") {
            return Err(unsupported("a body with a content encoding is not taken"));
        }
        let mut message = Message::new(self.source.clone(), "", Bytes::new());
        message.content_type = text(headers, &header::CONTENT_TYPE)?;
        message.trace =
            text(headers, &HeaderName::from_static("traceparent"))?.filter(|trace| is_trace(trace));
        let content_type = message.content_type.clone().unwrap_or_default();
        let essence = content_type.to_ascii_lowercase();
        let one_document = cloudevents::is_type(&content_type, structured::STRUCTURED);
        let body = if one_document {
            structured::read(&mut message, &body).map_err(Problem::unreadable)?
        } else if essence.trim_start().starts_with("application/cloudevents") {
            let batch = cloudevents::is_type(&content_type, structured::BATCH);
            return Err(unsupported(if batch {
                "batches are not taken: send one event a request"
            } else {
                "of the CloudEvents formats only application/cloudevents+json is taken"
            }));
        } else {
            self.read_headers(&mut message, headers)?;
            body
        };
        message.body = Body::Inline(body);
        if let Some((id, time)) = signed {
            // The signature covers id and body, not the headers: an id in a header must be the
            // signed one, or a captured request could be handed over again under another id.
            let given = message.origin.id.as_ref();
            if !one_document && headers.contains_key("ce-id") && given != Some(&id) {
                return Err(Problem::unreadable("ce-id is not the signed webhook-id"));
            }
            if !one_document || given.is_none() {
                message.origin.id = Some(id);
            }
            message.arrival.origin_time = Timestamp::from_second(time).ok();
        }
        self.keep(&mut message, headers)?;
        Ok(message)
    }

    /// The envelope in headers, or what stands in for it.
    fn read_headers(&self, message: &mut Message, headers: &HeaderMap) -> Result<(), Problem> {
        for (name, value) in headers {
            let Some(name) = name.as_str().strip_prefix("ce-") else {
                continue;
            };
            // The content type has a header of its own; names that no event can have are dropped.
            if name == "datacontenttype" || !cloudevents::is_attribute(name) {
                continue;
            }
            let value = cloudevents::decode(value.as_bytes()).ok_or_else(|| {
                Problem::unreadable(format!("the header ce-{name} is not percent-encoded UTF-8"))
            })?;
            cloudevents::set(message, name, value).map_err(Problem::unreadable)?;
        }
        if message.origin.id.is_none() {
            let key = text(headers, &HeaderName::from_static(IDEMPOTENCY_KEY))?;
            message.origin.id = key.map(unquoted).filter(|id| !id.is_empty());
        }
        if message.message_type.is_empty() && !headers.contains_key("ce-specversion") {
            message.message_type = self.message_type.unwrap_or_default().to_owned();
        }
        Ok(())
    }

    fn keep(&self, message: &mut Message, headers: &HeaderMap) -> Result<(), Problem> {
        let state = HeaderName::from_static("tracestate");
        for name in self.keep_headers.iter().chain([&state]) {
            for value in headers.get_all(name) {
                let value = std::str::from_utf8(value.as_bytes())
                    .map_err(|_| Problem::unreadable(format!("the header {name} is not UTF-8")))?;
                message.headers.push(name.as_str(), value);
            }
        }
        Ok(())
    }
}

/// 401 with how to do better.
pub(crate) fn unauthorized(check: &Check, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "The caller is not known")
        .detail(detail)
        .header(header::WWW_AUTHENTICATE, axum::http::HeaderValue::from_static(check.challenge()))
}

fn unsupported(detail: &str) -> Problem {
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported", "This form is not taken")
        .detail(detail)
}

fn text(headers: &HeaderMap, name: &HeaderName) -> Result<Option<String>, Problem> {
    headers
        .get(name)
        .map(|value| {
            std::str::from_utf8(value.as_bytes())
                .map(|value| value.trim().to_owned())
                .map_err(|_| Problem::unreadable(format!("the header {name} is not UTF-8")))
        })
        .transpose()
}

/// Some clients write the key as a quoted string, as later drafts of its specification have it.
fn unquoted(key: String) -> String {
    match key.strip_prefix('"').and_then(|inner| inner.strip_suffix('"')) {
        Some(inner) => inner.to_owned(),
        None => key,
    }
}

/// Whether a text has the shape of a W3C `traceparent`; another one is as good as none.
fn is_trace(text: &str) -> bool {
    let mut lengths = text
        .split('-')
        .map(|part| part.bytes().all(|b| b.is_ascii_hexdigit()).then_some(part.len()));
    [2, 32, 16, 2].into_iter().all(|length| lengths.next() == Some(Some(length)))
        && text.len() <= 128
}
