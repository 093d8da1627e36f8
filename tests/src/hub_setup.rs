//! What a hub under test is started with.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::{Hub, free_port, pabal_binary, wall_clock::WallClock};

/// The variable that holds the URL of a hub's PostgreSQL database.
pub(crate) const DATABASE_URL: &str = "PABAL_DATABASE_URL";

/// A configuration in the making: a folder of its own with `config/hub.toml`, partner files, and
/// `var/` for the database.
#[derive(Debug)]
pub struct HubSetup {
    folder: TempDir,
    binary: Option<PathBuf>,
    http: u16,
    admin: u16,
    token: Option<String>,
    hub: Option<String>,
    node: String,
    on_postgres: bool,
    more: String,
    environment: Vec<(String, String)>,
    own_wall_clock: bool,
}

impl HubSetup {
    pub(crate) fn new() -> Self {
        let folder = TempDir::with_prefix("pabal-").expect("a temporary folder can be made");
        for inner in ["config/partners", "var"] {
            fs::create_dir_all(folder.path().join(inner)).expect("a folder can be made");
        }
        Self {
            folder,
            binary: None,
            http: free_port(),
            admin: free_port(),
            token: None,
            hub: None,
            node: "node".to_owned(),
            on_postgres: false,
            more: String::new(),
            environment: Vec::new(),
            own_wall_clock: false,
        }
    }

    /// The file of one partner, `config/partners/<id>.toml`.
    #[must_use]
    pub fn partner(self, id: &str, toml: &str) -> Self {
        self.file(&format!("partners/{id}.toml"), toml)
    }

    /// Any file, from the configuration's folder.
    ///
    /// # Panics
    /// If it cannot be written.
    #[must_use]
    pub fn file(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        let path = self.folder.path().join("config").join(path);
        write(&path, content.as_ref());
        self
    }

    /// Further lines of `hub.toml`, behind name, store and listeners.
    #[must_use]
    pub fn hub_toml(mut self, more: &str) -> Self {
        self.more.push_str(more);
        self.more.push('\n');
        self
    }

    /// On the PostgreSQL database at this URL instead of a SQLite file.
    #[must_use]
    pub fn postgres(mut self, url: &str) -> Self {
        self.on_postgres = true;
        self.variable(DATABASE_URL, url)
    }

    /// Its name among the nodes of a hub, by which its files are found as well; only on PostgreSQL.
    #[must_use]
    pub fn node(mut self, name: &str) -> Self {
        name.clone_into(&mut self.node);
        self
    }

    /// All of `hub.toml`; `{http}` and `{admin}` stand for the listeners' addresses, `{database}`
    /// for the path of the SQLite file, `{node}` for the node's name.
    #[must_use]
    pub fn whole_hub_toml(mut self, toml: &str) -> Self {
        self.hub = Some(toml.to_owned());
        self
    }

    /// Another binary than [`pabal_binary`]: a hub with an adapter of its own.
    #[must_use]
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// The admin token that the configuration names, for the test's own questions.
    #[must_use]
    pub fn token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    /// An environment variable of the hub and its commands.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With a wall clock of its own, which [`Hub::set_wall_clock`] steps while it runs. Its commands
    /// keep the machine's.
    #[must_use]
    pub fn own_wall_clock(mut self) -> Self {
        self.own_wall_clock = true;
        self
    }

    /// Writes it all down and starts nothing: for commands without a hub.
    ///
    /// # Panics
    /// If the files cannot be written.
    #[must_use]
    pub fn prepare(self) -> Hub {
        const LISTENERS: &str =
            "http = { listen = \"{http}\" }\nadmin = { listen = \"{admin}\" }\n";
        let store = if self.on_postgres {
            format!(
                "node = \"{{node}}\"\nstore = {{ postgres = {{ env = \"{DATABASE_URL}\" }} }}\n"
            )
        } else {
            "store = { sqlite = \"{database}\" }\n".to_owned()
        };
        let address = |port: u16| format!("127.0.0.1:{port}");
        let database = self.folder.path().join("var/pabal.db");
        let mut toml = self
            .hub
            .unwrap_or_else(|| format!("name = \"test\"\n{store}{LISTENERS}"))
            .replace("{http}", &address(self.http))
            .replace("{admin}", &address(self.admin))
            .replace("{database}", &database.display().to_string())
            .replace("{node}", &self.node);
        toml.push_str(&self.more);
        write(&self.folder.path().join("config/hub.toml"), toml.as_bytes());
        let binary = self.binary.unwrap_or_else(pabal_binary);
        let own =
            if self.on_postgres { format!("test.{}", self.node) } else { "pabal.db".to_owned() };
        let files = self.folder.path().join("var").join(own);
        let wall_clock = self.own_wall_clock.then(|| WallClock::new(self.folder.path()));
        let ports = (self.http, self.admin);
        let hub = Hub::new(self.folder, binary, ports, files, self.token, self.environment);
        hub.living_by(wall_clock)
    }

    /// Writes it all down, starts the hub and waits until it is ready.
    ///
    /// # Panics
    /// If it does not become ready; the message has what it said.
    pub async fn start(self) -> Hub {
        let mut hub = self.prepare();
        hub.start().await;
        hub
    }
}

fn write(path: &Path, content: &[u8]) {
    let folder = path.parent().expect("a file lies in a folder");
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, content))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
