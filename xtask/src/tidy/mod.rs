//! `cargo xtask tidy`: the rules of this tree that no compiler checks. Each check is a pure
//! function of the tree, and has a test that shows it fail.

mod architecture;
mod layers;
mod text;

use std::{fs, process::Command};

use anyhow::{Context, Result, bail, ensure};

use crate::process::{metadata, root};

/// What the checks look at.
#[derive(Debug, Default)]
struct Tree {
    files: Vec<File>,
    crates: Vec<Crate>,
}

/// One text file of the repository.
#[derive(Debug)]
struct File {
    /// From the root, with `/`.
    path: String,
    text: String,
}

/// One crate of the workspace.
#[derive(Debug)]
struct Crate {
    name: String,
    /// Its folder, from the root.
    folder: String,
    dependencies: Vec<Dependency>,
}

#[derive(Debug)]
struct Dependency {
    name: String,
    /// Only for tests, examples and benchmarks.
    dev: bool,
    /// A crate of this workspace.
    ours: bool,
}

/// Every fault of the repository, on one line each.
pub(crate) fn run() -> Result<()> {
    let tree = read()?;
    let faults = check(&tree);
    for fault in &faults {
        eprintln!("tidy: {fault}");
    }
    if !faults.is_empty() {
        bail!("tidy found {} faults", faults.len());
    }
    println!("tidy: {} files and {} crates are in order", tree.files.len(), tree.crates.len());
    Ok(())
}

fn check(tree: &Tree) -> Vec<String> {
    let mut faults = layers::check(tree);
    faults.extend(architecture::check(tree));
    faults.extend(text::check(tree));
    faults
}

/// The files git knows of or would add.
pub(crate) fn tracked_files() -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others"])
        .arg("--exclude-standard")
        .current_dir(root())
        .output()
        .context("git cannot be started")?;
    ensure!(
        output.status.success(),
        "git ls-files failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut paths: Vec<String> = String::from_utf8(output.stdout)
        .context("a file's name is not UTF-8")?
        .split_terminator('\0')
        .map(str::to_owned)
        .collect();
    paths.sort();
    paths.dedup();
    Ok(paths)
}

fn read() -> Result<Tree> {
    let mut files = Vec::new();
    for path in tracked_files()? {
        // Gone but not yet committed as gone, or not text (the sample): neither is for reading.
        if let Ok(text) = fs::read_to_string(root().join(&path)) {
            files.push(File { path, text });
        }
    }
    let metadata = metadata()?;
    let members: Vec<_> = metadata.workspace_packages();
    let ours: Vec<&str> = members.iter().map(|package| package.name.as_str()).collect();
    let crates = members
        .iter()
        .map(|package| Crate {
            name: package.name.to_string(),
            folder: package
                .manifest_path
                .parent()
                .and_then(|folder| folder.strip_prefix(root()).ok())
                .map(ToString::to_string)
                .unwrap_or_default(),
            dependencies: package
                .dependencies
                .iter()
                .map(|dependency| Dependency {
                    name: dependency.name.clone(),
                    dev: dependency.kind == cargo_metadata::DependencyKind::Development,
                    ours: ours.contains(&dependency.name.as_str()),
                })
                .collect(),
        })
        .collect();
    Ok(Tree { files, crates })
}

#[cfg(test)]
impl Tree {
    fn with_file(mut self, path: &str, text: &str) -> Self {
        let (path, text) = (path.to_owned(), text.to_owned());
        self.files.push(File { path, text });
        self
    }

    /// `dependencies`: names; `dev:` before one makes it a dev-dependency.
    fn with_crate(mut self, name: &str, folder: &str, dependencies: &[&str]) -> Self {
        self.crates.push(Crate {
            name: name.to_owned(),
            folder: folder.to_owned(),
            dependencies: dependencies
                .iter()
                .map(|dependency| {
                    let plain = dependency.trim_start_matches("dev:");
                    Dependency {
                        name: plain.to_owned(),
                        dev: plain.len() < dependency.len(),
                        ours: plain.starts_with("pabal") || plain == "xtask",
                    }
                })
                .collect(),
        });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_is_tidy() {
        let faults = check(&read().unwrap());
        assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    }
}
