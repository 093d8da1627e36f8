//! Several nodes of one hub on one PostgreSQL database, and the server under it.

use std::process::Stdio;

use pabal_conformance::postgres::{OWNER, RUNTIME, Server};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    task::spawn_blocking,
};

use crate::{Hub, HubSetup, hub_setup::DATABASE_URL, until, within};

/// A database of a test's own, on a server that is this test process's.
#[derive(Debug, Clone)]
pub struct Postgres {
    server: &'static Server,
    name: String,
}

impl Postgres {
    /// An empty database on the server that all tests of this process share. What is committed there
    /// outlives a kill of a hub, but not one of the server.
    ///
    /// # Panics
    /// If PostgreSQL does not start; `cargo xtask prepare` installs it.
    pub async fn shared() -> Self {
        Self::on(Server::shared).await
    }

    /// An empty database on a server of this test's own that keeps what it committed, whatever ends
    /// it.
    ///
    /// # Panics
    /// If PostgreSQL does not start; `cargo xtask prepare` installs it.
    pub async fn durable() -> Self {
        // It lives as long as the test process, and its end is seen to by another process.
        Self::on(|| Box::leak(Box::new(Server::start(&["fsync=on"])))).await
    }

    async fn on(server: impl FnOnce() -> &'static Server + Send + 'static) -> Self {
        let made = spawn_blocking(move || {
            let server = server();
            let url = server.database().url(OWNER);
            (server, url.rsplit('/').next().unwrap_or_default().to_owned())
        });
        let (server, name) = made.await.expect("PostgreSQL starts");
        Self { server, name }
    }

    /// Its URL for the role that owns it and may change its schema.
    #[must_use]
    pub fn owner(&self) -> String {
        self.url(OWNER)
    }

    /// Its URL for the role a hub runs as, which may do what it was granted.
    #[must_use]
    pub fn runtime(&self) -> String {
        self.url(RUNTIME)
    }

    fn url(&self, role: &str) -> String {
        format!("postgres://{role}@127.0.0.1:{}/{}", self.server.port(), self.name)
    }

    /// Gives the role that runs what it needs, as an owner does after `pabal migrate`.
    ///
    /// # Panics
    /// If the schema is not there yet.
    pub async fn grant(&self) {
        self.ask(&format!("SELECT pabal.grant_to('{RUNTIME}')")).await;
    }

    /// Runs statements as the superuser; what they print, without decoration.
    ///
    /// # Panics
    /// If one of them fails.
    pub async fn ask(&self, sql: &str) -> String {
        let (server, name, sql) = (self.server, self.name.clone(), sql.to_owned());
        spawn_blocking(move || server.ask(&name, &sql)).await.expect("the statements are right")
    }

    /// A transaction of the role that runs, open until the session is dropped: somebody's forgotten
    /// one.
    ///
    /// # Panics
    /// If it cannot be begun.
    pub async fn forgotten_transaction(&self) -> Session {
        Self::session(&self.runtime(), "BEGIN").await
    }

    /// A session of the owner that has run these statements and stays open until it is dropped, with
    /// the locks that they took.
    ///
    /// # Panics
    /// If one of them fails.
    pub async fn session_after(&self, sql: &str) -> Session {
        Self::session(&self.owner(), sql).await
    }

    async fn session(url: &str, sql: &str) -> Session {
        let mut session = Command::new("psql")
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("psql can be started");
        let mut stdin = session.stdin.take().expect("it is piped");
        let statements = format!("{sql};\nSELECT 'done';\n");
        stdin.write_all(statements.as_bytes()).await.expect("psql reads");
        let stdout = session.stdout.take().expect("it is piped");
        let mut lines = BufReader::new(stdout).lines();
        within("a session", async {
            while let Some(line) = lines.next_line().await.expect("psql answers") {
                if line == "done" {
                    return;
                }
            }
            panic!("psql ended: {sql}");
        })
        .await;
        Session { _process: session, _stdin: stdin }
    }

