//! The whole hub: the real binary against real counterparts. One executable, a module per subject.

#![expect(
    clippy::unwrap_used,
    reason = "all of this is tests; clippy knows only of the functions marked as such"
)]

mod abort;
mod application;
mod cli;
mod clients;
mod delivery;
mod demo;
mod deploy;
mod examples;
mod failover;
mod killing;
mod life;
mod metrics;
mod nodes;
mod postgres;
mod pulling;
mod readme;
mod routing;
mod secrets;
mod stepped_clock;
mod stopping;
mod support;
