//! What can be wrong with a stream, as what is to be done about it.

use super::super::trouble::Trouble;

/// Why there is no stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    /// The connection is gone, or could not be made: come back by and by.
    #[error("{0}")]
    Lost(String),
    /// Somebody else holds the slot: a node that is being replaced does so for a short time.
    #[error("{0}")]
    Busy(String),
    /// It is not to be had until somebody changes something; the text says what.
    #[error("{0}")]
    Unavailable(String),
    /// It was told to stop.
    #[error("told to stop")]
    Stopped,
}

impl Fault {
    /// What the server said, by its code (SQLSTATE).
    pub(super) fn said(code: &str, message: String) -> Self {
        match code {
            // object_in_use
            "55006" => Self::Busy(message),
            // cannot_connect_now, and the shutdowns and crashes of class 57.
            "57P01" | "57P02" | "57P03" | "57014" => Self::Lost(message),
            // A publication that was made after the slot is not seen either.
            "42704" => Self::Unavailable(format!(
                "{message}: if it is there, it is newer than the slot, which then has to be dropped \
                 and made anew"
            )),
            // object_not_in_prerequisite_state, configuration_limit_exceeded, too
            // many connections, and rights.
            "55000" | "53400" | "53300" | "42501" => Self::Unavailable(message),
            _ if code.starts_with("28") || code.starts_with("3D") => Self::Unavailable(message),
            _ => Self::Lost(format!("{message} ({code})")),
        }
    }
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(said) => {
                Self::said(&said.code().unwrap_or_default(), said.message().to_owned())
            }
            // It could quote the URL.
            sqlx::Error::Configuration(_) => Self::Unavailable("the URL is not usable".into()),
            error => Self::Lost(error.to_string()),
        }
    }
}

impl From<Trouble> for Fault {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Passing(why) => Self::Lost(why),
            Trouble::Lasting(why) => Self::Unavailable(why),
        }
    }
}
