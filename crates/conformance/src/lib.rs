//! What every store must do, as runnable cases. A new store adds one test that calls
//! [`store::check`] with a way to make one; what it cannot do it declares, and the report says so.

#![expect(clippy::unwrap_used, reason = "a case that cannot go on has failed, and says where")]

pub mod store;
