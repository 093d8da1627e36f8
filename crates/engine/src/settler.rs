//! What became of deliveries is written in groups: one task per node, whatever the destinations.

use std::{sync::Arc, time::Duration};

use pabal_core::{Clock, Epoch, Settled, Settlement, Store, StoreError};
use tokio::sync::mpsc;

use crate::dispatcher::{Follow, Signal};

/// Settlements of one commit.
const GROUP_MAX: usize = 500;
/// While the store cannot, the group is tried again after this time at the most.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// One settlement, and what its dispatcher does once it is written.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) settlement: Settlement,
    /// In whose name.
    pub(crate) epoch: Epoch,
    pub(crate) follow: Follow,
    pub(crate) dispatcher: mpsc::UnboundedSender<Signal>,
}

/// Runs until all senders of `jobs` are gone and everything is written.
pub(crate) async fn run(
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    mut jobs: mpsc::UnboundedReceiver<Job>,
) {
    let mut group = Vec::with_capacity(GROUP_MAX);
    // What gathered while the last group was written is the next group.
    while jobs.recv_many(&mut group, GROUP_MAX).await > 0 {
        let mut pieces = by_epoch(std::mem::take(&mut group));
        while let Some(piece) = pieces.pop() {
            let settlements: Vec<Settlement> =
                piece.iter().map(|job| job.settlement.clone()).collect();
            let Some(epoch) = piece.first().map(|job| job.epoch) else { continue };
            match write(&*store, &*clock, epoch, &settlements).await {
                Ok(answers) => {
                    let missing = std::iter::repeat(Settled::NotThere);
                    for (job, settled) in piece.into_iter().zip(answers.into_iter().chain(missing))
                    {
                        let signal = Signal::Settled { follow: job.follow, settled: Some(settled) };
                        // Without a dispatcher there is nobody to go on; the store knows.
                        let _ = job.dispatcher.send(signal);
                    }
                }
                Err(_) if piece.len() > 1 => {
                    let mut piece = piece;
                    let tail = piece.split_off(piece.len() / 2);
                    pieces.push(tail);
                    pieces.push(piece);
                }
                Err(error) => {
                    for job in piece {
                        let (number, message) = (job.settlement.number, job.settlement.message);
                        tracing::error!(
                            alert = true, number, message_id = %message, %error,
                            "what became of a delivery cannot be written: its key waits for the next start"
                        );
                        let signal = Signal::Settled { follow: job.follow, settled: None };
                        let _ = job.dispatcher.send(signal);
                    }
                }
            }
        }
    }
}

/// Groups of one life each, to be taken from the end. A node has another one only after it was taken
/// for dead.
fn by_epoch(jobs: Vec<Job>) -> Vec<Vec<Job>> {
    let mut groups: Vec<Vec<Job>> = Vec::with_capacity(1);
    for job in jobs {
        match groups.last_mut() {
            Some(group) if group.first().is_some_and(|first| first.epoch == job.epoch) => {
                group.push(job);
            }
            _ => groups.push(vec![job]),
        }
    }
    groups.reverse();
    groups
}

/// Writes a group, and goes on trying while the store cannot.
async fn write(
    store: &dyn Store,
    clock: &dyn Clock,
    epoch: Epoch,
    group: &[Settlement],
) -> Result<Vec<Settled>, StoreError> {
    let mut pause = Duration::from_millis(50);
    loop {
        match store.settle(epoch, group).await {
            Err(StoreError::Unavailable(cause) | StoreError::Unknown(cause)) => {
                tracing::warn!(cause, "settling is tried again");
                clock.sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            result => return result,
        }
    }
}
