//! What every store and every adapter must do, as runnable cases. A new store adds one test that
//! calls [`store::check`] with a way to make one, a new adapter one that calls [`adapter::check`]
//! with its other sides; what they cannot do they declare, and the report says so.

#![expect(clippy::unwrap_used, reason = "a case that cannot go on has failed, and says where")]

pub mod adapter;
pub mod mariadb;
pub mod pooler;
pub mod postgres;
mod report;
pub mod store;
mod throwaway;
