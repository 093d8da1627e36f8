//! Numbers and how they are printed.

use std::time::Duration;

/// The value that this share of the samples does not exceed.
pub(crate) fn percentile(samples: &[Duration], share: f64) -> Duration {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
}

/// Milliseconds with as many digits as they are worth.
pub(crate) fn milliseconds(time: Duration) -> String {
    let time = time.as_secs_f64() * 1000.0;
    if time < 10.0 { format!("{time:.2} ms") } else { format!("{time:.0} ms") }
}

/// A table in Markdown.
pub(crate) fn print(head: &[&str], rows: &[Vec<String>]) {
    println!("| {} |", head.join(" | "));
    println!("|{}", "---|".repeat(head.len()));
    for row in rows {
        println!("| {} |", row.join(" | "));
    }
}
