//! What a look at the other side finds.

use serde::{Deserialize, Serialize};

/// How much a [`Finding`] matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Nothing can be handed over like this.
    Fault,
    /// It works today, and something will go wrong.
    Warning,
    /// Worth knowing.
    Note,
}

/// One thing that [`crate::Sender::probe`] or [`crate::Receiver::probe`] found. Never holds a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What was found, and where.
    pub what: String,
    /// What to do.
    pub help: Option<String>,
}

impl Finding {
    /// Nothing can be handed over like this.
    pub fn fault(what: impl Into<String>) -> Self {
        Self { severity: Severity::Fault, what: what.into(), help: None }
    }

    /// It works today, and something will go wrong.
    pub fn warning(what: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, what: what.into(), help: None }
    }

    /// Worth knowing.
    pub fn note(what: impl Into<String>) -> Self {
        Self { severity: Severity::Note, what: what.into(), help: None }
    }

    /// Adds what to do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}
