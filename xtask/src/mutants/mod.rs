//! `cargo xtask mutants`: does the conformance kit find the mistakes that people make? Every
//! mutation in `xtask/mutants/` is applied to a copy of the sources, one at a time, and the case
//! that was named beforehand must fail. The working tree is only read.

mod list;
mod scratch;
mod suite;

use anyhow::{Context, Result, bail, ensure};
use comfy_table::{Table, presets};

use self::{
    list::{List, Mutation},
    scratch::Scratch,
    suite::{Outcome, Suite},
};

/// Runs those with these names, of mutations or of lists; all without a name.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let lists = list::read()?;
    if arguments == ["--list"] {
        print(lists.iter().flat_map(|list| {
            list.mutations
                .iter()
                .map(|mutation| row(list, mutation, &mutation.caught_by.join(", ")))
        }));
        return Ok(());
    }
    if let Some(option) = arguments.iter().find(|name| name.starts_with('-')) {
        bail!("`{option}` is no option; there is --list");
    }
    let chosen = list::choose(lists, arguments)?;
    let scratch = Scratch::fill()?;
    let (mut rows, mut faults) = (Vec::new(), Vec::new());
    for list in &chosen {
        let suite = Suite::of(list, &scratch);
        green(list, &suite)?;
        for mutation in &list.mutations {
            eprint!("{} … ", mutation.name);
            let verdict = judge(mutation, &try_out(mutation, &scratch, &suite)?);
            let (text, fault) = match verdict {
                Ok(text) => (text, false),
                Err(text) => (text, true),
            };
            eprintln!("{text}");
            if fault {
                faults.push(mutation.name.clone());
            }
            rows.push(row(list, mutation, &text));
        }
    }
    let count = rows.len();
    print(rows);
    ensure!(faults.is_empty(), "not as it should be: {}", faults.join(", "));
    println!("{count} mutations, each caught by the case that was named");
    Ok(())
}

/// The unmutated sources pass, and every case that a mutation names is among those that ran.
fn green(list: &List, suite: &Suite<'_>) -> Result<()> {
    eprint!("{}, as it is … ", list.name);
    let Outcome::Ran(ran) = suite.run()? else {
        bail!("{}: does not build or hangs as it is", list.name);
    };
    ensure!(
        ran.passed && ran.failed.is_empty(),
        "{}: fails as it is: {:?}\n{}",
        list.name,
        ran.failed,
        ran.end
    );
    for mutation in &list.mutations {
        for case in &mutation.caught_by {
            ensure!(ran.held.contains(case), "{}: there is no case `{case}`", mutation.name);
        }
    }
    eprintln!("all {} cases hold", ran.held.len());
    Ok(())
}

fn try_out(mutation: &Mutation, scratch: &Scratch, suite: &Suite<'_>) -> Result<Outcome> {
    let changed = scratch.apply(mutation)?;
    let outcome = suite.run().with_context(|| mutation.name.clone());
    changed.restore()?;
    outcome
}

/// What caught it, or else what is wrong.
fn judge(mutation: &Mutation, outcome: &Outcome) -> Result<String, String> {
    let ran = match outcome {
        Outcome::DoesNotBuild(why) => return Err(format!("DOES NOT BUILD: {why}")),
        Outcome::Hangs => return Err("HANGS: no case ends it".to_owned()),
        Outcome::Ran(ran) => ran,
    };
    if ran.passed {
        return Err("SURVIVES".to_owned());
    }
    if ran.failed.is_empty() {
        return Err(format!("BREAKS THE RUN, and no case says why: {}", ran.end));
    }
    let is_named = |case: &&String| mutation.caught_by.contains(case);
    let missed: Vec<_> =
        mutation.caught_by.iter().filter(|case| !ran.failed.contains(case)).cloned().collect();
    if !missed.is_empty() {
        let (missed, failed) = (missed.join(", "), ran.failed.join(", "));
        return Err(format!("NOT CAUGHT BY {missed} but by {failed}"));
    }
    let others = ran.failed.iter().filter(|case| !is_named(case)).count();
    let named = mutation.caught_by.join(", ");
    Ok(if others == 0 { named } else { format!("{named} (and {others} more)") })
}

fn row(list: &List, mutation: &Mutation, caught_by: &str) -> [String; 3] {
    [mutation.name.clone(), format!("{} ({})", list.kind, list.name), caught_by.to_owned()]
}

fn print(rows: impl IntoIterator<Item = [String; 3]>) {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(["mutation", "kind", "caught by"]);
    table.add_rows(rows);
    println!("{table}");
}

#[cfg(test)]
mod tests {
    use super::{suite::Ran, *};

    fn judged(passed: bool, failed: &[&str]) -> Result<String, String> {
        let mutation = Mutation {
            name: "a".into(),
            file: "f".into(),
            find: "x".into(),
            replace: "y".into(),
            caught_by: vec!["one".into()],
        };
        let failed = failed.iter().map(ToString::to_string).collect();
        let ran = Ran { passed, failed, held: Vec::new(), end: "the end".into() };
        judge(&mutation, &Outcome::Ran(ran))
    }

    #[test]
    fn only_the_named_case_counts_as_caught() {
        assert_eq!(judged(false, &["one"]).unwrap(), "one");
        assert_eq!(judged(false, &["two", "one"]).unwrap(), "one (and 1 more)");
        assert_eq!(judged(true, &[]).unwrap_err(), "SURVIVES");
        assert_eq!(judged(false, &["two"]).unwrap_err(), "NOT CAUGHT BY one but by two");
        assert!(judged(false, &[]).unwrap_err().starts_with("BREAKS THE RUN"));
    }
}
