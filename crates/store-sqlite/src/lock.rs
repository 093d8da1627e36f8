//! One running hub per database file.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
};

/// Held by the one process that runs the hub on a database. The operating system frees it when the
/// process ends, however it ends, so a restart takes over at once.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
}

/// Why the lock was not given.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error(
        "another hub ({holder}) runs on {}: stop it first, or use another database",
        database.display()
    )]
    Held {
        /// The database.
        database: PathBuf,
        /// The process that holds it, as far as known.
        holder: String,
    },
    /// The lock file cannot be used.
    #[error("cannot lock {}: {error}; the hub must be able to write there", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// What happened.
        #[source]
        error: io::Error,
    },
}

impl RunLock {
    /// Takes the lock of the database at `path`, without waiting. It is let go when dropped.
    ///
    /// # Errors
    /// If another process has it, or the lock file cannot be written.
    pub fn take(path: &Path) -> Result<Self, LockError> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let lock = PathBuf::from(name);
        let fail = |error| LockError::Io { path: lock.clone(), error };
        if let Some(folder) = lock.parent() {
            std::fs::create_dir_all(folder).map_err(fail)?;
        }
        // The file stays behind for good: to remove it would let two processes lock two files.
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock)
            .map_err(fail)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let known = file.read_to_string(&mut holder).is_ok() && !holder.trim().is_empty();
                return Err(LockError::Held {
                    database: path.to_owned(),
                    holder: if known {
                        format!("process {}", holder.trim())
                    } else {
                        "its process is not known".to_owned()
                    },
                });
            }
            Err(TryLockError::Error(error)) => return Err(fail(error)),
        }
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(fail)?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_runs_and_the_next_takes_over_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/hub.db");
        let first = RunLock::take(&path).unwrap();
        let refused = RunLock::take(&path).unwrap_err().to_string();
        assert!(
            refused.contains(&std::process::id().to_string()) && refused.contains("hub.db"),
            "{refused}"
        );
        drop(first);
        RunLock::take(&path).unwrap();
    }
}
