//! One call of a sender: limits, the partner's form, the call itself, and a verdict for each.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use pabal_core::{
    Answer, Attempt, Body, Cause, Loaded, Message, Reason, Receipt, SendError, Sender, Store,
    Verdict, Written,
};
use sha2::{Digest, Sha256};

use crate::{
    Destination,
    careful::{Gate, Pass},
    lanes::{KeyId, Row},
    lease::{Lease, Term},
    memory::{Memory, Room},
};

/// A call that takes longer than this has failed, whatever its adapter's own limit.
pub(crate) const SEND_LIMIT: Duration = Duration::from_secs(600);

/// A delivery in its partner's form.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) key: KeyId,
    pub(crate) row: Row,
    pub(crate) message: Message,
    /// To be pinned if this attempt may reach the partner.
    pub(crate) pin: Option<Written>,
    pub(crate) sha256: [u8; 32],
    /// In bytes, headers included.
    pub(crate) wire_size: usize,
    /// Given back with the body.
    pub(crate) room: Room,
}

/// What one delivery's attempt gave.
#[derive(Debug)]
pub(crate) struct Tried {
    pub(crate) key: KeyId,
    pub(crate) row: Row,
    pub(crate) verdict: Verdict,
    pub(crate) duration: Duration,
    pub(crate) pin: Option<Written>,
    pub(crate) sha256: Option<[u8; 32]>,
    pub(crate) size: u64,
    /// Kept until the verdict is written: else the next suspect could take this one with it.
    pub(crate) alone: Option<Pass>,
    /// It was cut off with the lease: the verdict says nothing of the destination.
    pub(crate) cut: bool,
}

impl Tried {
    /// Judged without having been tried this time.
    pub(crate) fn untried(key: KeyId, row: Row, verdict: Verdict) -> Self {
        let (duration, pin, sha256, size) = (Duration::ZERO, None, None, 0);
        Self { key, row, verdict, duration, pin, sha256, size, alone: None, cut: false }
    }

    /// What goes into the delivery log.
    pub(crate) fn attempt(&self) -> Attempt {
        let (outcome, cause, answer) = match &self.verdict {
            Ok(receipt) => (
                match receipt {
                    Receipt { stale: true, .. } => "stale",
                    Receipt { duplicate: true, .. } => "duplicate",
                    _ => "delivered",
                },
                None,
                receipt.answer.clone(),
            ),
            Err(error) => {
                let cause = error.cause();
                let status = cause.and_then(|cause| cause.status);
                let answer = status.map(|status| Answer {
                    status: Some(status),
                    body: cause.and_then(|c| c.detail.clone()).unwrap_or_default().into(),
                    ..Answer::default()
                });
                (outcome(error), cause.cloned(), answer)
            }
        };
        let Self { duration, sha256, size, .. } = *self;
        Attempt { outcome, duration, cause, answer, sha256, size }
    }
}

pub(crate) fn outcome(error: &SendError) -> &'static str {
    match error {
        SendError::Unreachable { .. } => "unreachable",
        SendError::Transient { .. } => "transient",
        SendError::Permanent { .. } => "permanent",
        SendError::NotSent => "not-sent",
    }
}

/// Puts a loaded delivery into the partner's form and checks its size. A panic of the writer or the
/// adapter is a refusal of this message, and no more.
///
/// # Errors
/// Why it cannot be sent at all.
pub(crate) fn write(
    caller: &Caller,
    key: &KeyId,
    row: &Row,
    loaded: Loaded,
    room: Room,
) -> Result<Outgoing, SendError> {
    let written = catch_unwind(AssertUnwindSafe(|| form(caller, loaded)));
    let (message, pin, wire_size) = written.unwrap_or_else(|_| {
        Err(SendError::permanent(Reason::Panic, "writing it in the partner's form panicked"))
    })?;
    let sha256 = match &message.body {
        Body::Inline(bytes) => Sha256::digest(bytes).into(),
        Body::Stored(reference) => reference.sha256,
    };
    Ok(Outgoing { key: key.clone(), row: row.clone(), message, pin, sha256, wire_size, room })
}

fn form(
    Caller { destination, sender, .. }: &Caller,
    loaded: Loaded,
) -> Result<(Message, Option<Written>, usize), SendError> {
    let Loaded { mut message, written } = loaded;
    let mut pin = None;
    if let Some(written) = written {
        (message.body, message.content_type) = (Body::Inline(written.body), written.content_type);
    } else if let Some(writer) = &destination.writer {
        let written = writer.write(&message)?;
        message.body = Body::Inline(written.body.clone());
        message.content_type.clone_from(&written.content_type);
        pin = Some(written);
    }
    let (size, limit) = (sender.wire_size(&message), sender.limits().message_bytes_max);
    if size > limit {
        let cause =
            Cause::with("too large for the transport", format!("{size} bytes, limit {limit}"));
        return Err(SendError::permanent(Reason::TooLarge, cause));
    }
    Ok((message, pin, size))
}

/// What a call needs besides the deliveries.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) destination: Arc<Destination>,
    pub(crate) sender: Arc<dyn Sender>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn pabal_core::Clock>,
    pub(crate) lease: Lease,
    pub(crate) gate: Gate,
    pub(crate) memory: Memory,
}

