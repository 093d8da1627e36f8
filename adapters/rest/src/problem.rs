//! Refusals as RFC 9457 problem documents.

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, Response, StatusCode, header},
};
use serde::Serialize;

/// A refusal for a caller. It says what the caller can do, and nothing of the hub's inside.
#[derive(Debug, Clone)]
pub(crate) struct Problem(Box<Parts>);

#[derive(Debug, Clone)]
struct Parts {
    status: StatusCode,
    kind: String,
    title: &'static str,
    detail: Option<String>,
    header: Option<(HeaderName, HeaderValue)>,
}

#[derive(Serialize)]
struct Document<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
}

impl Problem {
    /// A refusal of type `urn:pabal:problem:<kind>`.
    pub(crate) fn new(status: StatusCode, kind: impl Into<String>, title: &'static str) -> Self {
        Self(Box::new(Parts { status, kind: kind.into(), title, detail: None, header: None }))
    }

    /// Adds what is wrong in this case.
    pub(crate) fn detail(mut self, detail: impl Into<String>) -> Self {
        self.0.detail = Some(detail.into());
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.0.status
    }

    /// What is wrong in this case, or else in general.
    pub(crate) fn why(&self) -> &str {
        self.0.detail.as_deref().unwrap_or(self.0.title)
    }

    /// Adds a header of the answer.
    pub(crate) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.header = Some((name, value));
        self
    }

    /// 400 with what cannot be read.
    pub(crate) fn unreadable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "unreadable", "The request cannot be read")
            .detail(detail)
    }

    /// 503 and when to come back, in seconds.
    pub(crate) fn later(kind: &'static str, seconds: u64) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, kind, "Come back later with the same id")
            .header(header::RETRY_AFTER, seconds.max(1).into())
    }

    /// 503 and when to come back, in seconds, for who hands nothing over.
    pub(crate) fn wait(kind: &'static str, seconds: u64) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, kind, "Come back later")
            .header(header::RETRY_AFTER, seconds.max(1).into())
    }

    /// The answer to a path that leads nowhere, whatever part of it is unknown.
    pub(crate) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", "There is nothing here")
    }

    /// The answer.
    pub(crate) fn response(self) -> Response<Body> {
        let parts = *self.0;
        let document = Document {
            r#type: format!("urn:pabal:problem:{}", parts.kind),
            title: parts.title,
            status: parts.status.as_u16(),
            detail: parts.detail.as_deref(),
        };
        let body = serde_json::to_vec(&document).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = parts.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some((name, value)) = parts.header {
            headers.insert(name, value);
        }
        response
    }
}
