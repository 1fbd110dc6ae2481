//! `ChildTask`: makes the payload of each child of a load, and checks the child's output. It covers the C++ program
//! `sparse` and Python functions, so each load runs with either.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::functions::{function_failure, parse_call};
use super::sparse;
use crate::error::BenchError;

/// The task of a parent's children. Clients in other processes read it from their input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ChildTask {
    /// Each child touches four pages of the memory of `workload::sparse`, and computes a value from them that is unique
    /// to the child.
    Sparse { mib: u64 },
    /// Each child calls a function once. The digest of its result must equal the digest of the parent's result.
    Function { name: String, payload: String, digest: i64 },
}

impl ChildTask {
    /// The payload of the child with this number.
    pub(crate) fn payload(&self, number: u64) -> String {
        match self {
            Self::Sparse { .. } => number.to_string(),
            Self::Function { payload, .. } => payload.clone(),
        }
    }

    /// Adds the function, if there is one, to the error of a child.
    pub(crate) fn describe_failure(&self, error: BenchError) -> BenchError {
        match self {
            Self::Sparse { .. } => error,
            Self::Function { name, .. } => function_failure(name, None, error),
        }
    }

    /// Restores the error of a child from the text that a client has printed.
    pub(crate) fn parse_failure(&self, error: BenchError) -> BenchError {
        let (BenchError::ProgramFailed { why, .. }, Self::Function { name, .. }) = (&error, self) else { return error };
        match why.strip_prefix(&format!("function `{name}`: ")) {
            Some(cause) => BenchError::FunctionFailed { function: name.clone(), cause: cause.to_owned() },
            None => error,
        }
    }

    /// Parses the output of the child with this number. Returns the time at which the child had its result.
    ///
    /// # Errors
    /// The output has another form, or the result is wrong.
    pub(crate) fn parse_result_time(&self, output: &str, number: u64) -> Result<SystemTime, BenchError> {
        match self {
            Self::Sparse { mib } => sparse::parse_result_time(output, number, *mib),
            Self::Function { name, digest, .. } => {
                let call = parse_call(output, name, *digest)?;
                Ok(UNIX_EPOCH + Duration::from_nanos((call.started_ns + call.execution_ns).unsigned_abs()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::{BenchError, ChildTask};

    #[test]
    fn results_of_children_are_compared_with_the_parent() {
        let task = ChildTask::Function { name: "json".to_owned(), payload: "{}".to_owned(), digest: 7 };
        assert_eq!((task.payload(1), task.payload(2)), ("{}".to_owned(), "{}".to_owned()));
        let result = task.parse_result_time("ran 1000 500 7\n", 1).unwrap();
        assert_eq!(result, UNIX_EPOCH + Duration::from_nanos(1500));
        let error = task.parse_result_time("ran 1000 500 8\n", 1).unwrap_err().to_string();
        assert!(error.contains("json"), "{error}");
        assert!(task.parse_result_time("ready\n", 1).is_err());
    }

    #[test]
    fn the_error_of_a_child_passes_through_its_client() {
        let task = ChildTask::Function { name: "a.py:work".to_owned(), payload: "{}".to_owned(), digest: 7 };
        let failed = |why: String| BenchError::ProgramFailed { program: "forker", why };
        let error = task.describe_failure(failed("a call in a child: KeyError: 3 (line 4)".to_owned()));
        let restored = task.parse_failure(failed(error.to_string()));
        assert!(restored.is_of_function(), "{restored}");
        assert_eq!(restored.to_string(), error.to_string());
        let other = task.parse_failure(failed("node n1: it does not answer".to_owned()));
        assert!(!other.is_of_function() && other.to_string().starts_with("program `forker`"), "{other}");
    }

    #[test]
    fn each_child_of_sparse_has_its_own_result() {
        let task = ChildTask::Sparse { mib: 1 };
        assert_eq!(task.payload(7), "7");
        let value = super::sparse::expected_value(7, 1).cast_signed();
        assert!(task.parse_result_time(&format!("result 7 {value} 1000\n"), 7).is_ok());
        assert!(task.parse_result_time(&format!("result 7 {value} 1000\n"), 8).is_err());
    }
}
