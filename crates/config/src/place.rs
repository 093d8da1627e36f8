//! Where a setting comes from: the file of the topmost layer that has it, or the environment.

use std::{collections::BTreeMap, fmt, ops::Range, path::Path, sync::Arc};

use serde_json::{Map, Value};

use crate::source::SourceFile;

/// What was laid over each other to make one tree of settings: files from the lowest up, and the
/// environment on top.
#[derive(Default)]
pub(crate) struct Layers {
    pub(crate) files: Vec<SourceFile>,
    /// Path of the setting to the name of the variable.
    pub(crate) variables: BTreeMap<Vec<String>, String>,
}

/// Where one setting stands. Cheap to clone.
#[derive(Clone)]
pub struct Position {
    pub(crate) layers: Arc<Layers>,
    pub(crate) path: Vec<String>,
}

/// A position looked up.
pub(crate) enum Found<'a> {
    /// In a file, at the given bytes if any part of it is there.
    File { file: &'a SourceFile, span: Option<Range<usize>> },
    /// In an environment variable.
    Variable(&'a str),
    /// Nowhere: a default, or no file at all.
    Nowhere,
}

/// Which part of a setting is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Key,
    Value,
}

impl Position {
    pub(crate) fn new(layers: &Arc<Layers>, path: &[&str]) -> Self {
        Self {
            layers: Arc::clone(layers),
            path: path.iter().map(|part| (*part).to_owned()).collect(),
        }
    }

    /// The position of `key`, dotted, below this one.
    #[must_use]
    pub fn below(&self, key: &str) -> Self {
        let mut path = self.path.clone();
        path.extend(key.split('.').filter(|part| !part.is_empty()).map(str::to_owned));
        Self { layers: Arc::clone(&self.layers), path }
    }

    /// The setting's full key, dotted.
    #[must_use]
    pub fn key(&self) -> String {
        self.path.join(".")
    }

    /// The file it stands in, if it stands in one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match self.find(Part::Key) {
            Found::File { file, .. } => Some(&file.path),
            _ => None,
        }
    }

    /// Line and column, both from 1, of its key in that file.
    #[must_use]
    pub fn line_column(&self) -> Option<(usize, usize)> {
        match self.find(Part::Key) {
            Found::File { file, span } => span.map(|span| line_column(file.text(), span.start)),
            _ => None,
        }
    }

    pub(crate) fn find(&self, part: Part) -> Found<'_> {
        if let Some(name) = self.layers.variables.get(&self.path) {
            return Found::Variable(name);
        }
        let mut best: Option<(usize, Found<'_>)> = None;
        for file in self.layers.files.iter().rev() {
            let spans = file.find(&self.path);
            if best.as_ref().is_some_and(|(depth, _)| *depth >= spans.depth) {
                continue;
            }
            // Only the last part has a value of its own to point at.
            let value = part == Part::Value && spans.depth == self.path.len();
            let span = if value { spans.value } else { spans.key };
            let found = Found::File { file, span };
            best = Some((spans.depth, found));
        }
        match (best, self.layers.files.first()) {
            (Some((1.., found)), _) => found,
            // What is in no file is missing in the lowest.
            (_, Some(file)) => Found::File { file, span: None },
            (_, None) => Found::Nowhere,
        }
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.file(), self.line_column()) {
            (Some(file), Some((line, column))) => {
                write!(f, "{}:{line}:{column} {}", file.display(), self.key())
            }
            _ => write!(f, "{}", self.key()),
        }
    }
}

/// Line and column of a byte, both from 1, the column in characters.
pub(crate) fn line_column(text: &str, offset: usize) -> (usize, usize) {
    let before = &text[..text.floor_char_boundary(offset)];
    let start = before.rfind('\n').map_or(0, |end| end + 1);
    (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
}

/// Lays `over` on `under`: tables are merged, all else is replaced.
pub(crate) fn lay_over(under: &mut Map<String, Value>, over: Map<String, Value>) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(Value::Object(under)), Value::Object(over)) => lay_over(under, over),
            (_, value) => {
                under.insert(key, value);
            }
        }
    }
}
