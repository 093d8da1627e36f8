//! After an unclean end: finding the message that killed the process without blaming another.
//!
//! Deliveries that could have been in flight get a note in the store before they are sent. One that
//! is found with a note at the next take-over was in flight when the process died, and goes alone
//! on this node; its third note is its last. The normal path writes nothing before a send.

use std::sync::Arc;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// With so many notes a delivery is taken to have killed the process.
pub(crate) const STARTS_MAX: u32 = 3;

/// Lets all sends of a node go side by side, or one suspect alone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Arc<RwLock<()>>);

/// Held while a send is under way.
#[derive(Debug)]
pub(crate) enum Pass {
    /// With others.
    #[expect(dead_code, reason = "held, not read")]
    Shared(OwnedRwLockReadGuard<()>),
    /// With nothing else on this node.
    #[expect(dead_code, reason = "held, not read")]
    Alone(OwnedRwLockWriteGuard<()>),
}

impl Gate {
    pub(crate) async fn pass(&self, alone: bool) -> Pass {
        if alone {
            Pass::Alone(Arc::clone(&self.0).write_owned().await)
        } else {
            Pass::Shared(Arc::clone(&self.0).read_owned().await)
        }
    }
}
