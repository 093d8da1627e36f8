//! The hub as a program: configuration, engine, store, adapters, the two listeners and the command
//! line, put together.
//!
//! An adapter from elsewhere is added in a `main` of one's own:
//!
//! ```no_run
//! # fn hub(pigeons: impl pabal_core::Adapter + 'static) -> std::process::ExitCode {
//! pabal::Hub::standard().with(pigeons).main()
//! # }
//! ```

mod api;
mod check;
mod cli;
mod client;
mod commands;
mod compose;
mod demo;
mod housekeeping;
mod hub;
mod listen;
mod logging;
mod metrics;
mod operator;
mod out;
mod plan;
mod running;
mod signals;
mod state;
mod stores;
mod tls;
mod token;

pub use hub::Hub;

/// The source of what the command line hands over.
const COMMAND_LINE: &str = "hub/cli";
