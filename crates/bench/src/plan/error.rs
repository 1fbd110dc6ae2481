//! The errors of a plan.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use farfork_remote::inventory::{InventoryError, SourcePosition};
use farfork_remote::ssh::RemoteError;

/// Why a plan cannot be used, or has failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    /// A file of this machine cannot be read or written.
    #[error("file {}: {cause}", path.display())]
    File { path: PathBuf, cause: io::Error },
    /// The plan has an error at a position.
    #[error("{position}: {cause}")]
    Content { position: SourcePosition, cause: String },
    /// The inventory has an error.
    #[error(transparent)]
    Inventory(#[from] InventoryError),
    /// A host failed.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// A command ended with another exit status than 0.
    #[error("step {step} on {machine}: exit status {status}; see {}", log.display())]
    Status { step: String, machine: String, status: i32, log: PathBuf },
    /// A command did not end, or was not ready, in time.
    #[error("step {step} on {machine}: it {verb} within {} s (`timeout_s`); see {}", limit.as_secs(), log.display())]
    Timeout { step: String, machine: String, verb: &'static str, limit: Duration, log: PathBuf },
    /// A service ended although other steps need it.
    #[error("step {step} on {machine}: it ended with status {status} before the other steps; see {}", log.display())]
    ServiceEnded { step: String, machine: String, status: i32, log: PathBuf },
    /// The run was interrupted.
    #[error("the plan was interrupted")]
    Interrupted,
}
