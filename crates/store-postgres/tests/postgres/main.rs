//! The store on a real server, as the role that may only run.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail as tests do")]

mod alongside;
mod conformance;
mod cost;
mod database;
mod kit;
mod listening;
mod midnight;
mod opening;
mod partitions;
mod pooled;
mod probing;
