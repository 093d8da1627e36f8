//! The words and the traits of Pabal. Pure: it names no transport, no database and no file format,
//! opens nothing and spawns nothing.
//!
//! Read in this order: [`Message`] is what moves; [`Sender`] is anything that takes responsibility
//! for messages, the hub's own inbox included; [`Receiver`] brings them; a [`Pickup`] lets a partner
//! fetch them; [`Adapter`] makes all three for one transport; [`Store`] remembers and alone decides
//! what may go out next.

mod adapter;
mod by_key;
mod clock;
mod hot_cache;
mod housekeeping;
mod identity;
mod limits;
mod mailbox;
mod message;
mod name;
mod operate;
mod ownership;
mod policy;
mod probe;
mod rules;
mod secret;
mod sender;
mod settings;
mod state;
mod store;
mod text;
mod verdict;

pub use adapter::{Adapter, Context, Schema};
pub use by_key::by_key;
pub use clock::{Clock, ManualClock, Stop, SystemClock};
pub use hot_cache::HotCache;
pub use housekeeping::{Housekeeping, Retention, Vitals};
pub use identity::{Fingerprint, Identity, MessageId, slot};
pub use limits::*;
pub use mailbox::{
    Handout, LAPSED, Mailbox, Pickup, PullAsk, PullError, PullPage, Pulled, Refusal, Scan,
};
pub use message::{Alongside, Arrival, Body, BodyReference, Headers, Message, Origin};
pub use name::{EndpointName, NameError};
pub use operate::*;
pub use ownership::{Beat, Epoch, Lane, LaneHolder, Layout, NodePlan, StandingStill, rank};
pub use policy::{BreakerPolicy, OnDead, Order, RetryPolicy, TypePattern};
pub use probe::{Finding, Severity};
pub use rules::{AnswerRule, Judgement, Predicate, Reader, RuleError, View, Writer, Written};
pub use secret::{Secret, SecretReference, Secrets};
pub use sender::{Limits, ReceiveError, Receiver, Sender};
pub use settings::{ConfigError, Settings, nearest};
pub use state::{State, StateConflict, StateValue, StateWrite};
pub use store::*;
pub use text::shorten;
pub use verdict::{Answer, Cause, Reason, Receipt, SendError, Verdict};

/// Re-exported, so that an adapter and the core cannot disagree on the type of a body.
pub use bytes::Bytes;
/// Re-exported, so that an adapter and the core cannot disagree on the type of an instant.
pub use jiff::Timestamp;
