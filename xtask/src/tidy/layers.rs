//! Who may depend on whom: `pabal` → everything that does one job → `pabal-core`, siblings never
//! on each other. Only for its tests may a crate have a sibling (the engine's run on a real store),
//! but an adapter not even then: what it needs must be there for an adapter out of tree, too. What an
//! application links stands beside all that: it brings nothing of the hub with it.

use super::{Crate, Tree};

/// What the core may use from outside. It is what every adapter author gets with it: no
/// transport, no database, no file format, no runtime but tokio's channels and timers.
const CORE_MAY_USE: [&str; 18] = [
    "async-trait",
    "bytes",
    "futures-util",
    "humantime-serde",
    "jiff",
    "rustix",
    "schemars",
    "secrecy",
    "serde",
    "serde_json",
    "serde_path_to_error",
    "sha2",
    "strsim",
    "thiserror",
    "tokio",
    "tokio-util",
    "uuid",
    "xxhash-rust",
];

const CORE: &str = "pabal-core";
const CONFORMANCE: &str = "pabal-conformance";
const OUTBOX: &str = "pabal-outbox";

/// What the name of an example begins with.
const EXAMPLE: &str = "pabal-example-";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layer {
    /// The words and the traits.
    Core,
    /// One job each; sees the core alone.
    Job,
    /// Composes them.
    Hub,
    /// What an application links, and applications that show it: no part of the hub.
    Application,
    /// Tests and tools: sees what it likes, seen by none.
    Outside,
}

fn layer(a_crate: &Crate) -> Option<Layer> {
    Some(match (a_crate.name.as_str(), a_crate.folder.as_str()) {
        (CORE, _) => Layer::Core,
        (OUTBOX, _) => Layer::Application,
        ("pabal", _) => Layer::Hub,
        ("pabal-tests" | "xtask", _) => Layer::Outside,
        (name, folder) if folder.starts_with("docs/examples/") => {
            let expected = folder.replace("docs/examples/", EXAMPLE);
            return (name == expected).then_some(Layer::Application);
        }
        (name, folder) if folder.starts_with("adapters/") => {
            let expected = folder.replace("adapters/", "pabal-adapter-");
            return (name == expected).then_some(Layer::Job);
        }
        (name, folder) if folder.starts_with("crates/") => {
            let expected = folder.replace("crates/", "pabal-");
            return (name == expected).then_some(Layer::Job);
        }
        _ => return None,
    })
}