impl Caller {
    /// Sends one batch, unless the term it was taken in is over. `alone`: with nothing else on this
    /// node, and noted before.
    pub(crate) async fn call(self, batch: Vec<Outgoing>, alone: bool, term: Term) -> Vec<Tried> {
        let pass = self.gate.pass(alone).await;
        if alone {
            let starts: Vec<_> =
                batch.iter().map(|out| (out.row.number, out.row.started + 1)).collect();
            if let Err(error) = self.store.mark_started(term.epoch, &starts).await {
                tracing::warn!(%error, "a careful send waits for the store");
                return batch
                    .into_iter()
                    .map(|o| tried(o, Err(SendError::NotSent), Duration::ZERO))
                    .collect();
            }
        }
        let (rest, messages): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .map(|outgoing| {
                let Outgoing { key, row, message, pin, sha256, room, .. } = outgoing;
                ((key, row, pin, sha256, message.body.size(), room), message)
            })
            .unzip();
        let start = self.clock.elapsed();
        let sender = &self.sender;
        let mut sending = pin!(self.clock.timeout(SEND_LIMIT, sender.send(&messages)));
        let verdicts = tokio::select! {
            biased;
            // First, so that nothing more is written once another node may hold the lane.
            () = self.lease.lapsed(term.tenure) => {
                self.unread(sending.as_mut(), messages.len()).await
            }
            sent = &mut sending => Some(explained(sent, messages.len())),
        };
        let duration = self.clock.elapsed().saturating_sub(start);
        let mut alone = alone.then_some(pass);
        let cut = verdicts.is_none();
        let verdicts = verdicts.unwrap_or_else(|| {
            vec![Err(SendError::transient("cut off when the lease ended")); messages.len()]
        });
        rest.into_iter()
            .zip(verdicts)
            .map(|((key, row, pin, sha256, size, _room), verdict)| Tried {
                key,
                row,
                verdict,
                duration,
                pin,
                sha256: Some(sha256),
                size,
                alone: alone.take(),
                cut,
            })
            .collect()
    }

    /// A receipt that came before the lease ended, or while this process stood still, and lies unread.
    /// It is true whoever holds the lane; a failure says nothing any more. `None` for a batch: what
    /// follows in it may be another node's by now, and would be written.
    async fn unread(
        &self,
        sending: Pin<&mut impl Future<Output = Option<Vec<Verdict>>>>,
        count: usize,
    ) -> Option<Vec<Verdict>> {
        if count != 1 {
            return None;
        }
        let sent = self.clock.timeout(self.lease.moment(), sending).await?;
        let verdicts = explained(sent, count);
        verdicts.iter().all(Result::is_ok).then_some(verdicts)
    }
}

pub(crate) fn tried(outgoing: Outgoing, verdict: Verdict, duration: Duration) -> Tried {
    let Outgoing { key, row, message, pin, sha256, .. } = outgoing;
    Tried {
        key,
        row,
        verdict,
        duration,
        pin,
        sha256: Some(sha256),
        size: message.body.size(),
        alone: None,
        cut: false,
    }
}

/// The cause of a verdict that is none: such a delivery goes alone the next time.
pub(crate) const NO_VERDICT: &str = "the sender gave no verdict";

/// One verdict per message, whatever came back. "Not sent" counts only if one ahead of it in the
/// batch failed; silence counts as a failure.
fn explained(sent: Option<Vec<Verdict>>, count: usize) -> Vec<Verdict> {
    let Some(verdicts) = sent else {
        let verdict = Err(SendError::transient("the call took too long"));
        return vec![verdict; count];
    };
    if verdicts.len() != count {
        let cause =
            Cause::with(NO_VERDICT, format!("{} verdicts for {count} messages", verdicts.len()));
        return vec![Err(SendError::Transient { cause, retry_after: None }); count];
    }
    let mut failed = false;
    verdicts
        .into_iter()
        .map(|verdict| {
            let verdict = match verdict {
                Err(SendError::NotSent) if !failed => Err(SendError::transient(NO_VERDICT)),
                verdict => verdict,
            };
            failed |= verdict.is_err();
            verdict
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_never_success() {
        let ok = || Ok(Receipt::default());
        let words = |verdicts: Vec<Verdict>| -> Vec<&str> {
            verdicts.iter().map(|v| v.as_ref().map_or_else(outcome, |_| "ok")).collect()
        };
        assert_eq!(words(explained(None, 2)), ["transient", "transient"]);
        assert_eq!(words(explained(Some(vec![ok()]), 2)), ["transient", "transient"]);
        assert_eq!(words(explained(Some(vec![ok(), ok(), ok()]), 2)), ["transient", "transient"]);
        assert_eq!(
            words(explained(Some(vec![Err(SendError::NotSent), ok()]), 2)),
            ["transient", "ok"]
        );
        assert_eq!(
            words(explained(
                Some(vec![Err(SendError::transient("x")), Err(SendError::NotSent)]),
                2
            )),
            ["transient", "not-sent"]
        );
    }

    #[test]
    fn the_log_of_a_failed_attempt_has_the_status_and_the_start_of_the_answer() {
        let cause = Cause::with("HTTP 422", "no such applicant").status(422);
        let verdict = Err(SendError::permanent(Reason::Invalid, cause));
        let delivery = pabal_core::Delivery {
            number: 1,
            message: pabal_core::MessageId::UNASSIGNED,
            destination: "p/d".parse().unwrap(),
            slot: 0,
            key: None,
            attempts: 0,
            round: 0,
            started: 0,
            due_in: Duration::ZERO,
            age: Duration::ZERO,
            size: 0,
        };
        let tried = Tried {
            key: KeyId::Single(1),
            row: Row::of(&delivery, Duration::ZERO),
            verdict,
            duration: Duration::ZERO,
            pin: None,
            sha256: None,
            size: 0,
            alone: None,
            cut: false,
        };
        let answer = tried.attempt().answer.unwrap();
        assert_eq!((answer.status, &answer.body[..]), (Some(422), &b"no such applicant"[..]));
    }
}
