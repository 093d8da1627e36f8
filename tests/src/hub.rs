//! The real binary, with a configuration and a database of its own.

use std::{
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use bytes::Bytes;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::{
    HubSetup, Ran, Reply, WayIn, client,
    command::{build_folder, finish_within},
    log::Log,
    until,
    wall_clock::WallClock,
    within,
};

/// The binary under test: `PABAL_BIN`, or what was built beside this test.
///
/// # Panics
/// If it was not built.
#[must_use]
pub fn pabal_binary() -> PathBuf {
    let binary = match std::env::var_os("PABAL_BIN") {
        Some(path) => path.into(),
        None => build_folder().join("pabal"),
    };
    assert!(
        binary.exists(),
        "{} is not there: run `cargo build -p pabal`, or all tests by `cargo xtask test`",
        binary.display()
    );
    binary
}

/// Runs a command of the binary to its end, in the repository's root and without any setting from
/// the environment.
///
/// # Panics
/// If it does not end within [`crate::LIMIT`].
pub async fn pabal(arguments: &[&str]) -> Ran {
    pabal_within(crate::LIMIT, arguments).await
}

/// [`pabal`] for a command that may take this long.
///
/// # Panics
/// If it does not end within `limit`.
pub async fn pabal_within(limit: Duration, arguments: &[&str]) -> Ran {
    let mut command = command(&pabal_binary());
    command.args(arguments).current_dir(crate::repository(""));
    finish_within(limit, command, b"").await
}

fn command(binary: &Path) -> Command {
    let mut command = Command::new(binary);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PABAL_") {
            command.env_remove(&name);
        }
    }
    command.env("NO_COLOR", "1").env("COLUMNS", "100");
    command
}

/// One hub: its files, and the process while it runs. Both are gone when it is dropped; a test
/// that fails prints the last of its log.
#[derive(Debug)]
pub struct Hub {
    folder: TempDir,
    binary: PathBuf,
    way_in: WayIn,
    pub(crate) admin: u16,
    /// What the names of its own small files begin with.
    pub(crate) files: PathBuf,
    pub(crate) token: Option<String>,
    environment: Vec<(String, String)>,
    pub(crate) client: reqwest::Client,
    log: Log,
    wall_clock: Option<WallClock>,
    process: Option<Child>,
}

impl Hub {
    /// A configuration in the making.
    #[must_use]
    pub fn setup() -> HubSetup {
        HubSetup::new()
    }

    pub(crate) fn new(
        folder: TempDir,
        binary: PathBuf,
        ports: (u16, u16),
        files: PathBuf,
        token: Option<String>,
        environment: Vec<(String, String)>,
    ) -> Self {
        let (http, admin) = ports;
        Self {
            folder,
            binary,
            way_in: WayIn::new(http),
            admin,
            files,
            token,
            environment,
            client: client(),
            log: Log::default(),
            wall_clock: None,
            process: None,
        }
    }

    pub(crate) fn living_by(mut self, wall_clock: Option<WallClock>) -> Self {
        self.wall_clock = wall_clock;
        self
    }

    // --- its process ---

    /// Starts it and waits until it is ready.
    ///
    /// # Panics
    /// If it runs already, or does not become ready; the message has what it said.
    pub async fn start(&mut self) {
        self.spawn();
        let ready = self.client.get(self.url("/readyz"));
        let ended = until("a ready hub", async || {
            if let Some(status) = self.has_ended() {
                return Some(Some(status));
            }
            let request = ready.try_clone().expect("it has no body");
            let answer = request.send().await.ok()?;
            answer.status().is_success().then_some(None)
        })
        .await;
        if let Some(status) = ended {
            panic!("the hub ended with {status}\n{}", self.log.tail(40));
        }
        if let (Some(clock), Some(pid)) = (&self.wall_clock, self.pid()) {
            clock.tidy(pid);
        }
    }

    /// Starts it and waits for nothing.
    ///
    /// # Panics
    /// If it runs already.
    pub fn spawn(&mut self) {
        assert!(self.process.is_none(), "the hub runs already");
        let mut command = self.command();
        if let Some(clock) = &self.wall_clock {
            clock.rule(&mut command);
        }
        let mut child = command
            .arg("run")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the binary can be started");
        if let Some(stdout) = child.stdout.take() {
            self.log.follow(stdout);
        }
        if let Some(stderr) = child.stderr.take() {
            self.log.follow(stderr);
        }
        self.process = Some(child);
    }

