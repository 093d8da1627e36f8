//! `pabal check`: the configuration offline, and with `--connect` what is at the other end of it.

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::Result;
use comfy_table::Table;
use futures_util::future::join_all;
use pabal_config::Faults;
use pabal_core::{Clock, Finding, Severity};
use pabal_engine::WayOut;
use serde::Serialize;

use crate::{
    hub::{FAILED, WRONG},
    out,
    plan::Plan,
    stores,
};

/// Nobody is looked at for longer than this.
const LIMIT: Duration = Duration::from_secs(20);

/// What was looked at, and what was found there, worst first.
#[derive(Debug, Serialize)]
struct Looked {
    /// `store`, `partner`, `source` or `destination`.
    kind: &'static str,
    /// Which; of the store, what it is.
    name: String,
    /// Nothing if all is well.
    findings: Vec<Finding>,
}

/// `pabal check`
pub(crate) async fn check(
    plan: Result<Plan>,
    connect: bool,
    json: bool,
    clock: Arc<dyn Clock>,
) -> Result<ExitCode> {
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => match error.downcast_ref::<Faults>() {
            Some(faults) if json => {
                out::json(&faults.iter().map(fault).collect::<Vec<_>>())?;
                return Ok(ExitCode::from(WRONG));
            }
            _ => return Err(error),
        },
    };
    for note in plan.notes() {
        out::note(format_args!("note: {note}"));
    }
    if connect {
        return connected(&plan, json, clock).await;
    }
    if json {
        out::json(&serde_json::json!([]))?;
    } else {
        out::line(fine(&plan));
    }
    Ok(ExitCode::SUCCESS)
}

fn fine(plan: &Plan) -> String {
    let (sources, destinations) = (plan.sources().len(), plan.destinations().len());
    format!("the configuration is fine: {sources} sources, {destinations} destinations")
}

/// A fault for programs.
fn fault(fault: &pabal_config::Fault) -> serde_json::Value {
    serde_json::json!({
        "file": fault.file,
        "line": fault.line_column.map(|(line, _)| line),
        "column": fault.line_column.map(|(_, column)| column),
        "key": fault.key,
        "message": fault.message,
        "help": fault.help,
    })
}

/// Looks at everything at the same time.
async fn connected(plan: &Plan, json: bool, clock: Arc<dyn Clock>) -> Result<ExitCode> {
    let (sources, destinations) = plan.parts(&clock)?;
    let clock = &*clock;
    let mut open = plan.open_questions();
    let store = look("store", stores::kind(plan), Vec::new(), clock, stores::probe(plan));
    let sources = sources.iter().filter_map(|source| {
        let receiver = source.receiver.as_ref()?;
        let name = source.name.to_string();
        let known = open.extract_if(.., |(of, _)| *of == name).map(|(_, finding)| finding);
        Some(look("source", name.clone(), known.collect(), clock, receiver.probe()))
    });
    let sources: Vec<_> = sources.collect();
    let destinations = destinations.iter().map(|destination| {
        let name = destination.name.to_string();
        let probe = async {
            match &destination.way {
                WayOut::Sent(sender) => sender.probe().await,
                // Nobody is at the other end but who calls.
                WayOut::Fetched(_) => Vec::new(),
            }
        };
        look("destination", name, Vec::new(), clock, probe)
    });
    let (store, sources, destinations) =
        tokio::join!(store, join_all(sources), join_all(destinations));
    let mut looked = vec![store];
    looked.extend(open.into_iter().map(|(name, finding)| Looked {
        kind: "partner",
        name,
        findings: vec![finding],
    }));
    looked.extend(sources);
    looked.extend(destinations);
    if json {
        out::json(&looked)?;
    } else {
        out::line(fine(plan));
        out::line(table(&looked));
    }
    let mut all = looked.iter().flat_map(|looked| &looked.findings);
    let broken = all.any(|finding| finding.severity == Severity::Fault);
    Ok(if broken { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

/// What a look finds within the limit, with what is known without one.
async fn look(
    kind: &'static str,
    name: String,
    known: Vec<Finding>,
    clock: &dyn Clock,
    probe: impl Future<Output = Vec<Finding>>,
) -> Looked {
    let mut findings = known;
    match clock.timeout(LIMIT, probe).await {
        Some(found) => findings.extend(found),
        None => findings.push(
            Finding::fault(format!("no end of looking within {}", out::span(LIMIT)))
                .help("it takes connections and does not answer"),
        ),
    }
    findings.sort_by_key(|finding| finding.severity);
    Looked { kind, name, findings }
}

fn table(looked: &[Looked]) -> Table {
    let mut table = out::table(["", "which", "found", "what", "what to do"]);
    // Sentences are not one long line where there is no terminal to say how wide it is.
    if table.width().is_none() {
        table.set_width(out::WIDTH_WITHOUT_TERMINAL);
    }
    for Looked { kind, name, findings } in looked {
        if findings.is_empty() {
            table.add_row([*kind, name, "fine", "", ""]);
        }
        for (index, finding) in findings.iter().enumerate() {
            let (kind, name) = if index == 0 { (*kind, name.as_str()) } else { ("", "") };
            let severity = out::word(&finding.severity);
            let help = finding.help.as_deref().unwrap_or_default();
            table.add_row([kind, name, &severity, &finding.what, help]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use pabal_core::ManualClock;

    use super::*;

    #[test]
    fn what_was_found_is_a_table_worst_first() {
        let looked = |kind, name: &str, findings| Looked { kind, name: name.into(), findings };
        let all = [
            looked("store", "var/pabal.db", vec![]),
            looked("source", "welfare/decisions", vec![Finding::note("said")]),
            looked(
                "destination",
                "welfare/applications",
                vec![
                    Finding::fault("cannot connect").help("does it listen?"),
                    Finding::warning("the certificate expires in 3 days"),
                ],
            ),
        ];
        insta::assert_snapshot!(table(&all).to_string());
    }

    #[tokio::test]
    async fn who_does_not_answer_is_a_fault_and_not_waited_for() {
        let clock = ManualClock::default();
        let looking =
            look("source", "p/s".into(), vec![Finding::note("n")], &clock, std::future::pending());
        let passing = async {
            tokio::task::yield_now().await;
            clock.advance(LIMIT);
        };
        let (looked, ()) = tokio::join!(looking, passing);
        let found: Vec<_> = looked.findings.iter().map(|finding| finding.severity).collect();
        assert_eq!(found, [Severity::Fault, Severity::Note]);
    }
}
