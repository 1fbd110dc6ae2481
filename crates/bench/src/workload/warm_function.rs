//! Programs whose children run a function for each request that arrives on a socket. One is `warm_function.cpp`; the
//! other is `functions/runner.py` with a Python function.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::functions::{FunctionOptions, FunctionParent, FunctionSource, function_failure};
use super::parent_root::ParentRoot;
use super::{ParentProgram, start_parent};
use crate::error::BenchError;
use crate::machine::Machine;
use crate::machine::program::EmbeddedProgram;

/// The name of the C++ program in summaries.
const STEPS: &str = "steps";

/// A program whose children are paused between requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WarmWorkload {
    /// A C++ program whose function computes a number of steps.
    Steps {
        /// Steps of each call.
        steps: u64,
        /// Private memory, in MiB.
        mib: u64,
    },
    /// A Python function.
    Function {
        /// The function.
        source: FunctionSource,
        /// The payload of every call, a JSON document.
        payload: String,
    },
}

/// A running parent. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct WarmParent {
    pub(crate) program: ParentProgram,
    /// How the values of the parent's children are checked.
    pub(crate) expected: ExpectedValue,
}

/// How a child's value is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExpectedValue {
    /// The value follows from the number of the request and this number of steps.
    Steps(u64),
    /// The value is the digest of the result of this function in its parent.
    Digest { function: String, digest: u64 },
}

impl WarmWorkload {
    /// The name of the workload in summaries.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Steps { .. } => STEPS,
            Self::Function { source, .. } => &source.name,
        }
    }

    /// The function, if it is one.
    pub(crate) fn source(&self) -> Option<&FunctionSource> {
        match self {
            Self::Steps { .. } => None,
            Self::Function { source, .. } => Some(source),
        }
    }

    /// Writes the workload's files to a machine, and starts a parent there, with a root of its own if `root` is given.
    /// `options` are for functions.
    ///
    /// # Errors
    /// The program cannot be started, or a function's results differ between calls.
    pub(crate) fn start(
        &self,
        machine: &dyn Machine,
        options: &FunctionOptions,
        root: Option<&ParentRoot>,
    ) -> Result<WarmParent, BenchError> {
        match self {
            Self::Steps { steps, mib } => {
                WARM_FUNCTION.install(machine)?;
                let parent = start_parent(&WARM_FUNCTION, machine, *mib, root)?;
                Ok(WarmParent { program: ParentProgram::Cpp(parent), expected: ExpectedValue::Steps(*steps) })
            }
            Self::Function { source, payload } => {
                let parent = FunctionParent::start(source, options, machine, payload, root)?;
                let expected =
                    ExpectedValue::Digest { function: source.to_string(), digest: parent.digest().cast_unsigned() };
                Ok(WarmParent { program: ParentProgram::Function(Box::new(parent)), expected })
            }
        }
    }
}

impl WarmParent {
    /// The payload of a child that connects to a socket, and first writes its index to the socket.
    pub(crate) fn payload(&self, index: usize, socket: &Path) -> String {
        match &self.expected {
            ExpectedValue::Steps(steps) => format!("{index} {steps} {}", socket.display()),
            ExpectedValue::Digest { .. } => format!("warm {index} {}", socket.display()),
        }
    }
}

impl ExpectedValue {
    /// Adds the function, if there is one, to the error of a process that calls it.
    pub(crate) fn describe_failure(&self, error: BenchError) -> BenchError {
        match self {
            Self::Steps(_) => error,
            Self::Digest { function, .. } => function_failure(function, None, error),
        }
    }

    /// Checks all values.
    ///
    /// # Errors
    /// Some values are wrong.
    pub(crate) fn check(&self, runs: &[FunctionRun]) -> Result<(), BenchError> {
        match self {
            Self::Steps(steps) => {
                let is_wrong = |run: &&FunctionRun| run.value != expected_value(run.number, *steps);
                match runs.iter().filter(is_wrong).count() as u64 {
                    0 => Ok(()),
                    count => Err(BenchError::WrongMemory { count, what: "answers of functions" }),
                }
            }
            Self::Digest { function, digest } => match runs.iter().all(|run| run.value == *digest) {
                true => Ok(()),
                false => Err(BenchError::WrongResult { function: function.clone(), child_of: "farfork or os.fork()" }),
            },
        }
    }
}

/// The program.
pub(crate) const WARM_FUNCTION: EmbeddedProgram =
    EmbeddedProgram { name: "warm_function", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/warm_function")) };

/// The number of an answer if the call failed. The value is then the length of an error text, and the text follows.
pub(crate) const FAILED_CALL: u64 = u64::MAX;

/// Maximum length of an error text, in bytes.
pub(crate) const FAILURE_BYTES_MAX: u64 = 4096;

/// One request to a paused child, with its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FunctionRun {
    pub(crate) number: u64,
    pub(crate) value: u64,
    /// Time from the request to unpause the child to the confirmation.
    pub(crate) unpause: Duration,
    /// Time from the request to unpause the child to its function's answer.
    pub(crate) answer: Duration,
    /// Time from the request to pause the child to the confirmation.
    pub(crate) pause: Duration,
}

fn expected_value(number: u64, steps: u64) -> u64 {
    (0..steps).fold(splitmix64_mix(number), |value, step| splitmix64_mix(value.wrapping_add(step)))
}

/// The finaliser of `SplitMix64`, as in `parent.h`.
pub(super) fn splitmix64_mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{BenchError, ExpectedValue, FunctionRun, expected_value};

    #[test]
    fn a_wrong_value_is_an_error() {
        let function_run = |number, value| {
            let us = Duration::from_micros(1);
            FunctionRun { number, value, unpause: us, answer: us, pause: us }
        };
        let (right, three) = (function_run(7, expected_value(7, 3)), ExpectedValue::Steps(3));
        assert!(three.check(&[right, function_run(8, expected_value(8, 3))]).is_ok());
        let wrong = three.check(&[right, function_run(8, expected_value(7, 3))]).unwrap_err().to_string();
        assert!(wrong.starts_with("1 answers"), "{wrong}");
        let json = ExpectedValue::Digest { function: "json".to_owned(), digest: 5 };
        assert!(json.check(&[function_run(1, 5), function_run(2, 5)]).is_ok());
        let wrong = json.check(&[function_run(1, 5), function_run(2, 6)]).unwrap_err().to_string();
        assert!(wrong.contains("json"), "{wrong}");
        assert_ne!(expected_value(7, 3), expected_value(7, 4));
    }

    #[test]
    fn the_error_of_a_child_names_its_function() {
        let failed = || BenchError::ProgramFailed { program: "warm_function", why: "a call: KeyError: 3".to_owned() };
        let json = ExpectedValue::Digest { function: "json".to_owned(), digest: 5 };
        assert_eq!(json.describe_failure(failed()).to_string(), "function `json`: a call: KeyError: 3");
        assert!(ExpectedValue::Steps(3).describe_failure(failed()).to_string().starts_with("program `warm_function`"));
    }
}
