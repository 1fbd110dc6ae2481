//! The parameters of `farfork bench tree`, and the keys of its samples.

use std::path::PathBuf;

use serde::Serialize;

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct TreeParameters {
    /// How many processes each tree has.
    pub processes: Vec<u64>,
    /// Private memory of each process, in MiB.
    pub mib: u64,
    /// Memory that the processes of a tree share, in MiB.
    pub shared_mib: u64,
    /// Rounds in which every tree is measured in turn.
    pub runs: usize,
    /// The file that each sample is written to.
    pub samples_file: Option<PathBuf>,
}

/// A figure, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct TreeSampleKey {
    pub(crate) processes: u64,
    pub(crate) figure: TreeFigure,
}

/// A span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TreeFigure {
    /// A floor: `fork()` of each process, one after the other.
    Forks,
    /// A floor: memcpy of the memory that they share.
    Copy,
    /// How long the tree stands still, from its first thread that stops to its last one that goes on.
    Pause,
    /// Another process asks for a seed of it: from its request to the answer.
    Prepare,
}
