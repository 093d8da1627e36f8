//! Looks secrets up in the environment and in files.

use std::{
    collections::BTreeMap,
    fmt,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use pabal_core::{ConfigError, Secret, SecretReference, Secrets};

/// Secrets from the environment given at load, and from files relative to the configuration
/// directory. A file is read each time it is asked for, so that a renewed one takes effect.
pub struct ConfigSecrets {
    directory: PathBuf,
    environment: BTreeMap<String, Secret>,
}

impl ConfigSecrets {
    /// With the environment as it is now.
    pub fn new(
        directory: impl Into<PathBuf>,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let environment = environment.into_iter();
        Self {
            directory: directory.into(),
            environment: environment.map(|(name, value)| (name, Secret::new(value))).collect(),
        }
    }
}

impl fmt::Debug for ConfigSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigSecrets").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl Secrets for ConfigSecrets {
    fn get(&self, key: &str, reference: &SecretReference) -> Result<Secret, ConfigError> {
        let wrong = |message: String| Err(ConfigError::new(key, message));
        match reference {
            SecretReference::Env(name) => match self.environment.get(name) {
                Some(secret) if !secret.expose().is_empty() => Ok(secret.clone()),
                Some(_) => wrong(format!("{reference} is empty")),
                None => wrong(format!("{reference} is not set")),
            },
            SecretReference::File(path) => {
                let path = self.path(path);
                let text = match std::fs::read_to_string(&path) {
                    Ok(text) => text,
                    Err(error) => {
                        return wrong(format!("file {} cannot be read: {error}", path.display()));
                    }
                };
                warn_if_open_to_others(&path);
                match text.strip_suffix('\n').map(|text| text.strip_suffix('\r').unwrap_or(text)) {
                    Some("") => wrong(format!("file {} is empty", path.display())),
                    Some(line) => Ok(Secret::new(line)),
                    None if text.is_empty() => wrong(format!("file {} is empty", path.display())),
                    None => Ok(Secret::new(text)),
                }
            }
        }
    }

    fn path(&self, path: &Path) -> PathBuf {
        self.directory.join(path)
    }
}

/// Some platforms mount secrets readable by a group, so this is no fault.
fn warn_if_open_to_others(path: &Path) {
    let mode = std::fs::metadata(path).map(|found| found.permissions().mode());
    if let Ok(mode) = mode
        && mode & 0o077 != 0
    {
        tracing::warn!(
            file = %path.display(),
            mode = format_args!("{:o}", mode & 0o777),
            "a file that holds a secret can be read by others; chmod 600 closes it"
        );
    }
}
