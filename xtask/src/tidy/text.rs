//! What a file may look like: a module doc first, not too long, no sleeping in tests, no words
//! that mean nothing outside of the place they came from, no version outside of the one table.

use super::{File, Tree};

const LINES_MAX: usize = 500;

/// Files that are longer, and how long they may be: this may only shrink. A file that has come
/// below the limit leaves the list.
const LONGER: &[(&str, usize)] = &[];

/// Where one machine keeps its things; split, so that this file passes its own check.
const MACHINE_PATH: &str = concat!("/wo", "rk/");

pub(super) fn check(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for file in &tree.files {
        let is_rust = file.path.ends_with(".rs");
        if is_rust {
            faults.extend(module_doc(file));
            faults.extend(length(file, LONGER));
            faults.extend(sleeping(file));
        }
        if [".rs", ".md", ".toml", ".sql", ".sh", ".yaml", ".yml"]
            .iter()
            .any(|end| file.path.ends_with(end))
        {
            faults.extend(words(file));
        }
        if file.path.ends_with("/Cargo.toml") {
            faults.extend(manifest(file));
        }
    }
    for (path, _) in LONGER {
        if !tree.files.iter().any(|file| file.path == *path) {
            faults.push(format!("{path}: gone, but still on the list of long files"));
        }
    }
    faults
}

fn module_doc(file: &File) -> Option<String> {
    let first = file.text.lines().next().unwrap_or_default();
    let has_doc = first.strip_prefix("//!").is_some_and(|rest| !rest.trim().is_empty());
    (!has_doc).then(|| format!("{}:1: does not begin with what it is for (`//! …`)", file.path))
}

fn length(file: &File, longer: &[(&str, usize)]) -> Option<String> {
    let (path, lines) = (&file.path, file.text.lines().count());
    match longer.iter().find(|(listed, _)| path == listed) {
        None if lines > LINES_MAX => Some(format!(
            "{path}: {lines} lines, of {LINES_MAX} at most: take out a part that stands alone"
        )),
        Some((_, allowed)) if lines > *allowed => Some(format!(
            "{path}: {lines} lines, of {allowed} on the list of long files: it may only shrink"
        )),
        Some(_) if lines <= LINES_MAX => {
            Some(format!("{path}: short again: take it off the list of long files"))
        }
        _ => None,
    }
}

/// Tests wait for the event. The rest of the code is clippy's to check.
fn sleeping(file: &File) -> Vec<String> {
    let all_tests = file.path.starts_with("tests/") || file.path.contains("/tests/");
    let mut in_tests = all_tests;
    let mut faults = Vec::new();
    for (number, line) in file.text.lines().enumerate() {
        in_tests |= line.trim_start().starts_with("#[cfg(test)]");
        let sleeps =
            ["time", "thread"].iter().any(|module| line.contains(&format!("{module}::sleep")));
        if in_tests && sleeps {
            let line = number + 1;
            faults.push(format!(
                "{}:{line}: a test sleeps: wait for the event, or pass a ManualClock",
                file.path
            ));
        }
    }
    faults
}

fn words(file: &File) -> Vec<String> {
    if file.path.split('/').any(|part| part == "vectors") {
        return Vec::new();
    }
    let mut faults = Vec::new();
    for (number, line) in file.text.lines().enumerate() {
        let mut fault = |what: &str| {
            let line = number + 1;
            faults.push(format!("{}:{line}: {what}", file.path));
        };
        if line.contains(MACHINE_PATH) {
            fault("a path of one machine");
        }
        // With `%` and quotes, because encoded bytes and a partner's own codes look the same.
        let is_part = |c: char| c.is_alphanumeric() || "_-%\"".contains(c);
        if line.split(|c| !is_part(c)).any(is_rule_number) {
            fault("a rule by its number: say the rule");
        }
    }
    faults
}

/// A letter and one or two digits, as rules are numbered on pages that readers do not have.
fn is_rule_number(word: &str) -> bool {
    let is_code = word.len() > 2 && word.starts_with('"') && word.ends_with('"');
    let word = if is_code { word } else { word.trim_matches('"') };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is = |rest: Option<&str>, lengths: &[usize]| {
        rest.is_some_and(|rest| digits(rest) && lengths.contains(&rest.len()))
    };
    is(word.strip_prefix('E'), &[1, 2]) || is(word.strip_prefix("O-"), &[2])
}

