//! The mutations: one file of `xtask/mutants/` per conformance test that is to catch them.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::process::root;

const FOLDER: &str = "xtask/mutants";

/// The mutations of one crate, and the test that runs its conformance cases.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct List {
    /// The name of its file.
    #[serde(skip)]
    pub name: String,
    /// `store` or `adapter`.
    pub kind: String,
    /// The crate.
    pub package: String,
    /// The test executable (`--test`).
    pub test: String,
    /// What the names of its tests begin with that run cases; empty: all of them.
    #[serde(default)]
    pub tests: String,
    #[serde(rename = "mutation")]
    pub mutations: Vec<Mutation>,
}

/// One mistake.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mutation {
    /// What is wrong then.
    pub name: String,
    /// Where, from the root.
    pub file: String,
    /// What stands there, exactly once.
    pub find: String,
    /// What stands there instead.
    pub replace: String,
    /// The cases that must fail.
    pub caught_by: Vec<String>,
}

impl Mutation {
    /// The text with the mistake in it.
    pub(super) fn applied(&self, text: &str) -> Result<String> {
        let found = text.matches(&self.find).count();
        ensure!(
            found == 1,
            "{}: its text stands {found} times in {}, and must once:\n{}",
            self.name,
            self.file,
            self.find
        );
        Ok(text.replacen(&self.find, &self.replace, 1))
    }
}

/// All lists, in the order of their names.
pub(super) fn read() -> Result<Vec<List>> {
    let folder = root().join(FOLDER);
    let entries = fs::read_dir(&folder).with_context(|| format!("{FOLDER} cannot be read"))?;
    let mut lists = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let text = fs::read_to_string(&path)?;
            lists.push(parse(&name, &text)?);
        }
    }
    lists.sort_by(|a, b| a.name.cmp(&b.name));
    let mut names = BTreeSet::new();
    for mutation in lists.iter().flat_map(|list| &list.mutations) {
        ensure!(names.insert(&mutation.name), "`{}` stands twice in {FOLDER}", mutation.name);
    }
    Ok(lists)
}

fn parse(name: &str, text: &str) -> Result<List> {
    let list: List = toml::from_str(text).with_context(|| format!("{FOLDER}/{name}.toml"))?;
    for mutation in &list.mutations {
        ensure!(!mutation.caught_by.is_empty(), "{}: no case is named", mutation.name);
        ensure!(mutation.find != mutation.replace, "{}: changes nothing", mutation.name);
    }
    Ok(List { name: name.to_owned(), ..list })
}

/// What these names stand for: lists, or single mutations of them. Everything without a name.
pub(super) fn choose(lists: Vec<List>, names: &[&str]) -> Result<Vec<List>> {
    for name in names {
        let known =
            |list: &List| list.name == *name || list.mutations.iter().any(|it| it.name == *name);
        ensure!(lists.iter().any(known), "`{name}` is no mutation and no list; see --list");
    }
    let chosen = lists.into_iter().filter_map(|mut list| {
        if !names.is_empty() && !names.contains(&&*list.name) {
            list.mutations.retain(|mutation| names.contains(&&*mutation.name));
        }
        (!list.mutations.is_empty()).then_some(list)
    });
    Ok(chosen.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutation_still_finds_its_text() {
        for mutation in read().unwrap().iter().flat_map(|list| &list.mutations) {
            let text = fs::read_to_string(root().join(&mutation.file)).unwrap();
            mutation.applied(&text).unwrap();
        }
    }

    #[test]
    fn every_named_case_is_in_the_kit() {
        let is_kit = |path: &String| path.starts_with("crates/conformance/src/");
        let files = crate::tidy::tracked_files().unwrap().into_iter().filter(is_kit);
        let kit: String =
            files.filter_map(|path| fs::read_to_string(root().join(path)).ok()).collect();
        for mutation in read().unwrap().iter().flat_map(|list| &list.mutations) {
            for case in &mutation.caught_by {
                let is_there = kit.contains(&format!("fn {case}("));
                assert!(is_there, "{}: there is no case `{case}`", mutation.name);
            }
        }
    }

    #[test]
    fn there_are_enough_of_every_kind() {
        let lists = read().unwrap();
        for kind in ["store", "adapter"] {
            let of_kind = lists.iter().filter(|list| list.kind == kind);
            assert!(of_kind.clone().count() > 0, "{kind}");
            for list in of_kind {
                assert!(list.mutations.len() >= 8, "{} of {}", list.mutations.len(), list.name);
            }
        }
    }

    const LIST: &str = r#"
        kind = "store"
        package = "pabal-store-x"
        test = "conformance"
        [[mutation]]
        name = "a"
        file = "a.rs"
        find = "one"
        replace = "two"
        caught_by = ["it_is_one"]
        [[mutation]]
        name = "b"
        file = "a.rs"
        find = "x"
        replace = ""
        caught_by = ["there_is_an_x"]
    "#;

    #[test]
    fn a_text_must_be_found_once() {
        let list = parse("x", LIST).unwrap();
        assert_eq!(list.mutations[0].applied("is one.").unwrap(), "is two.");
        for text in ["none", "one and one"].map(|text| text.replace("none", "-")) {
            let fault = list.mutations[0].applied(&text).unwrap_err().to_string();
            assert!(fault.contains("times in a.rs"), "{fault}");
        }
        assert!(parse("x", &LIST.replace("two", "one")).is_err());
        assert!(parse("x", &LIST.replace("[\"it_is_one\"]", "[]")).is_err());
    }

    #[test]
    fn names_are_of_mutations_or_of_lists() {
        let chosen = |names: &[&str]| {
            let lists = choose(vec![parse("x", LIST).unwrap()], names)?;
            let mutations = lists.into_iter().flat_map(|list| list.mutations);
            anyhow::Ok(mutations.map(|mutation| mutation.name).collect::<Vec<_>>())
        };
        assert_eq!(chosen(&[]).unwrap(), ["a", "b"]);
        assert_eq!(chosen(&["x"]).unwrap(), ["a", "b"]);
        assert_eq!(chosen(&["b"]).unwrap(), ["b"]);
        assert!(chosen(&["c"]).is_err());
    }
}
