//! Between a partner's form and ours: charsets, and the rules operators write in jq. Pure: no clock,
//! no environment, no files; what a rule yields depends on the message alone.
//!
//! [`Jq`] compiles and runs one expression within a budget; [`JqPredicate`], [`Identify`] and
//! [`JqAnswerRule`] are the core's traits on top of it; [`Json`] keeps every digit of a number.

mod answer;
mod charset;
mod envelope;
mod identify;
mod jq;
mod json;
mod predicate;

pub use answer::{AnswerFormat, AnswerTexts, Else, JqAnswerRule, NoRule};
pub use charset::{Charset, CharsetError};
pub use identify::{Identify, IdentifyTexts, MissingId};
pub use jq::{Budget, Evaluators, Jq, JqError, JqErrorKind};
pub use json::{DEPTH_MAX, Json, JsonError};
pub use predicate::JqPredicate;
