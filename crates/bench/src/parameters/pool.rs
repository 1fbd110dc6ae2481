//! The parameters of `farfork bench pool`, and the keys of its samples.

use std::path::PathBuf;

use serde::Serialize;

use super::methods::{CreateMethod, PauseMethod};
use crate::figure::Pace;

/// Parameters of a run.
#[derive(Debug, Clone, Serialize)]
pub struct PoolParameters {
    /// Containers that the node keeps ready.
    pub pool: u64,
    /// Private memory of the parent, in MiB.
    pub mib: u64,
    /// Rounds. Each measures everything in turn.
    pub runs: usize,
    /// The file to which samples are written.
    #[serde(skip)]
    pub samples_file: Option<PathBuf>,
}

/// The measured method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(untagged)]
pub(crate) enum PoolMethod {
    Create(CreateMethod),
    Pause(PauseMethod),
}

/// A measured time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PoolFigure {
    /// From the call for one child until it has its result.
    Create,
    /// From the call until the requester has the result.
    CreateAnswered,
    /// For more children at once than containers are ready: from the call until all have answered, divided by their
    /// number.
    CreateInBurst,
    /// From the request to pause a child to the answer.
    Pause,
    /// From the request to unpause it to the answer.
    Unpause,
    /// From the request to unpause it to its function's answer.
    UnpauseToAnswer,
}

/// A figure, in µs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct PoolSampleKey {
    pub(crate) figure: PoolFigure,
    pub(crate) by: PoolMethod,
    pub(crate) pace: Pace,
}
