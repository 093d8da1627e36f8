//! The adapter against real sockets: a partner's server played by script, and a partner's client.

mod answers;
mod receiving;
mod refusing;
mod sending;
mod server;
mod support;
mod tls;
