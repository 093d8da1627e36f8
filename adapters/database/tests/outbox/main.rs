//! The outbox table of an application as a source, on each kind of database.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod bodies;
mod kit;
mod layouts;
mod order;
mod support;
mod writing_back;
