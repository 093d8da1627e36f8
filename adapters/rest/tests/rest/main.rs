//! The adapter against real sockets: a partner's server played by script, and a partner's client.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod answers;
mod conformance;
mod http2;
mod probing;
mod pulling;
mod receiving;
mod refusing;

mod sending;
mod server;
mod support;
mod tls;
