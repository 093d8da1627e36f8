//! The cases of an adapter: its [`Sender`] and its [`Receiver`], each against a real other side.
//!
//! An adapter's test says how to make the other sides and calls [`check`]:
//!
//! ```ignore
//! let cannot = [(Feature::Order, "the caller decides in which order it hands over")];
//! pabal_conformance::adapter::check(&Pigeon, &cannot).await;
//! ```

mod arriving;
mod bench;
mod broken;
mod dropped;
mod inbox;
mod sending;
mod size;
mod stopping;

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use pabal_core::{Bytes, Headers, Message, MessageId, Receiver, Sender};

pub use self::bench::{Inward, Outward};

/// The body limit to make senders and receivers with, in bytes.
pub const BODY_BYTES_MAX: usize = 256 * 1024;

/// The one further header beside CloudEvents extensions that a case sends: where a transport keeps
/// only headers it was told, the receiver is to be told this one.
pub const PLAIN_HEADER: &str = "x-kit-plain";

/// An adapter under test. Every case gets another side of its own, with nothing in it.
#[async_trait]
pub trait Subject: fmt::Debug + Send + Sync {
    /// Whom a sender sends to.
    async fn partner(&self) -> Box<dyn Partner>;
    /// Where a receiver gets its messages.
    async fn origin(&self) -> Box<dyn Origin>;
}

/// The other side of a sender.
#[async_trait]
pub trait Partner: fmt::Debug + Send + Sync {
    /// A new sender to it, made as the hub makes one.
    async fn sender(&self) -> Arc<dyn Sender>;
    /// What it has read whole and not turned away, in that order, repeats included; a held message
    /// is among them.
    async fn arrived(&self) -> Vec<Arrived>;
    /// Lets this go wrong from now on. A case never has two faults at the same time.
    async fn fail(&self, fault: Fault);
    /// Lets everything go well again, for senders that are there, too.
    async fn mend(&self);
}

/// A message as the other side of a sender sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    /// The message id.
    pub id: String,
    /// The headers, as a reader of this transport understands them (encodings undone). Where the
    /// envelope travels, it is here, too: as `content-type`, `traceparent` and `ce-<attribute>`.
    pub headers: Headers,
    /// The body.
    pub body: Bytes,
    /// How many bytes it was on the wire, with all that belongs to it.
    pub wire_bytes: Option<usize>,
}

/// What can go wrong on the way to a partner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It takes no connections, and those that were open are closed.
    OutOfReach,
    /// It reads the next message whole, and the connection ends without a word about it.
    Cut,
    /// It refuses this message for good.
    Refuse(MessageId),
    /// It cannot take this message now.
    Fail(MessageId),
    /// It reads this message and says nothing until it is mended.
    Hold(MessageId),
    /// It takes nothing, and asks to be left alone for this long.
    Pause(Duration),
}

/// The other side of a receiver.
#[async_trait]
pub trait Origin: fmt::Debug + Send + Sync {
    /// Puts these there, in this order. Nothing comes before a receiver runs.
    async fn put(&self, messages: &[Message]);
    /// A new receiver, made as the hub makes one when it starts.
    async fn receiver(&self) -> Arc<dyn Receiver>;
    /// Offers now what is neither acknowledged nor refused nor being offered. Called again and again
    /// while a case waits; empty where an origin offers by itself.
    async fn offer(&self);
    /// What it believes of a message that was put there.
    async fn believes(&self, message: &Message) -> Belief;
    /// Ends at once what the end of the hub's process would end besides [`Receiver::run`], which
    /// has returned or was dropped before: listeners, connections, tasks of its own.
    async fn kill(&self);
}

/// What an origin believes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Belief {
    /// Nobody has it; it will be offered (again).
    Waiting,
    /// The hub has it.
    Acknowledged,
    /// The hub does not want it.
    Refused,
}

/// What a transport may be unable to do by its nature; the rest of the kit still applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// It has a sending side.
    Sends,
    /// It has a receiving side.
    Receives,
    /// More than one message goes in a call.
    Batches,
    /// Further headers travel with a message.
    Headers,
    /// The envelope travels with a message.
    Envelope,
    /// The other side knows what a message was on the wire.
    WireBytes,
    /// [`Fault::OutOfReach`] can happen.
    OutOfReach,
    /// [`Fault::Cut`] can happen.
    Cut,
    /// [`Fault::Refuse`] can happen.
    Refuse,
    /// [`Fault::Fail`] can happen.
    Fail,
    /// [`Fault::Hold`] can happen.
    Hold,
    /// [`Fault::Pause`] can happen.
    Pause,
    /// The receiver decides in which order an origin's messages are handed over.
    Order,
    /// An origin is told of a refusal in other words than of a receipt.
    TellsRefusals,
}

/// One thing an adapter must do; the name is the claim.
#[derive(Clone, Copy)]
pub struct Case {
    /// The claim.
    pub name: &'static str,
    /// What the transport must be able to do for the claim to mean anything.
    pub needs: &'static [Feature],
    run: Run,
}

type Running = Pin<Box<dyn Future<Output = ()>>>;

