//! The engine on a real store, by passed time.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod careful;
mod faulty;
mod fetched;
mod hot_cache;
mod kit;
mod nodes;
mod operators;
mod stopping;
mod time;
mod way_in;
mod way_out;
mod wrapped;
