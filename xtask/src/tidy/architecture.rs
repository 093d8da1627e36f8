//! ARCHITECTURE.md and the tree say the same: every crate is on the map, every path on the map is
//! there, and every invariant names a test that exists.

use super::Tree;

const PAGE: &str = "ARCHITECTURE.md";
const BEGIN: &str = "<!-- invariants -->";
const END: &str = "<!-- /invariants -->";

pub(super) fn check(tree: &Tree) -> Vec<String> {
    let Some(page) = tree.files.iter().find(|file| file.path == PAGE) else {
        return vec![format!("{PAGE} is missing")];
    };
    let quoted = quoted(&page.text);
    let mut faults = Vec::new();
    for a_crate in &tree.crates {
        for on_the_map in [&a_crate.name, &a_crate.folder] {
            if !quoted.contains(&on_the_map.as_str()) {
                faults.push(format!("{PAGE}: `{on_the_map}` is not on the map"));
            }
        }
    }
    for path in quoted {
        let is_path = path.starts_with("crates/") || path.starts_with("adapters/");
        if is_path && !exists(tree, path.trim_end_matches('/')) {
            faults.push(format!("{PAGE}: `{path}` does not exist"));
        }
    }
    faults.extend(invariants(tree, &page.text));
    faults
}

fn exists(tree: &Tree, path: &str) -> bool {
    tree.files.iter().any(|file| {
        file.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// Each row of the marked table has the tests that hold it in its last column.
fn invariants(tree: &Tree, page: &str) -> Vec<String> {
    let table =
        page.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END)).map(|(table, _)| table);
    let Some(table) = table else {
        return vec![format!("{PAGE}: no table between {BEGIN} and {END}")];
    };
    let mut faults = Vec::new();
    let rows = table.lines().map(str::trim).filter(|line| line.starts_with('|')).skip(2); // the header and the line under it
    for row in rows {
        let mut cells = row.trim_matches('|').rsplit('|');
        let tests = quoted(cells.next().unwrap_or_default());
        let invariant = cells.next().unwrap_or_default().trim();
        if tests.is_empty() {
            faults.push(format!("{PAGE}: no test holds \"{invariant}\""));
        }
        for test in tests {
            if !is_test(tree, test) {
                faults.push(format!("{PAGE}: there is no test `{test}` (\"{invariant}\")"));
            }
        }
    }
    faults
}

fn is_test(tree: &Tree, name: &str) -> bool {
    let (plain, generic) = (format!("fn {name}("), format!("fn {name}<"));
    tree.files
        .iter()
        .filter(|file| file.path.ends_with(".rs"))
        .any(|file| file.text.contains(&plain) || file.text.contains(&generic))
}

/// Everything between single backticks; fenced blocks are left out.
fn quoted(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            found.extend(line.split('`').skip(1).step_by(2));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE_IN_ORDER: &str = "\
`pabal-core` in `crates/core`, see `crates/core/src/lib.rs`.
<!-- invariants -->
| never | held by |
|---|---|
| the core opens a file | `core_is_pure` |
<!-- /invariants -->";

    fn tree(page: &str) -> Tree {
        Tree::default()
            .with_crate("pabal-core", "crates/core", &[])
            .with_file("crates/core/src/lib.rs", "#[test]\nfn core_is_pure() {}")
            .with_file(PAGE, page)
    }

    #[test]
    fn a_page_that_fits_the_tree_passes() {
        assert_eq!(check(&tree(PAGE_IN_ORDER)), Vec::<String>::new());
    }

    #[test]
    fn a_crate_that_is_not_on_the_map_is_found() {
        let tree = tree(PAGE_IN_ORDER).with_crate("pabal-new", "crates/new", &[]);
        assert_eq!(
            check(&tree),
            [
                "ARCHITECTURE.md: `pabal-new` is not on the map",
                "ARCHITECTURE.md: `crates/new` is not on the map",
            ]
        );
        assert_eq!(check(&Tree::default()), ["ARCHITECTURE.md is missing"]);
    }

    #[test]
    fn a_path_on_the_map_that_is_gone_is_found() {
        let page = PAGE_IN_ORDER.replace("src/lib.rs", "src/gone.rs");
        assert_eq!(
            check(&tree(&page)),
            ["ARCHITECTURE.md: `crates/core/src/gone.rs` does not exist"]
        );
    }

    #[test]
    fn an_invariant_without_an_existing_test_is_found() {
        let renamed = PAGE_IN_ORDER.replace("`core_is_pure`", "`core_is_pure`, `core_is`");
        assert_eq!(
            check(&tree(&renamed)),
            ["ARCHITECTURE.md: there is no test `core_is` (\"the core opens a file\")"]
        );
        let none = PAGE_IN_ORDER.replace("`core_is_pure`", "");
        assert_eq!(
            check(&tree(&none)),
            ["ARCHITECTURE.md: no test holds \"the core opens a file\""]
        );
        let unmarked = PAGE_IN_ORDER.replace(END, "");
        assert_eq!(check(&tree(&unmarked)).len(), 1);
    }
}
