//! The functions of a run that fail. The run measures the others, and reports these functions at its end.

use serde_json::{Value, json};

use crate::error::BenchError;

/// The functions that fail, in the order of their failures.
#[derive(Debug, Default)]
pub(crate) struct FunctionFailures(Vec<FunctionFailure>);

#[derive(Debug)]
struct FunctionFailure {
    /// The function's name in the summary.
    function: String,
    error: BenchError,
}

impl FunctionFailures {
    /// Records the failure of a step if the function is its cause. Returns what the step returned, and `None` for a
    /// recorded failure.
    ///
    /// # Errors
    /// The step failed for another reason.
    pub(crate) fn record<T>(&mut self, function: &str, step: Result<T, BenchError>) -> Result<Option<T>, BenchError> {
        match step {
            Ok(done) => Ok(Some(done)),
            Err(error) if error.is_of_function() => {
                self.0.push(FunctionFailure { function: function.to_owned(), error });
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Requires that at least one of `functions` has not failed.
    ///
    /// # Errors
    /// All failed: the error of the first.
    pub(crate) fn require_other(mut self, functions: usize) -> Result<Self, BenchError> {
        match !self.0.is_empty() && self.0.len() == functions {
            true => Err(self.0.swap_remove(0).error),
            false => Ok(self),
        }
    }

    /// Whether a function has failed.
    pub(crate) fn contains(&self, function: &str) -> bool {
        self.0.iter().any(|failure| failure.function == function)
    }

    /// Whether no function has failed.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One sentence for each function.
    pub(crate) fn sentences(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|failure| format!("Not measured: {}", failure.error))
    }

    /// The list `failures` of the document for scripts.
    pub(crate) fn to_json(&self) -> Value {
        let failure =
            |failure: &FunctionFailure| json!({ "function": failure.function, "error": failure.error.to_string() });
        self.0.iter().map(failure).collect()
    }

    /// One sentence for each function, or `verdict` if none has failed.
    pub(crate) fn sentences_or(&self, verdict: &str) -> Vec<String> {
        if self.is_empty() { vec![verdict.to_owned()] } else { self.sentences().collect() }
    }
}
