//! What became of a case.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;

/// Turns a failed assertion of a case into an answer.
pub(crate) async fn outcome(case: impl Future<Output = ()>) -> Result<(), String> {
    // What the case had in its hands is dropped with it.
    AssertUnwindSafe(case).catch_unwind().await.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()))
            .unwrap_or_else(|| "it panicked".to_owned())
    })
}
