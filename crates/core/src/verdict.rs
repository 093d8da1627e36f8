//! What became of a message that was handed over, and why.

use std::{borrow::Cow, fmt, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Headers, shorten};

/// One per message, always. Silence never means success.
pub type Verdict = Result<Receipt, SendError>;

/// The other side holds the message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The id the other side gave it; from the hub's inbox the message id.
    pub remote_id: Option<String>,
    /// The other side already had it.
    pub duplicate: bool,
    /// The other side holds a newer version of its key and dropped this one.
    pub stale: bool,
    /// What it answered.
    pub answer: Option<Answer>,
}

/// What a partner answered, cut to a cap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// The transport's status, e.g. the HTTP status code.
    pub status: Option<u16>,
    /// The answer's headers.
    pub headers: Headers,
    /// The start of the answer's body.
    pub body: Bytes,
}

/// Why a message was not taken, as the fate it calls for. Chosen at the edge, where the transport's
/// error is known: there is no `From` and no default.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No byte of the message was written, or the answer was about the place and not about this
    /// message. Spends no attempt; the destination pauses and is probed.
    #[error("unreachable: {cause}")]
    Unreachable {
        /// What happened.
        cause: Cause,
        /// The other side asked not to be called earlier than this from now.
        retry_after: Option<Duration>,
    },
    /// This message failed this time. Spends an attempt.
    #[error("failed this time: {cause}")]
    Transient {
        /// What happened.
        cause: Cause,
        /// The other side asked not to be called earlier than this from now.
        retry_after: Option<Duration>,
    },
    /// It will never be taken as it stands: a dead letter at once.
    #[error("refused ({reason}): {cause}")]
    Permanent {
        /// The kind of refusal.
        reason: Reason,
        /// What happened.
        cause: Cause,
    },
    /// It was not tried, because one ahead of it in the batch failed.
    #[error("not sent")]
    NotSent,
}

impl SendError {
    /// [`SendError::Unreachable`] without a wish for when to come back.
    pub fn unreachable(cause: impl Into<Cause>) -> Self {
        Self::Unreachable { cause: cause.into(), retry_after: None }
    }

    /// [`SendError::Transient`] without a wish for when to come back.
    pub fn transient(cause: impl Into<Cause>) -> Self {
        Self::Transient { cause: cause.into(), retry_after: None }
    }

    /// [`SendError::Permanent`].
    pub fn permanent(reason: Reason, cause: impl Into<Cause>) -> Self {
        Self::Permanent { reason, cause: cause.into() }
    }

    /// What happened, if something did.
    #[must_use]
    pub fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Unreachable { cause, .. }
            | Self::Transient { cause, .. }
            | Self::Permanent { cause, .. } => Some(cause),
            Self::NotSent => None,
        }
    }
}

/// What happened, in two parts: a summary that is the same for the same kind of failure, so that
/// failures can be counted and grouped, and the detail of this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Short, without anything of the message, e.g. `HTTP 404`.
    pub summary: Cow<'static, str>,
    /// The rest, e.g. the start of the answer; at most 2 KiB.
    pub detail: Option<String>,
    /// The transport's status, where an answer was the cause.
    pub status: Option<u16>,
}

impl Cause {
    /// A summary with the detail of this one failure, which is cut to 2 KiB.
    pub fn with(summary: impl Into<Cow<'static, str>>, detail: impl AsRef<str>) -> Self {
        let detail = shorten(detail.as_ref(), crate::ANSWER_BYTES_KEPT).into_owned();
        let detail = (!detail.is_empty()).then_some(detail);
        Self { summary: summary.into(), detail, status: None }
    }

    /// The same, for an answer with this status.
    #[must_use]
    pub fn status(self, status: u16) -> Self {
        Self { status: Some(status), ..self }
    }
}

impl<S: Into<Cow<'static, str>>> From<S> for Cause {
    fn from(summary: S) -> Self {
        Self { summary: summary.into(), detail: None, status: None }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.detail {
            Some(detail) => write!(f, "{}: {detail}", self.summary),
            None => f.write_str(&self.summary),
        }
    }
}

/// The kinds of refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The id is known with other content.
    Conflict,
    /// The bytes cannot be read as what they claim to be.
    Unreadable,
    /// Readable, but not valid.
    Invalid,
    /// A schema version nobody here knows.
    UnknownVersion,
    /// Over a limit of size.
    TooLarge,
    /// The other side, or a rule of this one, does not want it.
    Refused,
    /// Too late to matter.
    Expired,
    /// The body it refers to is gone.
    BodyGone,
    /// It made the code that handles it panic.
    Panic,
}

impl Reason {
    /// The HTTP status an origin sees.
    #[must_use]
    pub fn http_status(self) -> u16 {
        match self {
            Self::Conflict => 409,
            Self::Unreadable | Self::Refused => 400,
            Self::Invalid | Self::UnknownVersion => 422,
            Self::TooLarge => 413,
            Self::Expired | Self::BodyGone => 410,
            Self::Panic => 500,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Conflict => "conflict",
            Self::Unreadable => "unreadable",
            Self::Invalid => "invalid",
            Self::UnknownVersion => "unknown-version",
            Self::TooLarge => "too-large",
            Self::Refused => "refused",
            Self::Expired => "expired",
            Self::BodyGone => "body-gone",
            Self::Panic => "panic",
        })
    }
}
