//! The demo, run as anybody runs it, and its books read by a program that knows nothing of it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use pabal_tests::{pabal_within, python, repository};
use serde_json::Value;

/// Decodes the table by itself and holds the agencies' books against it.
const COMPARE: &str = include_str!("../../python/compare_books.py");
/// Far more than it takes, on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(240);
const MEMORY_MIB_MAX: u64 = 100;

/// Runs it; what it counted, and what its books say next to the input.
pub(crate) async fn demo(input: &Path, arguments: &[&str]) -> (Value, Value) {
    let folder = tempfile::tempdir().unwrap();
    let books = folder.path().join("books");
    let books = books.to_str().unwrap();
    let all = [&["demo", "--json", "--books", books][..], arguments].concat();
    let report = pabal_within(LIMIT, &all).await.json();
    let compared = python(COMPARE, &[input.to_str().unwrap(), books], b"").await.json();
    (report, compared)
}

pub(crate) fn assert_all_is_right(report: &Value, compared: &Value) {
    assert_eq!(report["right"], true, "{report:#}");
    for nothing in ["lost", "order_violations", "content_differs", "other_dead_letters"] {
        assert_eq!(report[nothing], 0, "{nothing}: {report:#}");
    }
    assert_eq!(report["sent"]["conflicts"], 3);
    assert_eq!(report["sent"]["recognised"], report["sent"]["repeated"]);
    assert_eq!(compared["faults"], serde_json::json!([]), "{compared:#}");
    assert_eq!(compared["records"], report["records"]);
    assert_eq!(compared["archive"], report["first"]["effects"]);
    assert_eq!(compared["census"], report["second"]["effects"]);
    assert_eq!(compared["existing"], report["existing"]);
    let faults = &report["faults"];
    for fault in ["busy", "lost_before", "lost_after", "slow"] {
        assert!(faults[fault].as_u64().unwrap() > 0, "{fault} never happened: {faults}");
    }
    let memory = report["peak_memory_mib"].as_u64().unwrap();
    assert!(memory < MEMORY_MIB_MAX, "{memory} MiB");
}

#[tokio::test]
async fn the_demo_on_the_own_sample_is_right_and_its_books_are_the_input_line_by_line() {
    let sample = repository("crates/hub/samples/legal-districts.euckr.tsv");
    let (report, compared) = demo(&sample, &[]).await;
    assert_all_is_right(&report, &compared);
    assert_eq!(report["records"], 5_000);
}

/// `cargo xtask soak demo --input FILE`
#[tokio::test]
#[ignore = "takes a file: cargo xtask soak demo --input FILE"]
async fn soak_demo() {
    let input = std::env::var_os("PABAL_SOAK_INPUT").expect("say which: --input FILE");
    let input = PathBuf::from(input);
    let (report, compared) = demo(&input, &["--input", input.to_str().unwrap()]).await;
    for (what, value) in [
        ("handed over", &report["sent"]["handed_over"]),
        ("repeats recognised", &report["sent"]["recognised"]),
        ("conflicts", &report["sent"]["conflicts"]),
        ("first agency, once in effect", &report["first"]["effects"]),
        ("second agency, once in effect", &report["second"]["effects"]),
        ("lost", &report["lost"]),
        ("order violations", &report["order_violations"]),
        ("lines compared by Python", &compared["compared"]),
        ("seconds", &report["seconds"]),
        ("peak memory, MiB", &report["peak_memory_mib"]),
    ] {
        println!("{what:32} {value}");
    }
    assert_all_is_right(&report, &compared);
}
