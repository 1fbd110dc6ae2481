//! A program whose children wait for requests, each of which runs a function of theirs. `warm_function.cpp` is the
//! program.

use std::path::Path;
use std::time::Duration;

use crate::embedded_program::EmbeddedProgram;
use crate::error::BenchError;

/// The program.
pub(crate) const WARM_FUNCTION: EmbeddedProgram =
    EmbeddedProgram { name: "warm_function", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/warm_function")) };

/// A request, as it goes to a container and comes back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FunctionRun {
    pub(crate) number: u64,
    pub(crate) value: u64,
    /// From asking for the container to go on until it was told that it does.
    pub(crate) unpause: Duration,
    /// From asking for that until the function's answer was there.
    pub(crate) answer: Duration,
    /// From asking for the container to stand still until it was told that it does.
    pub(crate) pause: Duration,
}

/// The payload of a child that is to connect to a socket as that one, and whose function takes so many steps.
pub(crate) fn payload(index: usize, steps: u64, socket: &Path) -> String {
    format!("{index} {steps} {}", socket.display())
}

/// Whether every function gave what it must.
///
/// # Errors
/// One did not.
pub(crate) fn check_values(turns: &[FunctionRun], steps: u64) -> Result<(), BenchError> {
    let wrong =
        turns.iter().filter(|function_run| function_run.value != expected_value(function_run.number, steps)).count();
    if wrong == 0 {
        return Ok(());
    }
    Err(BenchError::WrongMemory { count: wrong as u64, what: "answers of functions" })
}

fn expected_value(number: u64, steps: u64) -> u64 {
    (0..steps).fold(splitmix64_mix(number), |value, step| splitmix64_mix(value.wrapping_add(step)))
}

/// `SplitMix64`'s finaliser, as `parent.h` has it.
pub(super) fn splitmix64_mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{FunctionRun, check_values, expected_value};

    #[test]
    fn a_wrong_answer_is_an_error() {
        let function_run = |number, value| {
            let us = Duration::from_micros(1);
            FunctionRun { number, value, unpause: us, answer: us, pause: us }
        };
        let right = function_run(7, expected_value(7, 3));
        assert!(check_values(&[right, function_run(8, expected_value(8, 3))], 3).is_ok());
        assert!(
            check_values(&[right, function_run(8, expected_value(7, 3))], 3)
                .unwrap_err()
                .to_string()
                .starts_with("1 answers")
        );
        assert_ne!(expected_value(7, 3), expected_value(7, 4));
    }
}
