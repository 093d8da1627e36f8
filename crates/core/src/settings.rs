//! An adapter's own table, and what can be wrong with it.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// One table of the configuration as a tree of plain values. Where it stood in which file is the
/// configuration's business: faults name the key, and the configuration finds the line.
#[derive(Debug, Clone, Default)]
pub struct Settings(pub Value);

/// One fault in the configuration: which key, what is wrong, what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct ConfigError {
    /// The key, dotted, from the table the fault was found in; empty for the table itself.
    pub key: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

impl ConfigError {
    /// A fault under `key`.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), message: message.into(), help: None }
    }

    /// Adds what to do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// So many faults of one table are reported at once.
const FAULTS_MAX: usize = 20;

impl Settings {
    /// The table as `T`, which should deny unknown fields.
    ///
    /// # Errors
    /// All faults: after each, the key at fault is set aside and the rest is read again.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Vec<ConfigError>> {
        let mut rest = self.0.clone();
        let mut faults = Vec::new();
        loop {
            let error = match serde_path_to_error::deserialize::<_, T>(rest.clone()) {
                Ok(parsed) if faults.is_empty() => return Ok(parsed),
                Ok(_) => return Err(faults),
                Err(error) => error,
            };
            let path: Vec<String> = error
                .path()
                .iter()
                .filter_map(|segment| match segment {
                    serde_path_to_error::Segment::Map { key } => Some(key.clone()),
                    serde_path_to_error::Segment::Seq { index } => Some(index.to_string()),
                    _ => None,
                })
                .collect();
            let message = error.into_inner().to_string();
            // A missing key cannot be set aside, and makes the rest of its table unreadable.
            let removed = !message.starts_with("missing field") && remove(&mut rest, &path);
            let fault = explain(path.join("."), &message);
            // A key may be at fault only because one beside it was set aside.
            if !faults.contains(&fault) {
                faults.push(fault);
            }
            if !removed || faults.len() >= FAULTS_MAX {
                return Err(faults);
            }
        }
    }
}

fn remove(value: &mut Value, path: &[String]) -> bool {
    match (value, path) {
        (Value::Object(table), [key]) => table.remove(key).is_some(),
        (Value::Object(table), [key, rest @ ..]) => {
            table.get_mut(key).is_some_and(|inner| remove(inner, rest))
                || table.remove(key).is_some()
        }
        (Value::Array(list), [index, rest @ ..]) => {
            let Some(index) = index.parse().ok().filter(|index| *index < list.len()) else {
                return false;
            };
            if rest.is_empty() || !remove(&mut list[index], rest) {
                list.remove(index);
            }
            true
        }
        _ => false,
    }
}

/// Turns serde's words into ours, with the nearest known key as the remedy.
fn explain(key: String, message: &str) -> ConfigError {
    if let Some(rest) = message.strip_prefix("unknown field `") {
        let (unknown, expected) = rest.split_once('`').unwrap_or((rest, ""));
        let known = quoted(expected);
        let help = match nearest(unknown, &known) {
            Some(near) => format!("did you mean `{near}`?"),
            None if known.is_empty() => "this table takes no keys".to_owned(),
            None => format!("known here: {}", known.join(", ")),
        };
        return ConfigError::new(key, format!("unknown key `{unknown}`")).help(help);
    }
    if let Some(rest) = message.strip_prefix("unknown variant `") {
        let (unknown, expected) = rest.split_once('`').unwrap_or((rest, ""));
        let known = quoted(expected);
        let help = match nearest(unknown, &known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("one of: {}", known.join(", ")),
        };
        return ConfigError::new(key, format!("`{unknown}` is not one of the choices")).help(help);
    }
    if let Some(rest) = message.strip_prefix("missing field `") {
        let missing = rest.trim_end_matches('`');
        return ConfigError::new(key, format!("`{missing}` is missing"))
            .help(format!("add `{missing} = …` to this table"));
    }
    ConfigError::new(key, message)
}

fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The candidate that `word` is most likely a slip of, if any is near enough; `-` and `_` and the
/// case of letters make no difference.
#[must_use]
pub fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let plain = |text: &str| text.to_ascii_lowercase().replace('-', "_");
    let word = plain(word);
    candidates
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(&word, &plain(candidate)), *candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).max(1))
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Table {
        #[expect(dead_code, reason = "only read")]
        url: String,
        #[serde(default)]
        #[expect(dead_code, reason = "only read")]
        retries_max: u8,
        #[expect(dead_code, reason = "only read")]
        inner: Option<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[expect(dead_code, reason = "only read")]
        sizes: Vec<u8>,
    }

    fn faults(value: Value) -> Vec<String> {
        let faults = Settings(value).parse::<Table>().unwrap_err();
        let text = |f: &ConfigError| format!("{f} ({})", f.help.as_deref().unwrap_or("-"));
        let mut faults: Vec<_> = faults.iter().map(text).collect();
        faults.sort();
        faults
    }

    #[test]
    fn all_faults_of_a_table_are_found_at_once_with_the_nearest_key() {
        assert_eq!(
            faults(json!({
                "url": "x", "retires-max": 3, "retries_max": 700,
                "inner": { "sizes": [1, "two"], "else": 1 },
            })),
            [
                "inner.else: unknown key `else` (known here: sizes)",
                "inner.sizes.1: invalid type: string \"two\", expected u8 (-)",
                "retires-max: unknown key `retires-max` (did you mean `retries_max`?)",
                "retries_max: invalid value: integer `700`, expected u8 (-)",
            ]
        );
        assert_eq!(faults(json!({})), [": `url` is missing (add `url = …` to this table)"]);
    }
}
