//! One jq expression: compiled once, run within a budget.

mod bounded;
mod check;
mod error;
mod evaluators;
mod guard;
mod library;

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::AtomicBool},
};

use jaq_core::{Ctx, Vars};
use jaq_json::Val;

pub use error::{JqError, JqErrorKind};
pub use evaluators::{Budget, Evaluators};

use crate::Json;
use library::{Data, Filter, Steps};

/// A compiled jq expression. It is a pure function of its input and variables: there is no clock, no
/// environment and no further input, and a definition cannot call itself. Cloning it is cheap.
#[derive(Clone)]
pub struct Jq {
    text: Arc<str>,
    filter: Arc<Filter>,
    /// It cannot take long or go deep, so it needs no thread of its own.
    bounded: bool,
    variables: usize,
    evaluators: Arc<Evaluators>,
}

impl fmt::Debug for Jq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Jq").field(&self.text).finish()
    }
}

impl Jq {
    /// Compiles `text`, which may use the variables `vars` (named without `$`).
    ///
    /// # Errors
    /// What is wrong with it, and where in the text.
    pub fn compile(text: &str, vars: &[&str]) -> Result<Self, JqError> {
        let (filter, bounded) = library::compile(text, vars)?;
        Ok(Self {
            text: text.into(),
            filter: Arc::new(filter),
            bounded,
            variables: vars.len(),
            evaluators: Evaluators::shared(),
        })
    }

    /// The same expression, run by other threads or with another budget.
    #[must_use]
    pub fn on(mut self, evaluators: Arc<Evaluators>) -> Self {
        self.evaluators = evaluators;
        self
    }

    /// The text it was compiled from.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// All it yields for `input`; `vars` in the order they were named. Blocks: what is
    /// plainly bounded (paths, comparisons, `and`, `or`) runs at once on this thread, all else on
    /// another for at most the budget's time, and up to ten times that while all are busy.
    ///
    /// # Errors
    /// If the expression fails or exceeds its budget.
    pub fn run(&self, input: &Json, vars: &[Json]) -> Result<Vec<Json>, JqError> {
        if vars.len() != self.variables {
            return Err(JqError::new(
                JqErrorKind::Failed,
                format!("needs {} variables and got {}", self.variables, vars.len()),
            ));
        }
        let (filter, input) = (Arc::clone(&self.filter), input.0.clone());
        let vars: Vec<Val> = vars.iter().map(|var| var.0.clone()).collect();
        let budget = self.evaluators.budget();
        if self.bounded {
            let cancelled = AtomicBool::new(false);
            let run = || evaluate(&filter, input, vars, &budget, &cancelled);
            return catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(JqError::panic()));
        }
        self.evaluators.run(move |cancelled| evaluate(&filter, input, vars, &budget, cancelled))?
    }
}

/// Runs on a thread of the evaluators.
fn evaluate(
    filter: &Filter,
    input: Val,
    vars: Vec<Val>,
    budget: &Budget,
    cancelled: &AtomicBool,
) -> Result<Vec<Json>, JqError> {
    let steps = Steps::new(budget.steps_max, cancelled);
    let context = Ctx::<Data>::new((&filter.lut, &steps), Vars::new(vars));
    let mut outputs = Vec::new();
    let mut bytes_left = budget.output_bytes_max;
    for output in filter.id.run((context, input)) {
        steps.check()?;
        let output = output.map(Json).map_err(|exception| {
            let text = match exception.get_err() {
                Ok(error) => match Json(error.clone().into_val()).as_plain_text() {
                    Some(text) => text,
                    None => error.to_string(),
                },
                Err(_) => "it ended itself".to_owned(),
            };
            JqError::new(JqErrorKind::Failed, pabal_core::shorten(&text, 500))
        })?;
        if outputs.len() == budget.outputs_max {
            return Err(JqError::new(
                JqErrorKind::Budget,
                format!("yields more than {} values", budget.outputs_max),
            ));
        }
        let size = output.size(bytes_left).ok_or_else(|| {
            JqError::new(
                JqErrorKind::Budget,
                format!(
                    "yields more than {} bytes, or nests deeper than {}",
                    budget.output_bytes_max,
                    crate::DEPTH_MAX
                ),
            )
        })?;
        bytes_left -= size;
        outputs.push(output);
    }
    // An error may have been caught by the expression itself.
    steps.check()?;
    Ok(outputs)
}

#[cfg(test)]
mod tests;
