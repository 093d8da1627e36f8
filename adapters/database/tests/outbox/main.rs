//! The outbox table of an application as a source, on each kind of database.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod bodies;
mod cost;
mod hub;
mod kit;
mod layouts;
mod life;
mod looking;
mod one_transaction;
mod order;
mod support;
mod waking;
mod writing_back;
