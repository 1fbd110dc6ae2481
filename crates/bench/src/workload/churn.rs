//! A program whose children change their memory at a high rate. `churn.cpp` is the program.

use std::fmt::{self, Display};
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Serialize;

use crate::embedded_program::{EmbeddedProgram, parse_numbers};
use crate::error::BenchError;

/// The program.
pub(crate) const CHURN: EmbeddedProgram =
    EmbeddedProgram { name: "churn", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/churn")) };

/// How the program changes its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ChurnOperation {
    Decay,
    Remap,
    Collect,
    Forks,
    Signals,
}

impl ChurnOperation {
    pub(crate) const ALL: [Self; 5] = [Self::Decay, Self::Remap, Self::Collect, Self::Forks, Self::Signals];

    /// The text for people.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Decay => "an allocator frees and fills",
            Self::Remap => "blocks move, grow and shrink",
            Self::Collect => "a collector copies live pages",
            Self::Forks => "a hundred processes at once",
            Self::Signals => "a signal every 200 µs",
        }
    }
}

/// The name of the operation for the program.
impl Display for ChurnOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Decay => "decay",
            Self::Remap => "remap",
            Self::Collect => "collect",
            Self::Forks => "forks",
            Self::Signals => "signals",
        })
    }
}

/// Measures the time of an operation in a process that was never forked, in µs. `payload` is the file that names the
/// operation.
pub(crate) fn measure_unforked_us(program: &Path, mib: u64, payload: &Path) -> Result<f64, BenchError> {
    let mut command = Command::new(program);
    let output = command.arg(mib.to_string()).arg(payload).stdin(Stdio::null()).output();
    let output = output.map_err(|cause| BenchError::Program { program: CHURN.name, cause })?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    parse_duration_us(stdout.trim().strip_prefix("ready\n").unwrap_or(&stdout))
}

/// Parses a child's output. Returns the time of its operation, in µs.
///
/// # Errors
/// The output has another form, or pages were wrong.
pub(crate) fn parse_duration_us(output: &str) -> Result<f64, BenchError> {
    match parse_numbers(CHURN.name, output, "churned")? {
        [us, 0] => Ok(us as f64),
        [_, wrong] => Err(BenchError::WrongMemory { count: wrong.unsigned_abs(), what: "pages of a program" }),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_duration_us;

    #[test]
    fn wrong_pages_are_an_error() {
        assert_eq!(parse_duration_us("churned 1500 0\n").unwrap(), 1500.0);
        assert!(parse_duration_us("churned 1500 2\n").unwrap_err().to_string().starts_with("2 pages"));
        assert!(parse_duration_us("ready\n").is_err());
    }
}
