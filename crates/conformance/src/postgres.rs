//! A throw-away PostgreSQL server for tests: on a free port, in a folder of its own, ended with the
//! test process however that ends.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::throwaway::{Undertaker, as_user, free_port, make_folder, succeed};

/// PostgreSQL refuses to run as root.
const USER: &str = "postgres";

/// The role that owns the databases and may change their schemas.
pub const OWNER: &str = "owner";
/// The role a hub runs as; it may do what it was granted.
pub const RUNTIME: &str = "runtime";

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    folder: PathBuf,
    port: u16,
    databases: AtomicU32,
    _undertaker: Undertaker,
}

impl Server {
    /// The server of this test process, which all its tests share.
    #[must_use]
    pub fn shared() -> &'static Self {
        static SERVER: OnceLock<Server> = OnceLock::new();
        SERVER.get_or_init(|| Self::start(&["fsync=off"]))
    }

    /// A server of the caller's own, with these lines in its configuration.
    ///
    /// # Panics
    /// If PostgreSQL is not installed, or does not start.
    #[must_use]
    pub fn start(settings: &[&str]) -> Self {
        let port = free_port();
        let folder = make_folder(&format!("pabal-postgres-{port}"), USER);
        let own = folder.to_str().unwrap();
        let data = folder.join("data");
        let initdb =
            ["-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "-U", "postgres"];
        succeed(tool("initdb").args(initdb).arg("-D").arg(&data));
        let pg_ctl = tool_path("pg_ctl");
        let last = format!("{} -D {own}/data -m immediate stop; rm -rf {own}", pg_ctl.display());
        let undertaker = Undertaker::called(USER, &last);
        let mut lines = vec![
            format!("port={port}"),
            "listen_addresses='127.0.0.1'".to_owned(),
            format!("unix_socket_directories='{own}'"),
            "max_connections=300".to_owned(),
            "shared_buffers=128MB".to_owned(),
            "wal_level=logical".to_owned(),
            "log_line_prefix='%d '".to_owned(),
        ];
        lines.extend(settings.iter().map(|line| (*line).to_owned()));
        append(&data.join("postgresql.conf"), &lines.join("\n"));
        let server = Self { folder, port, databases: AtomicU32::new(0), _undertaker: undertaker };
        server.start_again();
        server.sql("postgres", &format!("CREATE ROLE {OWNER} LOGIN; CREATE ROLE {RUNTIME} LOGIN"));
        server
    }

    /// A new database of [`OWNER`]'s.
    #[must_use]
    pub fn database(&self) -> Database<'_> {
        let name = format!("d{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name} OWNER {OWNER}"));
        Database { server: self, name }
    }

    /// A new database that has all that another one has; nobody may be connected to that.
    #[must_use]
    pub fn copy(&self, of: &Database<'_>) -> Database<'_> {
        let name = format!("d{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name} OWNER {OWNER} TEMPLATE {}", of.name));
        Database { server: self, name }
    }

    /// Starts it, after [`Server::stop_immediately`] as well: it then recovers what was committed.
    pub fn start_again(&self) {
        let log = self.folder.join("log");
        let mut start = tool("pg_ctl");
        start.arg("-D").arg(self.folder.join("data")).arg("-l").arg(log);
        succeed(start.args(["-w", "-t", "60", "start"]).stdout(Stdio::null()));
    }

    /// Stops it as a crash would: nothing is written any more.
    pub fn stop_immediately(&self) {
        let mut stop = tool("pg_ctl");
        stop.arg("-D").arg(self.folder.join("data"));
        succeed(stop.args(["-m", "immediate", "-w", "stop"]).stdout(Stdio::null()));
    }

    /// Runs statements as the superuser; what they print, without decoration.
    ///
    /// # Panics
    /// If one of them fails.
    #[must_use = "what was printed"]
    pub fn ask(&self, database: &str, sql: &str) -> String {
        let mut psql = Command::new(tool_path("psql"));
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1"]);
        psql.args(["-U", "postgres", "-d", database, "-c", sql, "-p", &self.port.to_string()]);
        let output = psql.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{sql}: {error}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn sql(&self, database: &str, sql: &str) {
        let _ = self.ask(database, sql);
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
    /// Its URL for one of the two roles.
    #[must_use]
    pub fn url(&self, role: &str) -> String {
        format!("postgres://{role}@127.0.0.1:{}/{}", self.server.port, self.name)
    }

    /// Runs statements as the superuser; what they print, without decoration.
    ///
    /// # Panics
    /// If one of them fails.
    pub fn ask(&self, sql: &str) -> String {
        self.server.ask(&self.name, sql)
    }

    /// From the next session on the plan of every statement is noted, with the pages it touched.
    pub fn note_plans(&self) {
        for setting in [
            "session_preload_libraries = 'auto_explain'",
            "auto_explain.log_min_duration = 0",
            "auto_explain.log_analyze = on",
            "auto_explain.log_timing = off",
            "auto_explain.log_buffers = on",
            "auto_explain.log_format = json",
        ] {
            self.ask(&format!("ALTER DATABASE {} SET {setting}", self.name));
        }
    }

    /// The statements whose plans were noted so far, oldest first, each with the pages it touched, in
    /// memory or on disk.
    ///
    /// # Panics
    /// If the server's log cannot be read.
    #[must_use]
    pub fn plans(&self) -> Vec<(String, u64)> {
        let log = fs::read_to_string(self.server.folder.join("log")).unwrap();
        let ours = format!("\n{} ", self.name);
        let entries = log.split(&ours).skip(1);
        let plans = entries.filter_map(|entry| {
            let (_, plan) = entry.split_once("plan:\n")?;
            let (_, statement) = plan.split_once("\"Query Text\": \"")?;
            let (statement, _) = statement.split_once("\",\n")?;
            let pages = |of: &str| -> Option<u64> {
                let (_, number) = plan.split_once(&format!("\"{of}\": "))?;
                number.split(',').next()?.trim().parse().ok()
            };
            // The outermost node comes first, and has all of its parts in it.
            let pages = pages("Shared Hit Blocks")? + pages("Shared Read Blocks")?;
            Some((statement.to_owned(), pages))
        });
        plans.collect()
    }

    /// Lets the store's clock stand still at so many microseconds after now, as its owner could.
    pub fn stop_clock(&self, ahead: i64) {
        self.ask(&format!(
            "CREATE TABLE IF NOT EXISTS pabal.stopped AS SELECT statement_timestamp() AS at; \
             DO $do$ BEGIN EXECUTE format('CREATE OR REPLACE FUNCTION pabal.time() \
             RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE \
             AS $$SELECT %L::timestamptz$$', \
             (SELECT at FROM pabal.stopped) + {ahead} * interval '1 microsecond'); END $do$"
        ));
    }
}

/// The newest PostgreSQL of Debian's folders, or what is in the path.
fn tool_path(name: &str) -> PathBuf {
    let newest = || {
        let folders = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
        let versions = folders.filter_map(|folder| {
            let version: u32 = folder.file_name().to_str()?.parse().ok()?;
            Some((version, folder.path().join("bin").join(name)))
        });
        versions.filter(|(_, path)| path.exists()).max().map(|(_, path)| path)
    };
    newest().unwrap_or_else(|| name.into())
}

fn tool(name: &str) -> Command {
    as_user(USER, &tool_path(name))
}

fn append(path: &Path, text: &str) {
    let before = fs::read_to_string(path).unwrap();
    fs::write(path, format!("{before}\n{text}\n")).unwrap();
}
