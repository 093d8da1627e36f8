//! The admin token, and the two small files by which the command line finds a running hub.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use pabal_core::Secret;
use subtle::ConstantTimeEq;

/// How the name of the file with the address of an operators' listener ends.
pub(crate) const ADDRESS: &str = ".admin";

/// Where the token of a hub with this database stands, if its configuration names none.
pub(crate) fn file(database: &Path) -> PathBuf {
    beside(database, ".token")
}

/// Where a running hub writes the address its operators' listener got.
pub(crate) fn address_file(database: &Path) -> PathBuf {
    beside(database, ADDRESS)
}

fn beside(database: &Path, ending: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// A new token, of 244 random bits.
pub(crate) fn random() -> Secret {
    let half = || uuid::Uuid::new_v4().simple().to_string();
    Secret::new(half() + &half())
}

/// The token in the file; makes one if there is none. Only its owner can read the file, from its
/// first moment on.
pub(crate) fn read_or_make(database: &Path) -> Result<Secret> {
    let path = file(database);
    if !path.exists() {
        write_private(&path, random().expose().as_bytes())?;
    }
    let mode = fs::metadata(&path)
        .with_context(|| format!("cannot look at the admin token in {}", path.display()))?
        .permissions()
        .mode();
    ensure!(
        mode & 0o077 == 0,
        "the admin token in {} can be read by others (mode {:o}): chmod 600 it, or remove it and start again for a new one",
        path.display(),
        mode & 0o777
    );
    read(database)
}

/// The token in the file.
pub(crate) fn read(database: &Path) -> Result<Secret> {
    let path = file(database);
    let token = fs::read_to_string(&path)
        .with_context(|| format!("cannot read the admin token in {}", path.display()))?;
    let token = token.trim();
    ensure!(
        !token.is_empty(),
        "the admin token in {} is empty: remove the file and start the hub again",
        path.display()
    );
    Ok(Secret::new(token))
}

/// Writes a file that only its owner can read, whole or not at all.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> Result<()> {
    let whole = || -> std::io::Result<()> {
        let new = beside(path, ".new");
        let _ = fs::remove_file(&new);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(content)?;
        file.write_all(b"\n")?;
        fs::rename(&new, path)
    };
    whole().with_context(|| format!("cannot write {}", path.display()))
}

/// Whether a request's `Authorization` header carries the token. Takes as long for a wrong token as
/// for the right one.
pub(crate) fn matches(token: &Secret, authorization: &[u8]) -> bool {
    // The scheme's name has no case (RFC 9110).
    let Some((scheme, given)) = authorization.split_at_checked(7) else {
        return false;
    };
    scheme.eq_ignore_ascii_case(b"bearer ")
        && token.expose().as_bytes().ct_eq(given.trim_ascii()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_file_is_made_once_and_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("hub.db");
        let first = read_or_make(&database).unwrap();
        assert_eq!(first.expose().len(), 64);
        assert_eq!(first.expose(), read_or_make(&database).unwrap().expose());
        let mode = fs::metadata(file(&database)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::set_permissions(file(&database), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(read_or_make(&database).unwrap_err().to_string().contains("chmod 600"));
    }

    #[test]
    fn only_the_whole_token_matches() {
        let token = Secret::new("abc");
        for (header, expected) in [
            ("Bearer abc", true),
            ("bearer abc", true),
            ("Bearer  abc", true),
            ("Bearer ab", false),
            ("Bearer abcd", false),
            ("Bearer ", false),
            ("Basic abc", false),
            ("abc", false),
            ("", false),
        ] {
            assert_eq!(matches(&token, header.as_bytes()), expected, "{header}");
        }
    }
}
