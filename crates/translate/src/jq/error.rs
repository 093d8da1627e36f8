//! What is wrong with a jq expression, in words for the person who wrote it.

use std::fmt;

/// Why an expression cannot be compiled or did not yield its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JqError {
    /// The kind of error.
    pub kind: JqErrorKind,
    /// What is wrong.
    pub message: String,
    /// Line and column in the expression's text, both from 1, if the place is known.
    pub position: Option<(usize, usize)>,
}

/// The kinds of error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JqErrorKind {
    /// The text is not jq.
    Syntax,
    /// A name that is not known here.
    Unknown,
    /// A definition calls itself.
    Recursive,
    /// The text is too long or nests too deep.
    TooComplex,
    /// It failed on this input.
    Failed,
    /// It took too long, or yielded too much.
    Budget,
    /// No thread was free to run it.
    Busy,
}

impl JqError {
    pub(crate) fn new(kind: JqErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), position: None }
    }

    pub(super) fn panic() -> Self {
        Self::new(JqErrorKind::Failed, "it made the evaluator panic")
    }

    /// At the place where `part`, a piece of `text`, starts.
    pub(crate) fn at(mut self, text: &str, part: &str) -> Self {
        let start = (part.as_ptr() as usize).wrapping_sub(text.as_ptr() as usize);
        if let Some(before) = text.get(..start) {
            let line_start = before.rfind('\n').map_or(0, |end| end + 1);
            self.position =
                Some((before.matches('\n').count() + 1, before[line_start..].chars().count() + 1));
        }
        self
    }
}

impl fmt::Display for JqError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.position {
            Some((1, column)) => write!(f, " (at character {column})"),
            Some((line, column)) => write!(f, " (line {line}, character {column})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for JqError {}
