//! The demo's configuration: files like those of any hub, read like those of any hub.

use std::{
    fs::{self, DirBuilder},
    net::SocketAddr,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use pabal_core::Secret;

use crate::token;

/// The demo's directory. It goes away with it, unless it is to be kept.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) dir: PathBuf,
    remove: bool,
}

impl Place {
    /// In `asked`, or in a directory of its own under the system's temporary one.
    pub(super) fn make(asked: Option<&Path>) -> Result<Self> {
        let (dir, remove) = match asked {
            Some(dir) => (std::path::absolute(dir)?, false),
            None => {
                let name = format!("pabal-demo-{}", uuid::Uuid::new_v4().simple());
                (std::env::temp_dir().join(name), true)
            }
        };
        if dir.exists() {
            let mut inside = fs::read_dir(&dir)
                .with_context(|| format!("cannot look into {}", dir.display()))?;
            ensure!(
                inside.next().is_none(),
                "{} is not empty: name a directory that is, or that does not exist",
                dir.display()
            );
        } else {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&dir)
                .with_context(|| format!("cannot make {}", dir.display()))?;
        }
        Ok(Self { dir, remove })
    }

    pub(super) fn config(&self) -> PathBuf {
        self.dir.join("config")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.dir.join("hub.log")
    }

    /// Leaves it there.
    pub(super) fn keep(&mut self) {
        self.remove = false;
    }

    /// Whether it will be left there.
    pub(super) fn kept(&self) -> bool {
        !self.remove
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.remove {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// Writes all files; what the play sender shows who it is with comes back.
/// `postgres`: where the store is, if not in a file of its own.
pub(super) fn write(
    place: &Place,
    archive: SocketAddr,
    census: SocketAddr,
    postgres: Option<&Secret>,
) -> Result<Secret> {
    let config = place.config();
    let secret = uuid::Uuid::new_v4().simple().to_string();
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(config.join("secrets"))
        .and_then(|()| fs::create_dir(config.join("partners")))
        .with_context(|| format!("cannot make {}", config.display()))?;
    token::write_private(&config.join("secrets/city"), secret.as_bytes())?;
    let store = match postgres {
        None => "{ sqlite = \"var/pabal.db\" }",
        Some(url) => {
            token::write_private(&config.join("secrets/database"), url.expose().as_bytes())?;
            "{ postgres = { file = \"secrets/database\" } }"
        }
    };
    let write = |name: &str, text: String| {
        let path = config.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    write(
        "hub.toml",
        format!(
            "name  = \"{}\"\n\
             store = {store}\n\
             http  = {{ listen = \"127.0.0.1:0\" }}   # partners; 0: a free port\n\
             admin = {{ listen = \"127.0.0.1:0\" }}   # operators\n",
            super::HUB
        ),
    )?;
    write("partners/city.toml", CITY.to_owned())?;
    write("partners/archive.toml", ARCHIVE.replace("ADDRESS", &archive.to_string()))?;
    write("partners/census.toml", CENSUS.replace("ADDRESS", &census.to_string()))?;
    Ok(Secret::new(secret))
}

const CITY: &str = r#"# The city hands over changes of its districts.
name = "City (play sender)"

[source.districts.rest]
auth = { bearer = { file = "secrets/city" } }
"#;

const ARCHIVE: &str = r#"# The first agency takes everything, but it fails now and then.
name = "Archive (play agency)"

[destination.districts]
takes = ["district.*"]
retry = { attempts = 12, first = "250ms", max = "5s" }
concurrency = 32

[destination.districts.rest]
url = "http://ADDRESS/districts"
"#;

const CENSUS: &str = r#"# The second agency only takes districts that exist.
name = "Census (play agency)"

[destination.districts]
takes = ["district.*"]
when  = '.status == "존재"'

[destination.districts.rest]
url = "http://ADDRESS/districts"
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demos_directory_is_its_own_and_goes_away() {
        let place = Place::make(None).unwrap();
        let dir = place.dir.clone();
        let address = "127.0.0.1:1".parse().unwrap();
        write(&place, address, address, None).unwrap();
        assert!(dir.join("config/partners/city.toml").exists());
        assert!(Place::make(Some(&dir)).unwrap_err().to_string().contains("not empty"));
        drop(place);
        assert!(!dir.exists());
    }
}
