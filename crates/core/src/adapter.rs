//! What a new transport implements.

use std::{fmt::Debug, sync::Arc};

use crate::{
    AnswerRule, Clock, ConfigError, EndpointName, Pickup, Receiver, Secrets, Sender, Settings,
    State,
};

/// JSON Schema of an adapter's own table: for editors and the generated reference.
pub type Schema = schemars::Schema;

/// One transport. Building a sender or receiver opens no connection, so that a configuration can be
/// checked offline.
pub trait Adapter: Debug + Send + Sync {
    /// The name of its table in the configuration: `[destination.x.rest]`.
    fn name(&self) -> &'static str;
    /// What its table may hold in a destination.
    fn sender_schema(&self) -> Schema;
    /// What its table may hold in a source.
    fn receiver_schema(&self) -> Schema;
    /// The sending side of one destination.
    ///
    /// # Errors
    /// All faults found in the settings.
    fn sender(&self, context: Context) -> Result<Box<dyn Sender>, Vec<ConfigError>>;
    /// The receiving side of one source.
    ///
    /// # Errors
    /// All faults found in the settings.
    fn receiver(&self, context: Context) -> Result<Box<dyn Receiver>, Vec<ConfigError>>;
    /// What lets a destination's partner fetch its messages, for an adapter that does not send: asked
    /// in place of [`Adapter::sender`]. `None`: it sends.
    ///
    /// # Errors
    /// All faults found in the settings.
    fn pickup(&self, _context: &Context) -> Result<Option<Box<dyn Pickup>>, Vec<ConfigError>> {
        Ok(None)
    }
}

/// What an adapter is given to build one source or destination.
#[derive(Debug, Clone)]
pub struct Context {
    /// Whom it serves.
    pub name: EndpointName,
    /// Its own table.
    pub settings: Settings,
    /// Where its secrets are.
    pub secrets: Arc<dyn Secrets>,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// Its small durable values.
    pub state: Arc<dyn State>,
    /// What to make of an answer.
    pub answer: Arc<dyn AnswerRule>,
    /// Whether the store can commit a statement of an origin's together with its message; see
    /// [`crate::Store::alongside`].
    pub alongside: bool,
    /// The largest body it may take or send, in bytes.
    pub body_bytes_max: usize,
}
