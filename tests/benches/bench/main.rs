//! Measurements, each against something else in the same run: what is claimed is a ratio. Run by
//! `cargo xtask bench NAME`.

#![expect(clippy::unwrap_used, reason = "what cannot be measured ends the measurement")]
#![expect(clippy::print_stdout, reason = "it prints a table")]

mod hot_cache;
mod partner;
mod relay;
mod relays;
mod table;

use std::time::Duration;

use pabal_core::{Clock, SystemClock};

/// On the clock of everything here.
fn now() -> Duration {
    SystemClock.elapsed()
}

#[tokio::main]
async fn main() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    // The runner passes `--bench` on.
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    match arguments.next().as_deref() {
        Some("relay") => relay::run(arguments.next().as_deref()).await,
        Some("hot-cache") => hot_cache::run().await,
        other => panic!("there is no measurement {other:?}: relay [NAME] or hot-cache"),
    }
}
