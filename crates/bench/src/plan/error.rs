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
    /// An option names a parameter that the plan does not have.
    #[error("--set {name}: the plan has no such parameter in [sweep]; {}", known_text(known))]
    Parameter { name: String, known: Vec<String> },
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
    /// A service ended before it was ready.
    #[error("step {step} on {machine}: it ended before it was ready (exit status {status}); see {}", log.display())]
    EndedBeforeReady { step: String, machine: String, status: i32, log: PathBuf },
    /// A service ended although other steps need it.
    #[error("step {step} on {machine}: it ended with status {status} before the other steps; see {}", log.display())]
    ServiceEnded { step: String, machine: String, status: i32, log: PathBuf },
    /// A command was ended because another one failed, or because the plan was interrupted. Only its outcome has this.
    #[error("cancelled")]
    Cancelled,
    /// Several failures.
    #[error("{}", join_texts(.0))]
    Several(Vec<PlanError>),
    /// The run was interrupted.
    #[error("the plan was interrupted")]
    Interrupted,
}

impl PlanError {
    /// Returns all failures of independent operations as one error.
    pub(super) fn collect(results: impl IntoIterator<Item = Result<(), Self>>) -> Result<(), Self> {
        let mut failures: Vec<Self> = results.into_iter().filter_map(Result::err).collect();
        match failures.len() {
            0 => Ok(()),
            1 => Err(failures.remove(0)),
            _ => Err(Self::Several(failures)),
        }
    }

    /// Whether the run was interrupted.
    pub(super) fn is_interruption(&self) -> bool {
        match self {
            Self::Several(failures) => failures.iter().any(Self::is_interruption),
            failure => matches!(failure, Self::Interrupted),
        }
    }
}

fn known_text(known: &[String]) -> String {
    if known.is_empty() { "it has none".to_owned() } else { format!("it has {}", known.join(", ")) }
}

fn join_texts(failures: &[PlanError]) -> String {
    let mut texts: Vec<String> = failures.iter().map(ToString::to_string).collect();
    // A host that is lost fails in each step.
    texts.dedup();
    texts.join("; ")
}
