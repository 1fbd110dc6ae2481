//! `SuiteOutcome`: how each benchmark of `farfork bench all` ended. It is the file `suite.json` of the results, and the
//! first table of a report.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// The name of the file with the outcome, without the extension.
pub(crate) const SUITE_FILE: &str = "suite";

/// How all benchmarks ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SuiteOutcome {
    /// The benchmarks, in the order in which they ran.
    pub(crate) runs: Vec<SuiteRunOutcome>,
}

/// How one benchmark ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SuiteRunOutcome {
    /// The benchmark.
    pub(crate) name: String,
    /// Its command line.
    pub(crate) command: String,
    /// The time that it took, in seconds.
    pub(crate) seconds: f64,
    /// Why the benchmark failed; `None` if it did not.
    pub(crate) failure: Option<String>,
}

impl SuiteOutcome {
    /// Whether any benchmark failed.
    pub(crate) fn has_failures(&self) -> bool {
        self.failures().next().is_some()
    }

    /// The benchmarks that failed.
    pub(crate) fn failures(&self) -> impl Iterator<Item = &SuiteRunOutcome> {
        self.runs.iter().filter(|run| run.failure.is_some())
    }

    /// The time of all benchmarks, in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.runs.iter().map(|run| run.seconds).sum()
    }

    /// Reads the outcome of earlier runs in this directory. A damaged file is ignored, because the next run replaces it.
    pub(crate) fn read(directory: &Path) -> Self {
        let text = fs::read_to_string(directory.join(format!("{SUITE_FILE}.json"))).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Replaces the outcome of a benchmark.
    pub(crate) fn record(&mut self, outcome: SuiteRunOutcome) {
        self.runs.retain(|run| run.name != outcome.name);
        self.runs.push(outcome);
    }

    /// Writes the file.
    pub(crate) fn write(&self, directory: &Path) -> Result<(), BenchError> {
        let path = directory.join(format!("{SUITE_FILE}.json"));
        let text = serde_json::to_string_pretty(self).expect("an outcome serialises");
        fs::write(&path, text + "\n").map_err(|cause| BenchError::File { path, cause })
    }
}

#[cfg(test)]
mod tests {
    use super::{SuiteOutcome, SuiteRunOutcome};

    #[test]
    fn a_run_replaces_the_earlier_outcome_of_its_benchmark() {
        let run = |name: &str, seconds, failure: Option<&str>| SuiteRunOutcome {
            name: name.to_owned(),
            command: String::new(),
            seconds,
            failure: failure.map(str::to_owned),
        };
        let directory = tempfile::tempdir().unwrap();
        let mut outcome = SuiteOutcome::read(directory.path());
        outcome.record(run("fork", 1.0, Some("no root")));
        outcome.record(run("pool", 2.0, None));
        assert!(outcome.has_failures());
        outcome.record(run("fork", 4.0, None));
        outcome.write(directory.path()).unwrap();
        let outcome = SuiteOutcome::read(directory.path());
        assert_eq!((outcome.runs.len(), outcome.seconds(), outcome.has_failures()), (2, 6.0, false));
    }
}
