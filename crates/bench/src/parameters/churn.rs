//! The parameters of `farfork bench churn`, and the keys of its samples.

use std::path::PathBuf;

use serde::Serialize;

use crate::figure::ChildPlace;
use crate::workload::churn::ChurnOperation;

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct ChurnParameters {
    /// Private memory of the program, in MiB.
    pub mib: u64,
    /// Rounds in which everything is measured in turn.
    pub runs: usize,
    /// Whether memory is encrypted between the nodes.
    pub encrypted: bool,
    /// The file that each sample is written to.
    pub samples_file: Option<PathBuf>,
}

/// A figure, in µs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct ChurnSampleKey {
    pub(crate) deed: ChurnOperation,
    /// Where the child was; none where the program was not forked.
    pub(crate) node: Option<ChildPlace>,
}
