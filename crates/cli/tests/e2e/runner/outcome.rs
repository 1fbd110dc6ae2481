//! `Failure`: why a test failed. The kind of a failure decides whether the test runs again.

use serde::{Deserialize, Serialize};

/// Maximum size of a reason. The log of the test has a longer one, such as a comparison of large values.
const REASON_BYTES_MAX: usize = 64 << 10;

/// Maximum size of a reason in the list of failures.
const SUMMARY_BYTES_MAX: usize = 1 << 10;

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
        Self { kind: FailureKind::TimedOut, reason: shorten(reason.into(), REASON_BYTES_MAX), has_no_cluster: false }
    }

    pub(super) fn wrong(reason: impl Into<String>) -> Self {
        Self { kind: FailureKind::Wrong, reason: shorten(reason.into(), REASON_BYTES_MAX), has_no_cluster: false }
    }

    /// Returns the first line of the reason. Adds the next line if the first one only announces it, as the exit status of a
    /// command does.
    pub(super) fn first_line(&self) -> String {
        let mut lines = self.reason.lines().map(str::trim).filter(|line| !line.is_empty());
        let Some(first) = lines.next() else { return "no reason".to_owned() };
        let text = first.rsplit_once(" (").filter(|(_, place)| place.ends_with(')')).map_or(first, |(text, _)| text);
        let is_announcement = text.ends_with(':') || text.contains("exit status: ");
        let summary = match lines.next().filter(|_| is_announcement) {
            Some(next) => format!("{first} {next}"),
            None => first.to_owned(),
        };
        shorten(summary, SUMMARY_BYTES_MAX)
    }

    /// Returns the failure of a test with these panics. A wrong result has precedence over timeouts.
    pub(super) fn from_panics(panics: &[Self]) -> Option<Self> {
        panics.iter().find(|panic| panic.kind == FailureKind::Wrong).or_else(|| panics.first()).cloned()
    }
}

/// Limits the size of a text.
fn shorten(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max));
        text.push('…');
    }
    text
}