pub(super) fn check(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for a_crate in &tree.crates {
        let (name, folder) = (&a_crate.name, &a_crate.folder);
        let Some(layer) = layer(a_crate) else {
            faults.push(format!(
                "{folder}: `{name}` is in no layer: crates/x is called pabal-x, adapters/x \
                 pabal-adapter-x, docs/examples/x pabal-example-x"
            ));
            continue;
        };
        for dependency in &a_crate.dependencies {
            let other = dependency.name.as_str();
            if !dependency.ours {
                if layer == Layer::Core && !dependency.dev && !CORE_MAY_USE.contains(&other) {
                    faults.push(format!(
                        "{folder}: the core may not use `{other}`: every adapter would get it too"
                    ));
                }
                continue;
            }
            let allowed = match (layer, other) {
                (_, "xtask" | "pabal-tests") => false,
                (_, other) if other.starts_with(EXAMPLE) => false,
                (Layer::Outside, _) => true,
                (_, CONFORMANCE) => dependency.dev,
                // Itself only to have all of its features in its tests.
                (Layer::Application, OUTBOX) => dependency.dev || name != OUTBOX,
                (Layer::Application, _) | (_, OUTBOX) => false,
                (Layer::Hub, _) => true,
                (Layer::Job, CORE) => true,
                (Layer::Job, "pabal") | (Layer::Core, _) => false,
                (Layer::Job, _) => dependency.dev && !folder.starts_with("adapters/"),
            };
            if !allowed {
                faults.push(format!(
                    "{folder}: `{name}` may not depend on `{other}`{} (hub → one job each → core; \
                     conformance only as a dev-dependency; an application links pabal-outbox alone)",
                    if dependency.dev { ", not even for tests" } else { "" }
                ));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(name: &str, folder: &str, dependencies: &[&str]) -> usize {
        check(&Tree::default().with_crate(name, folder, dependencies)).len()
    }

    #[test]
    fn a_dependency_against_the_direction_is_found() {
        for (name, folder, dependency, expected) in [
            ("pabal", "crates/hub", "pabal-engine", 0),
            ("pabal-engine", "crates/engine", "pabal-core", 0),
            ("pabal-engine", "crates/engine", "pabal-translate", 1),
            ("pabal-engine", "crates/engine", "dev:pabal-translate", 0),
            ("pabal-engine", "crates/engine", "pabal", 1),
            ("pabal-engine", "crates/engine", "dev:pabal", 1),
            ("pabal-core", "crates/core", "pabal-engine", 1),
            ("pabal-core", "crates/core", "dev:pabal-engine", 1),
            ("pabal-adapter-rest", "adapters/rest", "pabal-core", 0),
            ("pabal-adapter-rest", "adapters/rest", "pabal-config", 1),
            ("pabal-adapter-rest", "adapters/rest", "dev:pabal-config", 1),
            ("pabal-adapter-rest", "adapters/rest", "reqwest", 0),
            ("pabal", "crates/hub", "xtask", 1),
            ("pabal", "crates/hub", "dev:pabal-tests", 1),
            ("pabal-tests", "tests", "pabal", 0),
            ("xtask", "xtask", "pabal-core", 0),
            ("pabal-outbox", "crates/outbox", "pabal-core", 1),
            ("pabal-outbox", "crates/outbox", "dev:pabal-core", 1),
            ("pabal-outbox", "crates/outbox", "dev:pabal-conformance", 0),
            ("pabal-outbox", "crates/outbox", "dev:pabal-outbox", 0),
            ("pabal", "crates/hub", "pabal-outbox", 1),
            ("pabal-adapter-rest", "adapters/rest", "pabal-outbox", 1),
            ("pabal-tests", "tests", "pabal-outbox", 0),
            ("pabal-example-axum", "docs/examples/axum", "pabal-outbox", 0),
            ("pabal-example-axum", "docs/examples/axum", "pabal-core", 1),
            ("pabal-tests", "tests", "pabal-example-axum", 1),
        ] {
            assert_eq!(faults(name, folder, &[dependency]), expected, "{name} → {dependency}");
        }
    }

    #[test]
    fn the_core_uses_nothing_outside_its_list() {
        for (dependency, expected) in [("serde", 0), ("sqlx", 1), ("http", 1), ("dev:insta", 0)] {
            let found = faults(CORE, "crates/core", &[dependency]);
            assert_eq!(found, expected, "{dependency}");
        }
    }

    #[test]
    fn conformance_is_only_ever_a_dev_dependency() {
        for (name, folder, dependency, expected) in [
            ("pabal", "crates/hub", "pabal-conformance", 1),
            ("pabal", "crates/hub", "dev:pabal-conformance", 0),
            ("pabal-store-x", "crates/store-x", "dev:pabal-conformance", 0),
            ("pabal-store-x", "crates/store-x", "pabal-conformance", 1),
        ] {
            assert_eq!(faults(name, folder, &[dependency]), expected, "{name}");
        }
    }

    #[test]
    fn a_crate_in_no_layer_is_found() {
        assert_eq!(faults("pigeon", "crates/pigeon", &[]), 1);
        assert_eq!(faults("pabal-pigeon", "adapters/pigeon", &[]), 1);
        assert_eq!(faults("pabal-pigeon", "elsewhere", &[]), 1);
        assert_eq!(faults("pigeon", "docs/examples/pigeon", &[]), 1);
        assert_eq!(faults("pabal-example-pigeon", "docs/examples/pigeon", &[]), 0);
        assert_eq!(faults("pabal-pigeon", "crates/pigeon", &[]), 0);
    }
}
