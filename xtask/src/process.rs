//! Running other programs from the root of the repository.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the root of the repository")
}

/// The cargo that runs this.
pub(crate) fn cargo<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    // `cargo run` set these for us. Build scripts that watch them would run again, and with them
    // everything behind them, each time a build changes between this program and the shell.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs it to its end with its output shown.
pub(crate) fn run(mut command: Command) -> Result<()> {
    let shown = show(&command);
    eprintln!("$ {shown}");
    let status = command.status().with_context(|| format!("`{shown}` cannot be started"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status})");
    }
    Ok(())
}

/// Whether it runs and ends well; says nothing.
pub(crate) fn succeeds(program: impl AsRef<OsStr>, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Where cargo puts what it builds.
pub(crate) fn target_directory() -> Result<PathBuf> {
    Ok(metadata()?.target_directory.into())
}

/// The workspace as cargo sees it, without the packages from outside.
pub(crate) fn metadata() -> Result<cargo_metadata::Metadata> {
    cargo_metadata::MetadataCommand::new()
        .current_dir(root())
        .no_deps()
        .other_options(["--offline".to_owned()])
        .exec()
        .context("cargo metadata failed")
}

fn show(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|part| part.to_string_lossy())
        .map(|part| match part.rsplit_once('/') {
            Some((_, name)) if part.starts_with('/') && name == "cargo" => name.to_owned(),
            _ => part.into_owned(),
        })
        .collect::<Vec<_>>()
        .join(" ")
}
