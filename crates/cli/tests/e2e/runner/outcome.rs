//! `Failure`: why a test failed. The kind of a failure decides whether the test runs again.

use serde::{Deserialize, Serialize};

/// Why a test failed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Failure {
    pub(super) kind: FailureKind,
    /// The reason. Its first line is a summary.
    pub(super) reason: String,
    /// Whether the shared cluster could not be started.
    pub(super) has_no_cluster: bool,
}

/// Distinguishes timeouts, which a slow machine can cause, from all other failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FailureKind {
    /// A wait timed out, or the test's own time limit expired. The test runs once more.
    TimedOut,
    /// A wrong result, harm, a leak or a refusal. The test does not run again.
    Wrong,
}

impl Failure {
    pub(super) fn timed_out(reason: impl Into<String>) -> Self {
        Self { kind: FailureKind::TimedOut, reason: reason.into(), has_no_cluster: false }
    }

    pub(super) fn wrong(reason: impl Into<String>) -> Self {
        Self { kind: FailureKind::Wrong, reason: reason.into(), has_no_cluster: false }
    }

    pub(super) fn first_line(&self) -> &str {
        self.reason.lines().find(|line| !line.trim().is_empty()).unwrap_or("no reason").trim()
    }

    /// Returns the failure of a test with these panics. A wrong result has precedence over timeouts.
    pub(super) fn from_panics(panics: &[Self]) -> Option<Self> {
        panics.iter().find(|panic| panic.kind == FailureKind::Wrong).or_else(|| panics.first()).cloned()
    }
}
