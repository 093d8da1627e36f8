//! The relay by change data capture: PostgreSQL's own log tells of each row as its transaction commits.
//!
//! A slot keeps the position up to which rows are safe with the hub; it is moved only after the hub's
//! commit, so that a crash repeats rows and loses none. The stream is read by one task, which hands over
//! what it reads before it reads on: what is in memory has a bound, and the server waits when the hub
//! does. What a slot cannot tell, rows that were there before it, is read from the table once.

mod facts;
mod fault;
mod hands;
mod pgoutput;
mod probe;
mod relay;
mod settings;
mod slot;
mod stream;
mod target;
mod tls;
mod watch;
mod wire;

use fault::Fault;
pub(super) use relay::Cdc;
pub(super) use settings::CdcSettings;

#[cfg(test)]
mod stream_tests;
