//! An adapter's small durable values: its corner of the store, or nothing while a configuration is
//! only checked.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use pabal_core::{EndpointName, State, StateConflict, StateValue, Store, StoreError};

/// The values of one source or destination.
#[derive(Debug)]
pub(crate) struct EndpointState {
    store: Arc<dyn Store>,
    endpoint: EndpointName,
}

impl EndpointState {
    pub(crate) fn new(store: Arc<dyn Store>, endpoint: EndpointName) -> Self {
        Self { store, endpoint }
    }
}

#[async_trait]
impl State for EndpointState {
    async fn get(&self, name: &str) -> Result<Option<StateValue>, StoreError> {
        self.store.state(&self.endpoint, name).await
    }

    async fn compare_and_set(
        &self,
        name: &str,
        revision: i64,
        value: Bytes,
    ) -> Result<Result<(), StateConflict>, StoreError> {
        self.store.set_state(&self.endpoint, name, revision, value).await
    }
}

/// Stands in while a configuration is only checked: building a sender or receiver asks for nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NoState;

#[async_trait]
impl State for NoState {
    async fn get(&self, _name: &str) -> Result<Option<StateValue>, StoreError> {
        Err(unavailable())
    }

    async fn compare_and_set(
        &self,
        _name: &str,
        _revision: i64,
        _value: Bytes,
    ) -> Result<Result<(), StateConflict>, StoreError> {
        Err(unavailable())
    }
}

fn unavailable() -> StoreError {
    StoreError::Unavailable("the configuration is only being checked".to_owned())
}