    /// Ends the server as a crash would, and starts it again on what it had committed.
    ///
    /// # Panics
    /// If it does not start again.
    pub async fn restart_immediately(&self) {
        self.stop_immediately().await;
        self.start_again().await;
    }

    /// Ends the server as a crash would.
    ///
    /// # Panics
    /// If it does not run.
    pub async fn stop_immediately(&self) {
        let server = self.server;
        spawn_blocking(|| server.stop_immediately()).await.expect("it can be stopped");
    }

    /// Starts the server again.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn start_again(&self) {
        let server = self.server;
        // What the last one left of itself may take a moment to go.
        until("PostgreSQL again", async || spawn_blocking(|| server.start_again()).await.ok())
            .await;
    }
}

/// A session of `psql` that stays as it is until it is dropped.
#[derive(Debug)]
pub struct Session {
    _process: Child,
    _stdin: ChildStdin,
}

/// Nodes of one hub, each with a folder, ports and a process of its own, all with the rights of the
/// role that runs and on one database.
#[derive(Debug)]
pub struct Nodes {
    /// What they share.
    pub postgres: Postgres,
    nodes: Vec<Hub>,
}

impl Nodes {
    /// Nodes on this database, called `a`, `b` and so on, with what `configure` adds to each; the
    /// schema is made and nothing is started.
    ///
    /// # Panics
    /// If the schema cannot be made.
    pub async fn prepare(
        postgres: Postgres,
        count: u8,
        configure: impl Fn(HubSetup) -> HubSetup,
    ) -> Self {
        let nodes: Vec<_> = (0..count)
            .map(|number| {
                let name = char::from(b'a' + number).to_string();
                configure(Hub::setup()).postgres(&postgres.runtime()).node(&name).prepare()
            })
            .collect();
        let owner = [(DATABASE_URL, &*postgres.owner())];
        nodes.first().expect("a node").cli_with(&owner, &["migrate"]).await.ok();
        postgres.grant().await;
        Self { postgres, nodes }
    }

    /// [`Nodes::prepare`] on a shared server, and all are started and ready.
    ///
    /// # Panics
    /// If one does not become ready.
    pub async fn start(count: u8, configure: impl Fn(HubSetup) -> HubSetup) -> Self {
        let mut nodes = Self::prepare(Postgres::shared().await, count, configure).await;
        for node in &mut nodes.nodes {
            node.start().await;
        }
        nodes
    }

    /// One of them, from 0: its processes, its listeners, its commands.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn node(&self, number: usize) -> &Hub {
        &self.nodes[number]
    }

    /// One of them, from 0, to be started, killed and restarted.
    ///
    /// # Panics
    /// If there is none.
    pub fn node_mut(&mut self, number: usize) -> &mut Hub {
        &mut self.nodes[number]
    }

    /// All of them.
    pub fn iter(&self) -> std::slice::Iter<'_, Hub> {
        self.nodes.iter()
    }

    /// Waits until the nodes that run hold so many lanes of a destination together, each at least
    /// one if `each`.
    ///
    /// # Panics
    /// If they do not within [`crate::LIMIT`].
    pub async fn wait_for_lanes(&self, destination: &str, lanes: u16, each: bool) {
        until(&format!("{lanes} lanes of {destination} held"), async || {
            let labels = [("destination", destination)];
            let mut held = Vec::new();
            for node in self.nodes.iter().filter(|node| node.pid().is_some()) {
                let metrics = node.try_metrics().await.ok()?;
                held.push(metrics.value("pabal_lease_held", &labels).unwrap_or(0.0));
            }
            let spread = !each || held.iter().all(|held| *held >= 1.0);
            (spread && held.iter().sum::<f64>() == f64::from(lanes)).then_some(())
        })
        .await;
    }
}

impl<'n> IntoIterator for &'n Nodes {
    type Item = &'n Hub;
    type IntoIter = std::slice::Iter<'n, Hub>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
