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
                Some(secret) => match one_line(secret.expose()) {
                    "" => wrong(format!("{reference} is empty")),
                    line => Ok(Secret::new(line)),
                },
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
                match one_line(&text) {
                    "" => wrong(format!("file {} is empty", path.display())),
                    line => Ok(Secret::new(line)),
                }
            }
        }
    }

    fn path(&self, path: &Path) -> PathBuf {
        self.directory.join(path)
    }
}

/// Without the line end that editors and shells leave at the end.
fn one_line(text: &str) -> &str {
    let line = text.strip_suffix('\n');
    line.map_or(text, |line| line.strip_suffix('\r').unwrap_or(line))
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
