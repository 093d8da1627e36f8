//! Runs receivers, and runs them again when they give up.

use std::{sync::Arc, time::Duration};

use pabal_core::{Clock, EndpointName, Receiver, Sender, Stop};
use tokio_util::task::AbortOnDropHandle;

/// The first pause after a receiver gave up; it doubles.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
/// The longest.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// One that ran for so long starts again from the first pause.
const RAN_WELL: Duration = Duration::from_secs(60);

/// Runs one receiver until `stop` fires and it has returned.
pub(crate) async fn run(
    source: EndpointName,
    receiver: Arc<dyn Receiver>,
    inbox: Arc<dyn Sender>,
    clock: Arc<dyn Clock>,
    stop: Stop,
) {
    let mut pause = PAUSE_FIRST;
    while !stop.fired() {
        let start = clock.elapsed();
        let (receiver, inbox, its_stop) = (Arc::clone(&receiver), Arc::clone(&inbox), stop.clone());
        // In a task of its own, so that a panic ends the receiver and not the hub.
        let run = tokio::spawn(async move { receiver.run(inbox, its_stop).await });
        let ended = AbortOnDropHandle::new(run).await;
        if stop.fired() {
            return;
        }
        let why = match ended {
            Ok(Ok(())) => "it ended by itself".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => panic.to_string(),
        };
        if clock.elapsed().saturating_sub(start) >= RAN_WELL {
            pause = PAUSE_FIRST;
        }
        tracing::error!(alert = true, %source, why, again_in = ?pause, "a receiver gave up");
        tokio::select! {
            () = clock.sleep(pause) => {}
            () = stop.wait() => {}
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
