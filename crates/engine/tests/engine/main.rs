//! The engine on a real store, by passed time.

mod careful;
mod faulty;
mod kit;
mod operators;
mod stopping;
mod time;
mod way_in;
mod way_out;
