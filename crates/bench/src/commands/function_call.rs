//! `FunctionCallArgs`: the arguments of commands that call Python functions.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use farfork_api::limits::PAYLOAD_BYTES_MAX;
use farfork_bench::{BenchError, FunctionOptions};

/// How functions are called.
#[derive(Args)]
pub(crate) struct FunctionCallArgs {
    /// The payload of every call of a Python function: a JSON document, or @FILE for the document in a file.
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = parse_payload)]
    pub(crate) payload: String,
    /// The Python that runs the functions [default: python3 for your own functions, and an environment with the packages
    /// of the nine functions for these].
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Time limit for loading a Python function's file, and for each call [default: 60s].
    #[arg(long, value_name = "TIME", value_parser = parse_limit)]
    timeout: Option<Duration>,
}

/// Maximum time limit of a call: a week.
const LIMIT_MAX: Duration = Duration::from_secs(604_800);

impl FunctionCallArgs {
    /// How the processes that run functions are started.
    ///
    /// # Errors
    /// The errors of [`FunctionOptions::new`].
    pub(crate) fn options(&self) -> Result<FunctionOptions, BenchError> {
        FunctionOptions::new(self.python.clone(), self.timeout)
    }

    /// As `options`, for processes with a root of their own, in which the Python is.
    pub(crate) fn options_in_root(&self) -> FunctionOptions {
        FunctionOptions::in_root(self.python.clone(), self.timeout)
    }
}

/// Returns the JSON document of an argument, unchanged.
fn parse_payload(text: &str) -> Result<String, String> {
    let document = match text.strip_prefix('@') {
        Some(path) => fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?,
        None => text.to_owned(),
    };
    if document.len() > PAYLOAD_BYTES_MAX {
        return Err(format!("larger than a payload can be: {PAYLOAD_BYTES_MAX} bytes"));
    }
    let parsed: Result<serde_json::Value, _> = serde_json::from_str(&document);
    parsed.map(|_| document).map_err(|error| format!("not a JSON document: {error}; for a document in a file: @FILE"))
}

fn parse_limit(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(limit) if limit.is_zero() || limit > LIMIT_MAX => Err("write a time above 0 and up to 7d".to_owned()),
        parsed => parsed.map_err(|_| "write a time with its unit, such as 90s or 5m".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{PAYLOAD_BYTES_MAX, parse_limit, parse_payload};

    #[test]
    fn a_limit_is_above_zero_and_not_more_than_a_week() {
        assert!(["1ns", "90s", "7d"].iter().all(|text| parse_limit(text).is_ok()));
        assert!(["0s", "5", "8d", "18446744073709551615s"].iter().all(|text| parse_limit(text).is_err()));
    }

    #[test]
    fn a_payload_is_a_document_or_the_name_of_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("payload.json");
        fs::write(&file, "{\"size\": 3}").unwrap();
        assert_eq!(parse_payload("[1]").unwrap(), "[1]");
        assert_eq!(parse_payload(&format!("@{}", file.display())).unwrap(), "{\"size\": 3}");
        for wrong in ["", "{", "@/nonexistent/payload.json"] {
            assert!(parse_payload(wrong).is_err(), "{wrong}");
        }
        fs::write(&file, format!("\"{}\"", "x".repeat(PAYLOAD_BYTES_MAX - 1))).unwrap();
        assert!(parse_payload(&format!("@{}", file.display())).unwrap_err().contains("16777216 bytes"));
    }
}