    /// How it ended, if it did by itself.
    ///
    /// # Panics
    /// If it was not started.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        let child = self.process.as_mut().expect("the hub was started");
        let status = child.try_wait().expect("a child can be asked")?;
        self.process = None;
        Some(status)
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = command(&self.binary);
        command
            .arg("--config")
            .arg(self.config())
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(self.folder());
        command
    }

    /// Kills it in the middle of whatever it does.
    ///
    /// # Panics
    /// If it does not run.
    pub async fn kill9(&mut self) {
        let mut child = self.process.take().expect("the hub runs");
        // This also waits until the process is gone.
        child.kill().await.expect("a process can be killed");
    }

    /// Asks it to stop.
    ///
    /// # Panics
    /// If it does not run.
    pub fn signal(&self) {
        self.send(Signal::TERM);
    }

    /// Lets it stand still in the middle of whatever it does, as a machine does that is short of
    /// memory or moved elsewhere: its connections stay, and nobody answers.
    ///
    /// # Panics
    /// If it does not run.
    pub fn freeze(&self) {
        self.send(Signal::STOP);
    }

    /// Lets it go on after [`Hub::freeze`].
    ///
    /// # Panics
    /// If it does not run.
    pub fn thaw(&self) {
        self.send(Signal::CONT);
    }

    /// Steps its wall clock to so many seconds ahead of the machine's; negative: behind it.
    ///
    /// # Panics
    /// If it was not set up with [`HubSetup::own_wall_clock`].
    pub fn set_wall_clock(&self, seconds: i64) {
        self.wall_clock.as_ref().expect("it has a wall clock of its own").set(seconds);
    }

    fn send(&self, signal: Signal) {
        let pid = self.pid().expect("the hub runs");
        let pid = Pid::from_raw(pid.cast_signed()).expect("a process id is not 0");
        kill_process(pid, signal).expect("the hub can be signalled");
    }

    /// Asks it to stop and waits for its end.
    ///
    /// # Panics
    /// If it does not run, or does not end within [`crate::LIMIT`].
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal();
        self.ended().await
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// If it does not run, or does not end within [`crate::LIMIT`].
    pub async fn ended(&mut self) -> ExitStatus {
        let mut child = self.process.take().expect("the hub runs");
        within("the end of the hub", child.wait()).await.expect("a child can be waited for")
    }

    /// Stops it and starts it again on the same files and ports.
    ///
    /// # Panics
    /// If it does not stop well or become ready.
    pub async fn restart(&mut self) {
        let status = self.terminate().await;
        assert!(status.success(), "{status}\n{}", self.log.tail(40));
        self.start().await;
    }

    /// Its process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref()?.id()
    }

    // --- its files ---

    /// The folder that holds all of it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The configuration's folder.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.folder().join("config")
    }

    /// The SQLite file.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.folder().join("var/pabal.db")
    }

    // --- what it says ---

    /// All it has written so far, over all its runs.
    #[must_use]
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// Waits until `part` stands in its log.
    ///
    /// # Panics
    /// If it does not within [`crate::LIMIT`].
    pub async fn wait_for_log(&self, part: &str) {
        self.log.wait_for(part).await;
    }

    // --- partners' side ---

    /// The partners' side, to be used while the hub is killed and started.
    #[must_use]
    pub fn way_in(&self) -> WayIn {
        self.way_in.clone()
    }

    /// The URL of a path of the listener for partners.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        self.way_in.url(path)
    }

    /// Posts to the listener for partners exactly this.
    ///
    /// # Panics
    /// If there is no answer.
    pub async fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Reply {
        self.way_in
            .try_post(path, headers, body)
            .await
            .unwrap_or_else(|error| panic!("{path}: no answer: {error:?}"))
    }

    /// Hands a message over to `partner/source` as a CloudEvent in binary mode, of type
    /// `test.message` and JSON unless `headers` say otherwise.
    ///
    /// # Panics
    /// If there is no answer.
    pub async fn hand_over(
        &self,
        source: &str,
        id: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Reply {
        self.try_hand_over(source, id, headers, body)
            .await
            .unwrap_or_else(|error| panic!("{source} {id}: no answer: {error:?}"))
    }

    /// [`Hub::hand_over`] to a hub that may be killed meanwhile.
    ///
    /// # Errors
    /// If there is no answer: nothing is known then.
    pub async fn try_hand_over(
        &self,
        source: &str,
        id: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> reqwest::Result<Reply> {
        self.way_in.try_hand_over(source, id, headers, body).await
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        if let Some(child) = &mut self.process {
            // It may have ended meanwhile.
            let _ = child.start_kill();
        }
        if std::thread::panicking() {
            eprintln!("--- the hub's last lines\n{}", self.log.tail(60));
        }
    }
}
