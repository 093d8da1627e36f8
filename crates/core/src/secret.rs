//! Secrets: named in the configuration, never written in it, never printed.

use std::{fmt, path::PathBuf};

use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use crate::ConfigError;

/// Where a secret is: `{ env = "NAME" }` or `{ file = "path" }`. This is what a configuration
/// holds; it is safe to print.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SecretReference {
    /// The value of this environment variable.
    Env(String),
    /// The content of this file without the line end; relative to the configuration directory.
    File(PathBuf),
}

impl fmt::Display for SecretReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "environment variable {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
        }
    }
}

/// A secret's value; printing it gives `[secret]`.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(SecretString::from(value.into()))
    }

    /// The value itself, for the one place that sends or compares it.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// Looks secrets up.
pub trait Secrets: fmt::Debug + Send + Sync {
    /// The value of the secret that stands under `key` in the adapter's own table.
    ///
    /// # Errors
    /// If the variable is not set or the file cannot be read; names the place, never the value.
    fn get(&self, key: &str, reference: &SecretReference) -> Result<Secret, ConfigError>;

    /// A path from the settings, relative ones from the configuration directory.
    fn path(&self, path: &std::path::Path) -> PathBuf;
}
