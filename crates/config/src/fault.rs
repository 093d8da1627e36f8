//! What is wrong with a configuration, as text that is the same everywhere: no colours, no width.

use std::{fmt, path::PathBuf};

use pabal_core::ConfigError;

use crate::{
    place::{Found, Part, Position, line_column},
    redact,
};

/// One fault: where, what, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The file, if one can be named.
    pub file: Option<PathBuf>,
    /// Line and column, both from 1.
    pub line_column: Option<(usize, usize)>,
    /// The full key, dotted; empty if it is about the whole file.
    pub key: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
    /// The line as it may be printed, where the marks start, and how many there are.
    excerpt: Option<(String, usize, usize)>,
    /// The environment variable it comes from.
    variable: Option<String>,
}

/// All faults of all files, in the order of the files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

/// Shown instead of what is wrong with the value of a secret.
const NOT_HERE: &str = "a secret is not written in the configuration itself";
const NOT_HERE_HELP: &str = "write { env = \"NAME\" } or { file = \"path\" }";

impl Fault {
    /// About a whole file, or something that has no file.
    pub(crate) fn of_file(file: impl Into<PathBuf>, message: impl Into<String>) -> Self {
        Self {
            file: Some(file.into()),
            line_column: None,
            key: String::new(),
            message: message.into(),
            help: None,
            excerpt: None,
            variable: None,
        }
    }

    /// About the key at `position` itself: its value is not shown, since nobody knows what it is.
    pub(crate) fn at_key(position: &Position, message: impl Into<String>) -> Self {
        Self::at(position, Part::Key, message.into(), None)
    }

    /// About the value at `position`.
    pub(crate) fn at_value(position: &Position, message: impl Into<String>) -> Self {
        Self::at(position, Part::Value, message.into(), None)
    }

    /// A secret that stands in the file.
    pub(crate) fn literal_secret(position: &Position) -> Self {
        Self::at_key(position, NOT_HERE).help(NOT_HERE_HELP)
    }

    /// `error`, whose key is relative to the table at `position`.
    pub(crate) fn of(position: &Position, error: &ConfigError) -> Self {
        let full = position.below(&error.key);
        let (message, help) = (&plain_words(&error.message), error.help.clone());
        if message.starts_with("unknown key") || message.ends_with("is missing") {
            return Self::at_key(&full, message.as_str()).maybe_help(help);
        }
        if wants_reference(error) {
            return Self::literal_secret(&full);
        }
        if !redact::is_secret(&full.path) || says_where_not_what(message) {
            return Self::at_value(&full, message.as_str()).maybe_help(help);
        }
        // The message may quote the value; what was expected instead does not.
        let message = match message.rsplit_once(", expected ") {
            Some((_, expected)) => format!("this value cannot be used, expected {expected}"),
            None => "this value cannot be used".to_owned(),
        };
        Self::at_key(&full, message).maybe_help(help)
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    pub(crate) fn maybe_help(mut self, help: Option<String>) -> Self {
        self.help = help;
        self
    }

    fn at(position: &Position, part: Part, message: String, help: Option<String>) -> Self {
        let message = redact::without_credentials(&message).into_owned();
        let mut fault = Self {
            file: None,
            line_column: None,
            key: position.key(),
            message,
            help,
            excerpt: None,
            variable: None,
        };
        match position.find(part) {
            Found::File { file, span } => {
                fault.file = Some(file.path.clone());
                if let Some(span) = span {
                    fault.line_column = Some(line_column(file.text(), span.start));
                    let show_value = part == Part::Value && !redact::is_secret(&position.path);
                    fault.excerpt = excerpt(file.text(), span.start, span.end, show_value);
                }
            }
            Found::Variable(name) => fault.variable = Some(name.to_owned()),
            Found::Nowhere => {}
        }
        fault
    }

    /// A file that is not TOML.
    pub(crate) fn syntax(
        file: impl Into<PathBuf>,
        text: &str,
        message: &str,
        span: Option<std::ops::Range<usize>>,
    ) -> Self {
        let mut fault = Self::of_file(file, format!("not TOML: {}", message.trim()));
        if let Some(span) = span {
            fault.line_column = Some(line_column(text, span.start));
            fault.excerpt = excerpt(text, span.start, span.end, true);
        }
        fault
    }
}

/// What a value should have been, in an operator's words instead of a programmer's.
fn plain_words(message: &str) -> String {
    let Some((found, expected)) = message.rsplit_once(", expected ") else {
        return match message {
            "invalid socket address syntax" => {
                "not an address and port, such as \"127.0.0.1:8080\"".to_owned()
            }
            _ => message.to_owned(),
        };
    };
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" | "i64" => "a whole number",
        "a duration" => "a time such as \"90s\" or \"15m\"",
        "a sequence" => "a list",
        "a map" => "a table",
        "string or map" => "a string or a table",
        other if other.starts_with("struct ") => "a table",
        other => other,
    };
    let found = found.replacen("invalid type: map", "invalid type: table", 1);
    let found = found.replacen("invalid type: sequence", "invalid type: list", 1);
    format!("{found}, expected {expected}")
}

