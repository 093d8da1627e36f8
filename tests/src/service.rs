//! A program that serves HTTP and is neither the hub nor ours to answer for: an application beside it.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::process::{Child, Command};

use crate::{client, free_port, log::Log, until};

/// An application, and its process while it runs. Gone when it is dropped; a test that fails prints
/// the last of what it said.
#[derive(Debug)]
pub struct Service {
    program: PathBuf,
    arguments: Vec<OsString>,
    folder: PathBuf,
    environment: Vec<(String, String)>,
    port: u16,
    client: reqwest::Client,
    log: Log,
    process: Option<Child>,
}

impl Service {
    /// An application that is not started yet. It listens where its variable `LISTEN` says, and
    /// answers any request once it is ready.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>, arguments: &[&str], folder: &Path) -> Self {
        let port = free_port();
        Self {
            program: program.into(),
            arguments: arguments.iter().map(Into::into).collect(),
            folder: folder.to_owned(),
            environment: vec![("LISTEN".to_owned(), format!("127.0.0.1:{port}"))],
            port,
            client: client(),
            log: Log::default(),
            process: None,
        }
    }

    /// One more environment variable.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The URL of a path of it.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Starts it and waits until it answers.
    ///
    /// # Panics
    /// If it runs already, or does not answer; the message has what it said.
    pub async fn start(&mut self) {
        assert!(self.process.is_none(), "it runs already");
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "{} cannot be started: {error}; `cargo xtask test` builds and installs it",
                    self.program.display()
                )
            });
        if let Some(stdout) = child.stdout.take() {
            self.log.follow(stdout);
        }
        if let Some(stderr) = child.stderr.take() {
            self.log.follow(stderr);
        }
        let ended = until("an application that answers", async || {
            if let Some(status) = child.try_wait().expect("a child can be asked") {
                return Some(Some(status));
            }
            let answer = self.client.get(self.url("/")).send().await;
            answer.is_ok().then_some(None)
        })
        .await;
        if let Some(status) = ended {
            panic!("{} ended with {status}\n{}", self.program.display(), self.log.tail(40));
        }
        self.process = Some(child);
    }

    /// Kills it in the middle of whatever it does.
    ///
    /// # Panics
    /// If it does not run.
    pub async fn kill9(&mut self) {
        let mut child = self.process.take().expect("it runs");
        // This also waits until the process is gone.
        child.kill().await.expect("a process can be killed");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- {}, its last lines\n{}", self.program.display(), self.log.tail(30));
        }
    }
}
