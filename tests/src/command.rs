//! Programs run to their end, and what they said.

use std::{
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use tokio::{io::AsyncWriteExt, process::Command};

use crate::wait::within_limit;

/// What a program that ran to its end left.
#[derive(Debug, Clone)]
pub struct Ran {
    /// What was run.
    pub command: String,
    /// Its exit code; -1 if a signal ended it.
    pub code: i32,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

impl Ran {
    /// Its standard output, if it ended well.
    ///
    /// # Panics
    /// If it did not.
    #[track_caller]
    pub fn ok(&self) -> &str {
        self.exits_with(0)
    }

    /// Its standard output, if it ended with this exit code.
    ///
    /// # Panics
    /// If it did not.
    #[track_caller]
    pub fn exits_with(&self, code: i32) -> &str {
        assert_eq!(
            self.code, code,
            "`{}` ended with {}\n--- stdout\n{}\n--- stderr\n{}",
            self.command, self.code, self.stdout, self.stderr
        );
        &self.stdout
    }

    /// Its standard output as JSON, if it ended well.
    ///
    /// # Panics
    /// If it did not, or wrote something else.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        self.json_with(0)
    }

    /// Its standard output as JSON, if it ended with this exit code.
    ///
    /// # Panics
    /// If it did not, or wrote something else.
    #[track_caller]
    pub fn json_with(&self, code: i32) -> serde_json::Value {
        serde_json::from_str(self.exits_with(code)).unwrap_or_else(|error| {
            panic!("`{}` wrote no JSON: {error}\n{}", self.command, self.stdout)
        })
    }
}

/// Runs a program to its end, with `input` as its standard input.
///
/// # Panics
/// If it cannot be started (`cargo xtask prepare` installs what the tests need) or does not end within
/// [`crate::LIMIT`].
pub async fn run(program: impl AsRef<Path>, arguments: &[&str], input: &[u8]) -> Ran {
    let mut command = Command::new(program.as_ref());
    command.args(arguments);
    finish(command, input).await
}

pub(crate) async fn finish(command: Command, input: &[u8]) -> Ran {
    finish_within(crate::LIMIT, command, input).await
}

pub(crate) async fn finish_within(limit: Duration, mut command: Command, input: &[u8]) -> Ran {
    let shown = shown(&command);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|error| {
            panic!("`{shown}` cannot be started: {error}; `cargo xtask prepare` installs it")
        });
    let mut stdin = child.stdin.take().expect("it is piped");
    let (_, output) = within_limit(&format!("the end of `{shown}`"), limit, async {
        tokio::join!(
            async {
                // A program that does not read its input closes it, and that is its right.
                let _ = stdin.write_all(input).await;
                drop(stdin);
            },
            child.wait_with_output(),
        )
    })
    .await;
    let Output { status, stdout, stderr } = output.expect("the output of a child can be read");
    Ran {
        command: shown,
        code: status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

fn shown(command: &Command) -> String {
    let command = command.as_std();
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|part| part.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// A path of this repository, e.g. `repository("config")`.
#[must_use]
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this package lies in the repository")
        .join(path)
}

/// A binary of this workspace that was built beside this test.
///
/// # Panics
/// If it was not built.
#[must_use]
pub fn built(binary: &str) -> PathBuf {
    let path = build_folder().join(binary);
    assert!(
        path.exists(),
        "{} is not there: run `cargo build -p {binary}`, or all tests by `cargo xtask test`",
        path.display()
    );
    path
}

/// The folder of the profile this test was built in, e.g. `target/debug`.
pub(crate) fn build_folder() -> PathBuf {
    let executable = std::env::current_exe().expect("a test knows its own executable");
    let folder = executable.parent().expect("a file lies in a folder");
    // Documentation tests run from another place than the rest, but they run nothing.
    match folder.file_name() {
        Some(name) if name == "deps" => folder.parent().expect("`deps` lies in a folder").into(),
        _ => folder.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_gets_its_input_and_its_end_is_reported() {
        let ran = run("sh", &["-c", "cat; echo no >&2; exit 3"], b"[1]").await;
        assert_eq!((ran.exits_with(3), &*ran.stderr), ("[1]", "no\n"));
        let ran = run("cat", &[], b"[1]").await;
        assert_eq!(ran.json(), serde_json::json!([1]));
    }

    #[tokio::test]
    #[should_panic(expected = "`false` ended with 1")]
    async fn a_bad_end_fails_the_test() {
        run("false", &[], b"").await.ok();
    }
}
