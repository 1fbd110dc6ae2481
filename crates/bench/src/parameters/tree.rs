//! The parameters of `farfork bench tree`, and the keys of its samples.

use std::path::PathBuf;

use serde::Serialize;

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct TreeParameters {
    /// Number of processes of each tree.
    pub processes: Vec<u64>,
    /// Private memory of each process, in MiB.
    pub mib: u64,
    /// Memory that the processes of a tree share, in MiB.
    pub shared_mib: u64,
    /// Number of rounds. Each round measures every tree in turn.
    pub runs: usize,
    /// The file to which samples are written.
    pub samples_file: Option<PathBuf>,
}

/// The key of a figure, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct TreeSampleKey {
    pub(crate) processes: u64,
    pub(crate) figure: TreeFigure,
}

/// A measured time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TreeFigure {
    /// A floor: `fork()` of each process, one after the other.
    Forks,
    /// A floor: memcpy of the memory that the processes share.
    Copy,
    /// The pause of the tree: time from the stop of its first thread until its last thread continues.
    Pause,
    /// Another process requests a seed of the tree: time from the request to the answer.
    Prepare,
}
