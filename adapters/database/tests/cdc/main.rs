//! The relay by change data capture, against real servers.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod faults;
mod hub;
mod log;
mod rights;
mod rows;
mod support;
mod ways_in;
