//! `cargo xtask soak NAME`: the scenarios too long for every run. They are ignored tests of
//! `tests/` whose names start with `soak_`; the list is read from the source, so it cannot be
//! out of date.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};

use crate::{
    prepare,
    process::{cargo, root, run as run_command, target_directory},
    tidy,
};

const PREFIX: &str = "soak_";

/// Prints the names.
pub(crate) fn list() -> Result<()> {
    let names = names()?;
    if names.is_empty() {
        println!("there is no soak scenario yet");
    }
    for name in names {
        println!("cargo xtask soak {name}");
    }
    Ok(())
}

/// Runs one, with its output shown.
pub(crate) fn run(name: &str, input: Option<&str>) -> Result<()> {
    let names = names()?;
    if !names.iter().any(|known| known == name) {
        bail!("there is no soak scenario `{name}`; there are: {names:?}");
    }
    let python = prepare::run_all()?;
    run_command(cargo(["build", "--release", "--package", "pabal"]))?;
    let mut test = cargo(["test", "--release", "--package", "pabal-tests"]);
    test.args(["--test", "hub", "--", "--ignored", "--nocapture"])
        .arg(format!("{PREFIX}{name}"))
        .env("PABAL_BIN", target_directory()?.join("release/pabal"))
        .env("PABAL_PYTHON", python);
    if let Some(input) = input {
        let input =
            Path::new(input).canonicalize().with_context(|| format!("{input} cannot be read"))?;
        test.env("PABAL_SOAK_INPUT", input);
    }
    run_command(test)
}

fn names() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for path in tidy::tracked_files()? {
        if path.starts_with("tests/tests/") && path.ends_with(".rs") {
            names.extend(names_in(&fs::read_to_string(root().join(path))?));
        }
    }
    Ok(names)
}

fn names_in(source: &str) -> impl Iterator<Item = String> {
    source.lines().filter_map(|line| {
        let (_, rest) = line.split_once("fn soak_")?;
        Some(rest.split_once('(')?.0.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_is_a_test_whose_name_starts_with_soak() {
        let source = "#[ignore]\nasync fn soak_demo() {\n}\nfn other() {}\n";
        assert_eq!(names_in(source).collect::<Vec<_>>(), ["demo"]);
    }
}
