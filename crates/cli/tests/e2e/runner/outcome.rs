//! `Failure`: how a test ended. The kind of a failure decides whether the test runs once more.

use serde::{Deserialize, Serialize};

/// Why a test failed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Failure {
    pub(super) kind: FailureKind,
    /// The first line is a summary.
    pub(super) reason: String,
    /// Whether the shared cluster did not start.
    pub(super) has_no_cluster: bool,
}

/// Separates a slow machine, or a lost wake-up, from everything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FailureKind {
    /// A wait timed out, or the test's own limit expired: the test runs once more.
    TimedOut,
    /// Wrong results, harm, leaks or refusals: never runs again.
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

    /// The failure of a test with these panics: a wrong result outweighs all timeouts.
    pub(super) fn from_panics(panics: &[Self]) -> Option<Self> {
        panics.iter().find(|panic| panic.kind == FailureKind::Wrong).or_else(|| panics.first()).cloned()
    }
}
