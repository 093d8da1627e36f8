//! The configuration as an operator meets it: whole directories in, a plan or a text out.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod broken;
mod plan;
mod secrets;
mod shipped;

use std::path::PathBuf;

use pabal_config::{AdapterNames, Config, Faults, load};

/// A hub without a fault.
const HUB: &str = "name = \"central\"\n";

/// A partner without a fault.
const WELFARE: &str = r#"name = "Welfare"

[destination.applications]
takes = ["application.*"]

[destination.applications.rest]
url = "http://127.0.0.1:9001/applications"

[source.decisions.rest]
auth = "none"
"#;

/// A configuration directory that is removed at the end.
struct Directory(tempfile::TempDir);

impl Directory {
    fn with(files: &[(&str, &str)]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let directory = Self(root);
        std::fs::create_dir_all(directory.path().join("partners")).unwrap();
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        directory
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("config")
    }

    fn load(&self) -> Result<Config, Faults> {
        self.load_with(None, &[])
    }

    fn load_with(
        &self,
        profile: Option<&str>,
        environment: &[(&str, &str)],
    ) -> Result<Config, Faults> {
        let environment =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        load(&self.path(), profile, environment, &adapters())
    }

    /// The faults as text, with paths as an operator at the root of the repository sees them.
    fn faults(&self) -> String {
        self.plain(&self.load().unwrap_err())
    }

    fn plain(&self, text: &impl ToString) -> String {
        text.to_string().replace(&format!("{}/", self.0.path().display()), "")
    }
}

/// One adapter whose keys are known, and one whose keys are not.
fn adapters() -> AdapterNames {
    AdapterNames::named(["pigeon"]).with_keys(
        "rest",
        &["url", "method", "headers", "auth", "timeout", "answer"],
        &["auth", "allow", "type", "body_max"],
    )
}
