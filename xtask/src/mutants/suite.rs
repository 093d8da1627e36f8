//! Building and running the conformance test of one crate, and reading what became of its cases.

use std::{
    io::{BufReader, Read},
    path::PathBuf,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use cargo_metadata::Message;

use super::{list::List, scratch::Scratch};
use crate::process::cargo;

/// No run takes this long: the waits of cases are bounded, and those that fail at their bounds
/// are few.
const RUN_LIMIT: Duration = Duration::from_secs(400);

/// The conformance test of a list, in the copy of the sources.
#[derive(Debug)]
pub(super) struct Suite<'a> {
    list: &'a List,
    scratch: &'a Scratch,
}

/// What came of building and running it.
#[derive(Debug)]
pub(super) enum Outcome {
    DoesNotBuild(String),
    Hangs,
    Ran(Ran),
}

/// What a run said.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ran {
    /// The executable ended well.
    pub passed: bool,
    pub held: Vec<String>,
    pub failed: Vec<String>,
    /// The last lines, for when no case says what is wrong.
    pub end: String,
}

impl<'a> Suite<'a> {
    pub(super) fn of(list: &'a List, scratch: &'a Scratch) -> Self {
        Self { list, scratch }
    }

    /// Builds and runs it.
    pub(super) fn run(&self) -> Result<Outcome> {
        let (executable, folder) = match self.build()? {
            Ok(built) => built,
            Err(why) => return Ok(Outcome::DoesNotBuild(why)),
        };
        let mut command = Command::new(executable);
        command.current_dir(folder).env("RUST_BACKTRACE", "0").arg("--show-output");
        if !self.list.tests.is_empty() {
            command.arg(&self.list.tests);
        }
        Ok(match output(command)? {
            Some((passed, text)) => Outcome::Ran(Ran::read(passed, &text)),
            None => Outcome::Hangs,
        })
    }

    /// The test executable and the folder of its crate, or what the compiler says.
    fn build(&self) -> Result<Result<(PathBuf, PathBuf), String>> {
        let List { package, test, .. } = self.list;
        let mut command =
            cargo(["test", "--no-run", "--quiet", "--package", package, "--test", test]);
        command
            .arg("--message-format=json-render-diagnostics")
            .current_dir(&self.scratch.sources)
            .env("CARGO_TARGET_DIR", &self.scratch.target);
        let built = command.output().context("cargo cannot be started")?;
        if !built.status.success() {
            let text = String::from_utf8_lossy(&built.stderr);
            let error = text.lines().find(|line| line.starts_with("error"));
            return Ok(Err(error.unwrap_or(text.trim()).to_owned()));
        }
        for message in Message::parse_stream(&*built.stdout) {
            if let Message::CompilerArtifact(artifact) = message?
                && artifact.target.is_test()
                && artifact.target.name == *test
                && let Some(executable) = artifact.executable
            {
                let folder = artifact.manifest_path.parent().context("a manifest has a folder")?;
                return Ok(Ok((executable.into(), folder.into())));
            }
        }
        Ok(Err(format!("cargo built no test `{test}` of {package}")))
    }
}

/// Whether it ended well, and what it said; `None` if it had to be killed.
fn output(mut command: Command) -> Result<Option<(bool, String)>> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("the test cannot be started")?;
    let (done, ended) = mpsc::channel();
    let pipes: [Box<dyn Read + Send>; 2] = [
        Box::new(child.stdout.take().context("it has an output")?),
        Box::new(child.stderr.take().context("it has an output")?),
    ];
    for pipe in pipes {
        let done = done.clone();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            // What came before an error is all there is to read.
            let _ = BufReader::new(pipe).read_to_end(&mut bytes);
            let _ = done.send(String::from_utf8_lossy(&bytes).into_owned());
        });
    }
    let mut text = String::new();
    for _ in 0..2 {
        match ended.recv_timeout(RUN_LIMIT) {
            Ok(part) => text.push_str(&part),
            Err(_) => {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
        }
    }
    Ok(Some((child.wait()?.success(), text)))
}

impl Ran {
    /// Reads the lines that a kit's `check` prints.
    fn read(passed: bool, text: &str) -> Self {
        let mut ran = Self { passed, ..Self::default() };
        for line in text.lines() {
            if let Some(case) = case(line, "holds ") {
                ran.held.push(case);
            } else if let Some(case) = case(line, "FAILED ") {
                ran.failed.push(case);
            }
        }
        // Where several tests run the same cases, one of them failing is a failure.
        for cases in [&mut ran.held, &mut ran.failed] {
            cases.sort();
            cases.dedup();
        }
        let last: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        ran.end = last[last.len().saturating_sub(5)..].join(" | ");
        ran
    }
}

/// The name of a case in a line that begins like this.
fn case(line: &str, begins: &str) -> Option<String> {
    let name = line.strip_prefix(begins)?.trim_start();
    let name = name.split(':').next().unwrap_or_default();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (!name.is_empty() && name.chars().all(is_name)).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kit_prints_is_read() {
        let text = "\
test one ... FAILED
holds           a_b
does not apply  c (it cannot: never)
FAILED          d_e: assertion failed
FAILED          d_e: in another test
FAILED          f
 left: 1
test result: FAILED. 0 passed; 1 failed
";
        let ran = Ran::read(false, text);
        assert_eq!((ran.held, ran.failed), (vec!["a_b".into()], vec!["d_e".into(), "f".into()]));
        assert!(ran.end.ends_with("0 passed; 1 failed"));
    }

    #[test]
    fn output_and_end_of_a_program_are_kept() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let (passed, text) = output(command).unwrap().unwrap();
        assert!(!passed && text.contains("out") && text.contains("err"));
    }
}
