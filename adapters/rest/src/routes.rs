//! Who is reached at which name, and what calls are served by while it runs.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use pabal_core::{EndpointName, Stop};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

/// Something that is reached by its name.
pub(crate) trait Named {
    /// Its name.
    fn name(&self) -> &EndpointName;
    /// Whether it serves calls now.
    fn is_open(&self) -> bool;
}

/// All of one kind. Sources and destinations may have the same names.
pub(crate) struct Routes<T>(RwLock<HashMap<EndpointName, Vec<Arc<T>>>>);

impl<T> Default for Routes<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T> fmt::Debug for Routes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        f.debug_set().entries(routes.keys()).finish()
    }
}

impl<T: Named> Routes<T> {
    pub(crate) fn add(&self, route: Arc<T>) {
        let mut routes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        routes.entry(route.name().clone()).or_default().push(route);
    }

    pub(crate) fn remove(&self, route: &Arc<T>) {
        let mut routes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = routes.get_mut(route.name()) {
            known.retain(|other| !Arc::ptr_eq(other, route));
            if known.is_empty() {
                routes.remove(route.name());
            }
        }
    }

    /// During a reload two of one name may live: the one that runs answers.
    pub(crate) fn find(&self, partner: &str, name: &str) -> Option<Arc<T>> {
        let name = EndpointName::new(partner, name).ok()?;
        let routes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let known = routes.get(&name)?;
        known.iter().rev().find(|route| route.is_open()).or(known.last()).cloned()
    }
}

/// What calls are served by, and which calls are in hand.
#[derive(Debug)]
pub(crate) struct Gate<T: ?Sized> {
    behind: RwLock<Option<Arc<T>>>,
    in_hand: TaskTracker,
}

impl<T: ?Sized> Default for Gate<T> {
    fn default() -> Self {
        Self { behind: RwLock::new(None), in_hand: TaskTracker::new() }
    }
}

impl<T: ?Sized> Gate<T> {
    /// What is behind it, and a token that keeps it from closing while it lives; `None` while it is
    /// closed.
    pub(crate) fn take(&self) -> Option<(Arc<T>, TaskTrackerToken)> {
        // The token is made under the lock: closing cannot slip in between.
        let behind = self.behind.read().unwrap_or_else(PoisonError::into_inner);
        behind.as_ref().map(|behind| (Arc::clone(behind), self.in_hand.token()))
    }

    /// Whether calls are served.
    pub(crate) fn is_open(&self) -> bool {
        self.behind.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Serves calls until `stop` fires and those in hand have ended.
    pub(crate) async fn open(&self, behind: Arc<T>, stop: &Stop) {
        self.in_hand.reopen();
        self.set(Some(behind));
        let open = Open(self);
        stop.wait().await;
        drop(open);
        self.in_hand.close();
        self.in_hand.wait().await;
    }

    fn set(&self, behind: Option<Arc<T>>) {
        *self.behind.write().unwrap_or_else(PoisonError::into_inner) = behind;
    }
}

/// Closes it also when the future that held it open is dropped.
struct Open<'a, T: ?Sized>(&'a Gate<T>);

impl<T: ?Sized> Drop for Open<'_, T> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}
