//! The parameters of `farfork bench churn`, and the keys of its samples.

use std::path::PathBuf;

use serde::Serialize;

use crate::figure::ChildPlace;
use crate::workload::churn::ChurnOperation;

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct ChurnParameters {
    /// Private memory of the program, in MiB.
    pub mib: u64,
    /// Number of rounds. Each round measures everything in turn.
    pub runs: usize,
    /// Whether memory transfers between the nodes are encrypted.
    pub encrypted: bool,
    /// The file to which samples are written.
    pub samples_file: Option<PathBuf>,
}

/// The key of a figure, in µs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct ChurnSampleKey {
    pub(crate) deed: ChurnOperation,
    /// Where the child was; `None` for the program without a fork.
    pub(crate) node: Option<ChildPlace>,
}
