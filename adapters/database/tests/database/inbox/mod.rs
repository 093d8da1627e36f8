//! The sending side, on all three databases.

mod application;
mod conformance;
mod crash;
mod looking;
mod proxy;
mod taking;
mod values;
mod versions;
