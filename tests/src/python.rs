//! Python with the client libraries that no one here wrote, as `cargo xtask prepare` installs them.

use std::path::PathBuf;

use crate::{Ran, command::build_folder, run};

/// Runs a script; `arguments` are its `sys.argv[1:]`, `input` its standard input.
///
/// # Panics
/// If there is no such Python yet, or it does not end in time. A script that fails does not panic:
/// see [`Ran::ok`].
pub async fn python(script: &str, arguments: &[&str], input: &[u8]) -> Ran {
    let mut all = vec!["-c", script];
    all.extend(arguments);
    run(interpreter(), &all, input).await
}

/// The Python of the tests, with what is pinned for them and for the examples.
///
/// # Panics
/// If it is not there yet.
#[must_use]
pub fn interpreter() -> PathBuf {
    let interpreter = match std::env::var_os("PABAL_PYTHON") {
        Some(path) => path.into(),
        None => build_folder().join("../python/bin/python"),
    };
    assert!(
        interpreter.exists(),
        "{} is not there: run `cargo xtask prepare`",
        interpreter.display()
    );
    interpreter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn python_has_the_pinned_libraries() {
        let script = "\
import sys, importlib.metadata as installed
print(*(installed.version(name) for name in sys.argv[1:]), sys.stdin.read())";
        let ran = python(script, &["cloudevents", "standardwebhooks"], b"in").await;
        assert_eq!(ran.ok().trim(), "2.2.0 1.1.0 in");
    }
}
