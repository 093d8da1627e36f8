//! The adapter against real databases, each with an account that may do what is documented and no
//! more.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod inbox;
mod support;
