//! `cargo xtask test`: prepare, build once, run everything, close with one line that counts.

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::{
    prepare,
    process::{cargo, run as run_command, succeeds, target_directory},
};

/// Runs all tests; `arguments` go to the runner, e.g. a part of a test's name.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let python = prepare::run_all()?;
    // One build for the binary and the tests: with other selections cargo would choose other
    // features and build the dependencies again.
    run_command(cargo(["build", "--workspace", "--bins", "--tests"]))?;
    let environment =
        [("PABAL_BIN", target_directory()?.join("debug/pabal")), ("PABAL_PYTHON", python)];
    if succeeds("cargo-nextest", &["nextest", "--version"]) {
        // Not run by nextest; first, so that nextest's summary is the last line.
        if arguments.is_empty() {
            run_command(with(cargo(["test", "--workspace", "--doc", "--quiet"]), &environment))?;
        }
        let mut nextest = cargo(["nextest", "run", "--workspace", "--no-fail-fast"]);
        nextest.args(arguments);
        return run_command(with(nextest, &environment));
    }
    let mut test = cargo(["test", "--workspace", "--no-fail-fast"]);
    test.args(arguments);
    run_and_sum_up(with(test, &environment))
}

fn with(mut command: Command, environment: &[(&str, PathBuf)]) -> Command {
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command
}

/// Shows the output of `cargo test` as it comes, and at the end the sum of all its executables.
fn run_and_sum_up(mut command: Command) -> Result<()> {
    eprintln!("$ cargo test --workspace");
    let mut child = command.stdout(Stdio::piped()).spawn().context("cargo cannot be started")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut total = Counts::default();
    for line in BufReader::new(output).lines() {
        let line = line?;
        if let Some(counts) = Counts::parse(&line) {
            total.add(counts);
        }
        writeln!(std::io::stdout(), "{line}")?;
    }
    let status = child.wait()?;
    let word = if status.success() { "ok" } else { "FAILED" };
    let Counts { passed, failed, ignored } = total;
    println!("\ntest result: {word}. {passed} passed; {failed} failed; {ignored} ignored");
    if !status.success() {
        bail!("tests failed ({status})");
    }
    if passed == 0 {
        bail!("no test ran");
    }
    Ok(())
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u32,
    failed: u32,
    ignored: u32,
}

impl Counts {
    /// Reads the closing line of one test executable.
    fn parse(line: &str) -> Option<Self> {
        let rest = line.strip_prefix("test result: ")?;
        let (_, rest) = rest.split_once(". ")?;
        let mut counts = Self::default();
        for part in rest.split(';') {
            let Some((number, word)) = part.trim().split_once(' ') else {
                continue;
            };
            match word {
                "passed" => counts.passed = number.parse().ok()?,
                "failed" => counts.failed = number.parse().ok()?,
                "ignored" => counts.ignored = number.parse().ok()?,
                _ => {}
            }
        }
        Some(counts)
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_lines_of_all_executables_are_summed_up() {
        let output = "\
running 2 tests
test a ... ok
test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.10s
test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0s";
        let mut total = Counts::default();
        output.lines().filter_map(Counts::parse).for_each(|counts| total.add(counts));
        let expected = Counts { passed: 6, failed: 1, ignored: 1 };
        assert_eq!(total, expected);
        assert_eq!(Counts::parse("test result of mine: 4 passed"), None);
    }

    fn ends_well(script: &str) -> bool {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run_and_sum_up(command).is_ok()
    }

    #[test]
    fn a_run_ends_well_only_if_the_runner_did_and_something_ran() {
        let passed = "echo 'test result: ok. 1 passed; 0 failed'";
        assert!(ends_well(passed));
        assert!(!ends_well(&format!("{passed}; exit 101")));
        assert!(!ends_well("echo 'test result: ok. 0 passed; 0 failed'"));
    }
}