/// Versions stand in the root's table, lints too.
fn manifest(file: &File) -> Vec<String> {
    let path = &file.path;
    let mut faults = Vec::new();
    let (mut section, mut lints) = (String::new(), false);
    for (number, line) in file.text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']).to_owned();
            continue;
        }
        let inherits = line.contains("workspace = true");
        lints |= section == "lints" && inherits;
        let is_entry = line.contains('=') && !line.starts_with('#');
        if section.ends_with("dependencies") && is_entry && !inherits {
            let line = number + 1;
            faults.push(format!(
                "{path}:{line}: versions stand in the root's Cargo.toml; write `workspace = true`"
            ));
        }
    }
    if !lints {
        faults.push(format!("{path}: `[lints] workspace = true` is missing"));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(path: &str, text: &str) -> Vec<String> {
        check(&Tree::default().with_file(path, text))
    }

    #[test]
    fn a_file_without_a_module_doc_is_found() {
        assert!(faults("crates/a/src/lib.rs", "//! What it is.\n").is_empty());
        for text in ["", "//!\n", "use std::fs;\n", "// note\n//! late\n"] {
            assert_eq!(faults("crates/a/src/lib.rs", text).len(), 1, "{text:?}");
        }
    }

    #[test]
    fn a_file_that_is_too_long_or_grows_is_found() {
        let file = |lines: usize| File { path: "a.rs".into(), text: "//! a\n".repeat(lines) };
        assert!(length(&file(500), &[]).is_none());
        assert!(length(&file(501), &[]).is_some());
        assert!(length(&file(600), &[("a.rs", 600)]).is_none());
        assert!(length(&file(601), &[("a.rs", 600)]).is_some(), "grew");
        assert!(length(&file(499), &[("a.rs", 600)]).is_some(), "short");
    }

    #[test]
    fn a_test_that_sleeps_is_found() {
        let sleeping = format!("//! a\ntokio::time::{}(wait).await;\n", "sleep");
        assert_eq!(faults("tests/tests/hub/a.rs", &sleeping).len(), 1);
        assert_eq!(faults("crates/a/tests/a.rs", &sleeping).len(), 1);
        let inner = format!("//! a\n#[cfg(test)]\nmod tests {{\nthread::{}();\n", "sleep");
        assert_eq!(faults("crates/a/src/a.rs", &inner).len(), 1);
        assert!(faults("tests/a.rs", "//! a\nclock.sleep(wait).await;\n").is_empty());
    }

    #[test]
    fn a_rule_number_or_a_machine_path_is_found() {
        for (text, expected) in [
            (format!("see {}14.", 'E'), 1),
            (format!("(rule {}5)", 'E'), 1),
            (format!("case {}-17:", 'O'), 1),
            (format!("in {}main", MACHINE_PATH), 1),
            (format!("\"{}14 says\"", 'E'), 1),
            ("E409, 1E10, OE12, E_1, %E9, O-1, IF-WEL-001".to_owned(), 0),
            (format!("{{\"code\":\"{}1\"}}", 'E'), 0),
        ] {
            assert_eq!(faults("docs/a.md", &text).len(), expected, "{text}");
        }
        let vector = format!("{}14", 'E');
        assert!(faults("crates/a/vectors/a.toml", &vector).is_empty());
    }

    #[test]
    fn a_version_or_lint_outside_of_the_one_table_is_found() {
        let in_order = "[lints]\nworkspace = true\n[dependencies]\na.workspace = true\n";
        assert!(faults("crates/a/Cargo.toml", in_order).is_empty());
        let own_version = format!("{in_order}b = \"1\"\n");
        assert_eq!(faults("crates/a/Cargo.toml", &own_version).len(), 1);
        let no_lints = "[dependencies]\na = { workspace = true, features = [] }\n";
        assert_eq!(faults("crates/a/Cargo.toml", no_lints).len(), 1);
    }
}
