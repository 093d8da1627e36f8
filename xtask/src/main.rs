//! What a developer runs: `cargo xtask test | ci | tidy | mutants | prepare | soak [NAME] | bench [NAME] | sample`.

#![expect(clippy::print_stdout, reason = "a command line tool talks on stdout")]

mod bench;
mod mutants;
mod prepare;
mod process;
mod sample;
mod soak;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
cargo xtask test [ARGS]     install what the tests need, build, run all tests; ARGS go to the runner
cargo xtask ci              fmt, clippy, tidy, test: the gate
cargo xtask tidy            the rules of this tree that no compiler checks
cargo xtask mutants [NAME…]  whether the conformance kit finds the mistakes of xtask/mutants
cargo xtask mutants --list  which mistakes, and the cases that must find them
cargo xtask prepare         only install what the tests need
cargo xtask soak            which long scenarios there are
cargo xtask soak NAME [--input FILE]
                            run one of them at full size, in release mode
cargo xtask bench           what can be measured
cargo xtask bench NAME [PART]
                            measure it in release mode; everything it claims is a ratio
cargo xtask sample          write the sample input of the demo again";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["test", rest @ ..] => test::run(rest),
        ["ci"] => {
            process::run(process::cargo(["fmt", "--check"]))?;
            process::run(process::cargo([
                "clippy",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ]))?;
            tidy::run()?;
            test::run(&[])
        }
        ["tidy"] => tidy::run(),
        ["mutants", rest @ ..] => mutants::run(rest),
        ["prepare"] => {
            println!("the tests' Python: {}", prepare::run_all()?.display());
            Ok(())
        }
        ["soak"] => soak::list(),
        ["soak", name] => soak::run(name, None),
        ["soak", name, "--input", input] => soak::run(name, Some(input)),
        ["bench"] => bench::list(),
        ["bench", name, rest @ ..] => bench::run(name, rest),
        ["sample"] => sample::run(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        [] => bail!("say what to do\n\n{USAGE}"),
        other => bail!("`{}` is not one of the commands\n\n{USAGE}", other.join(" ")),
    }
}
