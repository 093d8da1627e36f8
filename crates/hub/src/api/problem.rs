//! Errors of the operators' interface, as problem documents (RFC 9457).

use axum::{
    Json,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use pabal_core::{SendError, StoreError};
use serde::{Deserialize, Serialize};

/// What a caller is told. What only the log may know is logged where it happens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Problem {
    /// The kind of problem; nothing here needs a page of its own.
    #[serde(rename = "type")]
    kind: String,
    /// The HTTP status again.
    pub(crate) status: u16,
    /// The kind of problem in words.
    pub(crate) title: String,
    /// What happened this time, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
    #[serde(skip)]
    retry_after_s: Option<u64>,
}

/// What every handler answers.
pub(crate) type Answer<T> = Result<Json<T>, Problem>;

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            kind: "about:blank".to_owned(),
            status: status.as_u16(),
            title: status.canonical_reason().unwrap_or("Problem").to_owned(),
            detail: Some(detail.into()),
            retry_after_s: None,
        }
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// The request says something that cannot be done.
    pub(crate) fn unusable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    fn later(detail: impl Into<String>, seconds: u64) -> Self {
        Self { retry_after_s: Some(seconds), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, detail) }
    }

    /// The hub does not run yet, or no longer.
    pub(crate) fn not_running() -> Self {
        Self::later("the hub is starting or stopping; try again in a moment", 1)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        tracing::warn!(%error, "an operator's request failed");
        match error {
            StoreError::Unavailable(_) | StoreError::Unknown(_) => {
                Self::later(error.to_string(), 1)
            }
            StoreError::Rejected(_) => Self::unusable(error.to_string()),
            StoreError::Fenced => Self::new(StatusCode::CONFLICT, error.to_string()),
        }
    }
}

impl From<SendError> for Problem {
    fn from(error: SendError) -> Self {
        match &error {
            SendError::Permanent { reason, cause } => {
                let status = StatusCode::from_u16(reason.http_status())
                    .unwrap_or(StatusCode::UNPROCESSABLE_ENTITY);
                Self { title: reason.to_string(), ..Self::new(status, cause.to_string()) }
            }
            SendError::Unreachable { retry_after, .. }
            | SendError::Transient { retry_after, .. } => Self::later(
                error.to_string(),
                retry_after.map_or(1, |after| after.as_secs().max(1)),
            ),
            SendError::NotSent => Self::later(error.to_string(), 1),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retry_after = self.retry_after_s;
        let mut response = (status, Json(self)).into_response();
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            header::HeaderValue::from_static("application/problem+json"),
        );
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}
