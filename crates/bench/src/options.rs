//! Options that several benchmarks share, and the parsers of their values.

use std::fs;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use farfork_api::limits::PAYLOAD_BYTES_MAX;
use serde::Serialize;

use crate::error::BenchError;
use crate::experiment::local_cluster::node_arguments;
use crate::workload::functions::FunctionOptions;

/// Maximum length of a run, in seconds: a week.
const SECONDS_MAX: f64 = 604_800.0;

/// The option `--encryption`.
#[derive(Debug, Clone, Copy, Args, Serialize)]
pub(crate) struct EncryptionOption {
    /// Encrypt memory transfers between the nodes. The nodes authenticate each other in either case.
    #[arg(long = "encryption", value_name = "on|off", action = clap::ArgAction::Set, value_parser = parse_on_off(), default_value = "on")]
    pub(crate) encrypted: bool,
}

impl EncryptionOption {
    /// A note about the link between the nodes.
    pub(crate) fn note(self) -> String {
        format!("Memory crosses the link between the nodes {}.", if self.encrypted { "encrypted" } else { "in clear" })
    }
}

/// The options of the nodes that a benchmark starts.
#[derive(Debug, Clone, Default, Args, Serialize)]
pub(crate) struct NodeOptions {
    /// Number of containers that each node keeps ready [default: as `farfork node`].
    #[arg(long, value_name = "N", value_parser = size(1..=256))]
    pub(crate) pool: Option<u64>,
    /// Maximum number of zygotes of each node; 0 for none [default: as `farfork node`].
    #[arg(long, value_name = "N")]
    pub(crate) zygotes: Option<u64>,
}

impl NodeOptions {
    /// The arguments of `farfork node`.
    pub(crate) fn arguments(&self) -> Vec<String> {
        node_arguments(&[("--pool", self.pool), ("--zygotes", self.zygotes)])
    }
}

/// The option `--samples`.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SamplesOption {
    /// Write each sample to this file, as a line of JSON.
    #[arg(long = "samples", value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

/// A parser of `on` and `off`.
pub(crate) fn parse_on_off() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["on", "off"]).map(|choice| choice == "on")
}

/// A parser of numbers of things.
pub(crate) fn count(range: RangeInclusive<u64>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(range)
}

/// A parser of sizes in MiB, bytes or other units.
pub(crate) fn size(range: RangeInclusive<u64>) -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(range)
}

/// Parses a number of seconds above 0.
pub(crate) fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= SECONDS_MAX => Ok(seconds),
        _ => Err(format!("write a number of seconds without a unit, above 0 and up to {SECONDS_MAX}")),
    }
}

/// How functions are called.
#[derive(Debug, Clone, Args)]
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

/// The arguments of a command, for tests.
#[cfg(test)]
pub(crate) fn parse_arguments<A: Args>(arguments: &[&str]) -> A {
    let command = A::augment_args(clap::Command::new("farfork").no_binary_name(true));
    A::from_arg_matches(&command.get_matches_from(arguments)).expect("valid arguments")
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
