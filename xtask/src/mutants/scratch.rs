//! A copy of the sources that mutations may change.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::list::Mutation;
use crate::{
    process::{root, target_directory},
    tidy::tracked_files,
};

/// The copy, and where it is built: apart from the builds of the working tree, and kept, so that
/// the next run builds only what has changed.
#[derive(Debug)]
pub(super) struct Scratch {
    pub sources: PathBuf,
    pub target: PathBuf,
}

impl Scratch {
    /// Brings the copy to what the working tree is now. Files that are the same are left alone:
    /// cargo would build them again.
    pub(super) fn fill() -> Result<Self> {
        let folder = target_directory()?.join("mutants");
        let scratch = Self { sources: folder.join("sources"), target: folder.join("target") };
        let files: BTreeSet<String> = tracked_files()?.into_iter().collect();
        for file in &files {
            let Ok(content) = fs::read(root().join(file)) else {
                continue; // gone, and not yet committed as gone
            };
            let copy = scratch.sources.join(file);
            if fs::read(&copy).is_ok_and(|there| there == content) {
                continue;
            }
            if let Some(parent) = copy.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(&copy, content)
                .with_context(|| format!("{} cannot be written", copy.display()))?;
        }
        scratch.remove_others(&scratch.sources, &files)?;
        Ok(scratch)
    }

    /// Removes what is no longer in the working tree: a module left behind would be built.
    fn remove_others(&self, folder: &Path, files: &BTreeSet<String>) -> Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                self.remove_others(&path, files)?;
                continue;
            }
            let name = path.strip_prefix(&self.sources)?.to_string_lossy();
            let wanted = files.contains(&*name) && root().join(&*name).exists();
            if !wanted && name != "Cargo.lock" {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Makes the mistake in the copy.
    pub(super) fn apply(&self, mutation: &Mutation) -> Result<Changed> {
        let path = self.sources.join(&mutation.file);
        let text = fs::read_to_string(&path)
            .with_context(|| format!("{}: {} cannot be read", mutation.name, mutation.file))?;
        let mutated = mutation.applied(&text)?;
        fs::write(&path, mutated)?;
        Ok(Changed { path, text })
    }
}

/// A file of the copy with a mistake in it.
#[derive(Debug)]
pub(super) struct Changed {
    path: PathBuf,
    text: String,
}

impl Changed {
    /// Puts back what stood there. A run that ends before is mended by the next one's copying.
    pub(super) fn restore(self) -> Result<()> {
        fs::write(&self.path, &self.text)
            .with_context(|| format!("{} cannot be written", self.path.display()))
    }
}
