//! Rules an operator writes, as the engine and the adapters see them. What language they are
//! written in is not their business.

use std::{any::Any, cell::OnceCell, fmt::Debug};

use bytes::Bytes;

use crate::{Answer, Cause, Message, SendError};

/// A message as rules see it. What a rule engine parsed once, the next rule finds here.
#[derive(Debug)]
pub struct View<'a> {
    /// The message.
    pub message: &'a Message,
    parsed: OnceCell<Box<dyn Any>>,
}

impl<'a> View<'a> {
    /// A view with nothing parsed yet.
    #[must_use]
    pub fn new(message: &'a Message) -> Self {
        Self { message, parsed: OnceCell::new() }
    }

    /// What an earlier rule parsed, or what `parse` makes of the message now. All rules of one view
    /// must ask for the same type.
    pub fn parsed<T: Any>(&self, parse: impl FnOnce(&Message) -> T) -> Option<&T> {
        self.parsed.get_or_init(|| Box::new(parse(self.message))).downcast_ref()
    }
}

/// A condition on a message: a destination's `when`.
pub trait Predicate: Debug + Send + Sync {
    /// Whether the message fulfils it.
    ///
    /// # Errors
    /// If the rule fails, or yields anything but exactly one boolean: that is never "no".
    fn test(&self, view: &View<'_>) -> Result<bool, RuleError>;
}

/// Why a condition has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// It fails on this message, and will again until one of them is changed.
    #[error("{0}")]
    Fault(String),
    /// It could not be evaluated now; it may be later.
    #[error("{0}")]
    Busy(String),
}

/// What a rule makes of a partner's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// The other side holds the message.
    Success,
    /// The other side had it already.
    Duplicate,
    /// Try again later.
    Retry(Cause),
    /// It will never be taken.
    Dead(Cause),
}

/// Decides from a partner's answer what became of the message.
pub trait AnswerRule: Debug + Send + Sync {
    /// `None`: no rule is set, the transport's own table decides.
    fn judge(&self, answer: &Answer) -> Option<Judgement>;
}

/// The way in: fills the envelope from the body as the source's `read` says.
pub trait Reader: Debug + Send + Sync {
    /// Reads one arrival.
    ///
    /// # Errors
    /// `Permanent` with the reason, if it cannot be read.
    fn read(&self, message: &mut Message) -> Result<(), SendError>;
}

/// What goes over the wire for one delivery, pinned once an attempt may have reached the partner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The bytes.
    pub body: Bytes,
    /// Their media type.
    pub content_type: Option<String>,
}

/// The way out: puts a message into the partner's form as the destination's `write` says.
pub trait Writer: Debug + Send + Sync {
    /// Writes one message.
    ///
    /// # Errors
    /// `Permanent` with the reason, if it cannot be written.
    fn write(&self, message: &Message) -> Result<Written, SendError>;
}
