//! The engine: what happens between a receiver and a sender.
//!
//! [`Engine::start`] takes a [`Setup`] of already built parts and runs them. On the way in, an
//! [`inbox`] per source checks, reads, routes and commits in groups; on the way out, one
//! [`dispatcher`] per destination claims, sends, judges and settles, with all of its decisions made
//! by two pure state machines: [`lanes`] (what may go next) and [`health`] (whether anything may).
//! A destination whose partner fetches its messages has a [`mailbox`] instead.

mod careful;
mod dispatcher;
mod edge;
mod engine;
mod event;
mod health;
mod hot_cache;
mod inbox;
mod keeper;
mod lanes;
mod lease;
mod mailbox;
mod members;
mod memory;
mod operate;
mod plan;
mod receivers;
mod router;
mod sending;
mod settler;
mod tail;

pub use engine::{DestinationStatus, Engine, HealthStatus};
pub use event::{Event, Hint, NoObserver, Observer};
pub use hot_cache::InProcess;
pub use operate::ReplayReport;
pub use plan::{Destination, MissingId, OnInvalid, Setup, Source, WayOut};