/// Whether a plain value stands where `{ env = … }` or `{ file = … }` must.
fn wants_reference(error: &ConfigError) -> bool {
    let help = error.help.as_deref().unwrap_or_default();
    error.message.ends_with("is not one of the choices")
        && ["one of: env, file", "did you mean `env`?", "did you mean `file`?"].contains(&help)
}

/// What looking a secret up says: the name of a variable or file, never the value.
fn says_where_not_what(message: &str) -> bool {
    ["environment variable ", "file "].iter().any(|start| message.starts_with(start))
}

/// The line at `start`, with marks under the span. Without `show_value` all behind the first `=`
/// is left out, and so it is if the line looks secret.
fn excerpt(
    text: &str,
    start: usize,
    end: usize,
    show_value: bool,
) -> Option<(String, usize, usize)> {
    let start = text.floor_char_boundary(start);
    let end = text.floor_char_boundary(end.max(start));
    let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
    let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
    let line = text[line_start..line_end].trim_end();
    if line.is_empty() {
        return None;
    }
    let column = text[line_start..start].chars().count();
    let marks = text[start..end.min(line_end)].chars().count().max(1);
    let show_value = show_value && !redact::looks_secret(line);
    let shown = if show_value {
        redact::without_credentials(line).into_owned()
    } else {
        let key_end = match line.get(start - line_start..) {
            // Behind the key at fault, or behind the first `=` if the fault is further right.
            Some(rest) if !line[..start - line_start].contains('=') => {
                start - line_start + rest.find('=').map_or(rest.len(), |at| at + 1)
            }
            _ => line.find('=').map_or(line.len(), |at| at + 1),
        };
        if key_end < line.len() { format!("{} …", &line[..key_end]) } else { line.to_owned() }
    };
    let length = shown.chars().count();
    let column = column.min(length.saturating_sub(1));
    Some((shown, column, marks.min(length - column).max(1)))
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, &self.variable) {
            (_, Some(name)) => write!(f, "environment variable {name}: ")?,
            (Some(file), None) => {
                write!(f, "{}", file.display())?;
                if let Some((line, column)) = self.line_column {
                    write!(f, ":{line}:{column}")?;
                }
                f.write_str(": ")?;
            }
            (None, None) => {}
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)?;
        if let (Some((line, column, marks)), Some((number, _))) = (&self.excerpt, self.line_column)
        {
            let number = number.to_string();
            let margin = " ".repeat(number.len());
            let indent = " ".repeat(*column);
            let marks = "^".repeat(*marks);
            write!(f, "\n {number} | {line}\n {margin} | {indent}{marks}")?;
        }
        if let Some(help) = &self.help {
            write!(f, "\n  → {help}")?;
        }
        Ok(())
    }
}

impl Faults {
    pub(crate) fn push(&mut self, fault: Fault) {
        if !self.0.contains(&fault) {
            self.0.push(fault);
        }
    }

    pub(crate) fn sorted(mut self) -> Self {
        self.0.sort_by(|a, b| (&a.file, a.line_column).cmp(&(&b.file, b.line_column)));
        self
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each of them.
    pub fn iter(&self) -> std::slice::Iter<'_, Fault> {
        self.0.iter()
    }
}

impl Extend<Fault> for Faults {
    fn extend<I: IntoIterator<Item = Fault>>(&mut self, faults: I) {
        faults.into_iter().for_each(|fault| self.push(fault));
    }
}

impl FromIterator<Fault> for Faults {
    fn from_iter<I: IntoIterator<Item = Fault>>(faults: I) -> Self {
        let mut all = Self::default();
        all.extend(faults);
        all.sorted()
    }
}

impl<'a> IntoIterator for &'a Faults {
    type Item = &'a Fault;
    type IntoIter = std::slice::Iter<'a, Fault>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n\n")?;
            }
            write!(f, "{fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}
