//! Runs receivers and pickups, and runs them again when they give up.

use std::{sync::Arc, time::Duration};

use pabal_core::{Clock, EndpointName, Pickup, ReceiveError, Receiver, Sender, Stop};
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use crate::mailbox::Mailbox;

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
    again_and_again(&source, "a receiver", &clock, &stop, || {
        let (receiver, inbox, stop) = (Arc::clone(&receiver), Arc::clone(&inbox), stop.clone());
        tokio::spawn(async move { receiver.run(inbox, stop).await })
    })
    .await;
}

/// The same for what lets a partner fetch its messages.
pub(crate) async fn run_pickup(
    pickup: Arc<dyn Pickup>,
    mailbox: Mailbox,
    clock: Arc<dyn Clock>,
    stop: Stop,
) {
    again_and_again(mailbox.name(), "a pickup", &clock, &stop, || {
        let (pickup, mailbox, stop) = (Arc::clone(&pickup), mailbox.clone(), stop.clone());
        tokio::spawn(async move { pickup.run(Arc::new(mailbox), stop).await })
    })
    .await;
}

/// `start` begins it in a task of its own, so that a panic ends that and not the hub.
async fn again_and_again(
    endpoint: &EndpointName,
    what: &str,
    clock: &Arc<dyn Clock>,
    stop: &Stop,
    start: impl Fn() -> JoinHandle<Result<(), ReceiveError>>,
) {
    let mut pause = PAUSE_FIRST;
    while !stop.fired() {
        let begun = clock.elapsed();
        let ended = AbortOnDropHandle::new(start()).await;
        if stop.fired() {
            return;
        }
        let why = match ended {
            Ok(Ok(())) => "it ended by itself".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => panic.to_string(),
        };
        if clock.elapsed().saturating_sub(begun) >= RAN_WELL {
            pause = PAUSE_FIRST;
        }
        tracing::error!(alert = true, %endpoint, why, again_in = ?pause, "{what} gave up");
        tokio::select! {
            () = clock.sleep(pause) => {}
            () = stop.wait() => {}
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
