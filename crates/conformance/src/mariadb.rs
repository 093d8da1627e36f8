//! A throw-away MariaDB server for tests: on a free port, in a folder of its own, ended with the
//! test process however that ends. Whatever else runs on the machine is left alone.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

pub use crate::postgres::{OWNER, RUNTIME};
use crate::throwaway::{Undertaker, as_user, free_port, make_folder, succeed};

/// MariaDB refuses to run as root.
const USER: &str = "mysql";

/// Told to a server that one does not want to share, for speed: a crash of the machine loses data, one
/// of the server does not.
const FAST: &str = "--innodb-flush-log-at-trx-commit=2";

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    folder: PathBuf,
    port: u16,
    settings: Vec<String>,
    databases: AtomicU32,
    process: Mutex<Option<Child>>,
    _undertaker: Undertaker,
}

impl Server {
    /// The server of this test process, which all its tests share.
    #[must_use]
    pub fn shared() -> &'static Self {
        static SERVER: OnceLock<Server> = OnceLock::new();
        SERVER.get_or_init(|| Self::start(&[FAST]))
    }

    /// A server of the caller's own, with these further options.
    ///
    /// # Panics
    /// If MariaDB is not installed, or does not start.
    #[must_use]
    pub fn start(settings: &[&str]) -> Self {
        let port = free_port();
        let folder = make_folder(&format!("pabal-mariadb-{port}"), USER);
        let own = folder.to_str().unwrap();
        // The pid's file is the last thing to be removed by one that ends by itself.
        let end = "p=$(cat pid) && kill -9 $p && i=0 && \
                   while [ $i -lt 100 ] && kill -0 $p; do i=$((i + 1)); sleep 0.05; done";
        let undertaker = Undertaker::called(USER, &format!("cd {own}; {end}; cd /; rm -rf {own}"));
        let mut install = as_user(USER, Path::new("mariadb-install-db"));
        install.args([
            "--no-defaults",
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
        ]);
        install.args([format!("--datadir={own}/data"), format!("--tmpdir={own}")]);
        succeed(install.args([FAST, "--innodb-log-file-size=16M"]).stdout(Stdio::null()));
        let server = Self {
            folder,
            port,
            settings: settings.iter().map(|&setting| setting.to_owned()).collect(),
            databases: AtomicU32::new(0),
            process: Mutex::new(None),
            _undertaker: undertaker,
        };
        server.start_again();
        for role in [OWNER, RUNTIME] {
            let _ = server.ask("", &format!("CREATE USER {role}"));
        }
        server
    }

    /// A new database that [`OWNER`] may do everything in, and [`RUNTIME`] nothing.
    #[must_use]
    pub fn database(&self) -> Database<'_> {
        let name = format!("d{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let create = format!("CREATE DATABASE {name}; GRANT ALL ON {name}.* TO {OWNER}");
        let _ = self.ask("", &create);
        Database { server: self, name }
    }

    /// Starts it, after [`Server::stop_immediately`] as well: it then recovers what was committed.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_again(&self) {
        let own = self.folder.to_str().unwrap();
        let mut server = as_user(USER, &server_path());
        server.args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-name-resolve"]);
        server.args([
            format!("--datadir={own}/data"),
            format!("--tmpdir={own}"),
            format!("--socket={own}/socket"),
            format!("--pid-file={own}/pid"),
            format!("--log-error={own}/log"),
            format!("--port={}", self.port),
        ]);
        server.args(["--innodb-buffer-pool-size=64M", "--max-allowed-packet=64M"]);
        server.args(["--character-set-server=utf8mb4", "--max-connections=300"]);
        server.args(&self.settings).stdout(Stdio::null()).stderr(Stdio::null());
        *self.process.lock().unwrap() = Some(server.spawn().unwrap());
        let ping = "i=0; until mariadb-admin --no-defaults -uroot -S \"$1\" ping; do \
                    i=$((i + 1)); [ $i -lt 600 ] || exit 1; sleep 0.05; done";
        let mut wait = Command::new("sh");
        wait.args(["-c", ping, "sh", &format!("{own}/socket")]);
        succeed(wait.stdout(Stdio::null()));
    }

    /// Ends it as a crash would: nothing is written any more.
    ///
    /// # Panics
    /// If it does not run.
    pub fn stop_immediately(&self) {
        let mut process = self.process.lock().unwrap().take().expect("a server that runs");
        let kill = format!("kill -9 $(cat {}/pid)", self.folder.display());
        succeed(as_user(USER, Path::new("sh")).args(["-c", &kill]));
        process.wait().unwrap();
    }

    /// Runs statements as the superuser; what they print, without decoration.
    ///
    /// # Panics
    /// If one of them fails.
    #[must_use = "what was printed"]
    pub fn ask(&self, database: &str, sql: &str) -> String {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "--batch", "--skip-column-names", "--raw", "-uroot"]);
        client.args(["--default-character-set=utf8mb4", "-e", sql, "-S"]);
        client.arg(self.folder.join("socket")).arg(database);
        let output = client.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{sql}: {error}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Where it listens, on loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// A database of a server.
#[derive(Debug)]
pub struct Database<'s> {
    server: &'s Server,
    name: String,
}

impl Database<'_> {
    /// Its name on the server.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its URL for one of the two roles.
    #[must_use]
    pub fn url(&self, role: &str) -> String {
        format!("mysql://{role}@127.0.0.1:{}/{}", self.server.port, self.name)
    }

    /// Runs statements as the superuser; what they print, without decoration.
    ///
    /// # Panics
    /// If one of them fails.
    pub fn ask(&self, sql: &str) -> String {
        self.server.ask(&self.name, sql)
    }
}

/// Debian keeps the server where an ordinary user's PATH does not look.
fn server_path() -> PathBuf {
    let debian = PathBuf::from("/usr/sbin/mariadbd");
    if debian.exists() { debian } else { "mariadbd".into() }
}