#[derive(Clone, Copy)]
enum Run {
    Sending(fn(Outward) -> Running),
    Receiving(fn(Inward) -> Running),
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// No case takes this long; a sender or receiver that hangs has failed it.
const CASE_LIMIT: Duration = Duration::from_secs(120);

impl Case {
    /// Why the claim means nothing for a transport that cannot do these, if so.
    #[must_use]
    pub fn does_not_apply(&self, cannot: &[(Feature, &'static str)]) -> Option<&'static str> {
        let half = match self.run {
            Run::Sending(_) => Feature::Sends,
            Run::Receiving(_) => Feature::Receives,
        };
        let missing = |feature: &Feature| *feature == half || self.needs.contains(feature);
        cannot.iter().find(|(feature, _)| missing(feature)).map(|(_, why)| *why)
    }

    /// Runs it against another side of its own; `batches` is what [`Feature::Batches`] says.
    ///
    /// # Errors
    /// If the claim does not hold; says why.
    pub async fn run(self, subject: &impl Subject, batches: bool) -> Result<(), String> {
        let run = match self.run {
            Run::Sending(run) => run(Outward::new(subject.partner().await, batches).await),
            Run::Receiving(run) => run(Inward::new(subject.origin().await)),
        };
        let limited = async {
            let ended = tokio::time::timeout(CASE_LIMIT, run).await;
            assert!(ended.is_ok(), "it hangs");
        };
        crate::report::outcome(limited).await
    }
}

macro_rules! cases {
    ($($side:ident $module:ident { $($name:ident $(needs $($feature:ident)+)?),* $(,)? })*) => {
        vec![$($(Case {
            name: stringify!($name),
            needs: &[$($(Feature::$feature),+)?],
            run: Run::$side(|bench| Box::pin($module::$name(bench))),
        }),*),*]
    };
}

/// All cases, for every adapter.
#[must_use]
pub fn cases() -> Vec<Case> {
    cases! {
        Sending sending {
            a_receipt_means_it_arrived,
            every_byte_arrives,
            an_empty_body_arrives,
            every_header_arrives needs Headers,
            the_envelope_arrives needs Envelope,
            none_one_and_a_full_batch_get_a_verdict_each,
            a_key_arrives_in_order needs Batches,
        }
        Sending size {
            what_is_too_large_is_refused_for_good,
            the_largest_message_arrives,
            no_more_goes_over_the_wire_than_announced needs WireBytes,
        }
        Sending broken {
            what_cannot_be_reached_is_unreachable_and_mends needs OutOfReach,
            what_is_cut_after_writing_is_transient_and_mends needs Cut,
            a_repeat_carries_the_same_id_and_bytes needs Cut,
            a_refusal_is_for_good_and_spares_the_neighbours needs Refuse,
            a_failure_is_for_now_and_spares_the_neighbours needs Fail,
            after_a_failure_the_rest_of_its_key_is_not_sent needs Batches Fail,
            a_wish_to_be_left_alone_is_passed_on needs Pause,
            one_slow_message_delays_no_other_key needs Hold,
        }
        Sending dropped {
            a_send_dropped_at_any_point_loses_nothing,
            a_send_dropped_while_it_waits_takes_no_other_with_it needs Hold,
        }
        Receiving arriving {
            what_has_a_receipt_is_acknowledged,
            nothing_is_acknowledged_without_a_receipt,
            silence_of_the_inbox_acknowledges_nothing,
            what_failed_is_offered_again,
            what_is_refused_is_not_offered_again,
            the_origin_is_told_of_a_refusal needs TellsRefusals,
            every_byte_is_handed_over,
            an_empty_body_is_handed_over,
            every_header_is_handed_over needs Headers,
            the_envelope_is_handed_over needs Envelope,
            a_key_is_handed_over_in_order needs Order,
        }
        Receiving stopping {
            a_stop_with_nothing_in_hand_returns,
            a_stop_finishes_what_is_in_hand,
            what_comes_after_a_stop_stays_at_the_origin,
            after_a_stop_it_can_run_again,
            killed_before_the_acknowledgement_it_hands_over_the_same_again,
        }
    }
}

/// Runs all cases, each against another side of its own, and prints what became of each. `cannot`
/// names what the transport is unable to do, and why; cases that need it are listed and not run.
///
/// # Panics
/// If a case fails; after all have run, with the names of those that failed.
pub async fn check(subject: &impl Subject, cannot: &[(Feature, &'static str)]) {
    let batches = cannot.iter().all(|(feature, _)| *feature != Feature::Batches);
    let mut failed = Vec::new();
    for case in cases() {
        if let Some(why) = case.does_not_apply(cannot) {
            eprintln!("does not apply  {} ({why})", case.name);
            continue;
        }
        match case.run(subject, batches).await {
            Ok(()) => eprintln!("holds           {}", case.name),
            Err(why) => {
                eprintln!("FAILED          {}: {why}", case.name);
                failed.push(case.name);
            }
        }
    }
    assert!(failed.is_empty(), "claims that do not hold: {failed:?}");
}
