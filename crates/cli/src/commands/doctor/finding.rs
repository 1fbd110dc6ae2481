//! [`HostFinding`]: the result of one check.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

/// The consequence of a finding for a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FindingStatus {
    Ok,
    /// A part of farfork does not work, or a limit is low.
    Warning,
    /// A node cannot run, or cannot have children.
    Problem,
}

impl Display for FindingStatus {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            FindingStatus::Ok => "ok",
            FindingStatus::Warning => "warning",
            FindingStatus::Problem => "problem",
        })
    }
}

/// The result of one check.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct HostFinding {
    /// Name of the check. It does not change between releases.
    pub(super) check: &'static str,
    pub(super) status: FindingStatus,
    /// The present state.
    pub(super) found: String,
    /// The command or change that mends it; `None` if the state is good.
    pub(super) remedy: Option<String>,
}

impl HostFinding {
    pub(super) fn ok(check: &'static str, found: impl Display) -> Self {
        Self { check, status: FindingStatus::Ok, found: found.to_string(), remedy: None }
    }

    pub(super) fn warning(check: &'static str, found: impl Display, remedy: impl Into<String>) -> Self {
        Self { check, status: FindingStatus::Warning, found: found.to_string(), remedy: Some(remedy.into()) }
    }

    pub(super) fn problem(check: &'static str, found: impl Display, remedy: impl Into<String>) -> Self {
        Self { check, status: FindingStatus::Problem, found: found.to_string(), remedy: Some(remedy.into()) }
    }

    /// A problem with this remedy if `result` is an error.
    pub(super) fn of_result<E: Display>(check: &'static str, result: Result<&str, E>, remedy: &str) -> Self {
        match result {
            Ok(found) => Self::ok(check, found),
            Err(error) => Self::problem(check, error, remedy),
        }
    }
}
