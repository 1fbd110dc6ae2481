//! The parameters of `farfork bench pool`, and the keys of its samples.

use std::path::PathBuf;

use serde::Serialize;

use super::methods::{CreateMethod, PauseMethod};
use crate::figure::Pace;

/// What is to be measured.
#[derive(Debug, Clone, Serialize)]
pub struct PoolParameters {
    /// Containers that the node keeps ready.
    pub pool: u64,
    /// Private memory of the parent, in MiB.
    pub mib: u64,
    /// Rounds in which everything is measured in turn.
    pub runs: usize,
    /// Where each sample is written to.
    #[serde(skip)]
    pub samples_file: Option<PathBuf>,
}

/// Who did it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(untagged)]
pub(crate) enum PoolMethod {
    Create(CreateMethod),
    Pause(PauseMethod),
}

/// A span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PoolFigure {
    /// From the call for one child until it had its result.
    Create,
    /// From the call until who asked had it.
    CreateAnswered,
    /// Of more children at once than containers are ready: from the call until all had answered, divided by their number.
    CreateInBurst,
    /// From asking for a child to stand still to the answer that it does.
    Pause,
    /// From asking for it to go on to the answer.
    Unpause,
    /// From asking for it to go on until its function has answered.
    UnpauseToAnswer,
}

/// A figure, in µs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct PoolSampleKey {
    pub(crate) figure: PoolFigure,
    pub(crate) by: PoolMethod,
    pub(crate) pace: Pace,
}
