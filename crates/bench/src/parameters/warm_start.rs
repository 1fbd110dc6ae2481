//! The parameters of `farfork bench warm-start`, and the keys of its samples.

use std::path::PathBuf;

use serde::Serialize;

use super::methods::PauseMethod;
use crate::workload::warm_function::WarmWorkload;

/// What is to be measured.
#[derive(Debug, Clone, Serialize)]
pub struct WarmStartParameters {
    /// The programs, in the order of the summary.
    pub workloads: Vec<WarmWorkload>,
    /// How many at once; none: the best is searched for.
    pub parallel: Vec<usize>,
    /// Rounds in which everything is measured in turn.
    pub runs: usize,
    /// How long a measurement takes, in seconds.
    pub seconds: f64,
    /// The Python that runs the functions; none: an environment with the packages of the embedded ones.
    #[serde(skip)]
    pub python: Option<PathBuf>,
    /// Where each sample is written to.
    #[serde(skip)]
    pub samples_file: Option<PathBuf>,
}

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WarmStartFigure {
    /// Functions run a second, of all children.
    RunsPerS,
    /// From asking for a child to go on until its function's answer: of each round, the median of its turns.
    AnswerMs,
    /// Their 99th percentile.
    AnswerP99Ms,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct WarmStartSampleKey {
    pub(crate) workload: String,
    pub(crate) parallel: usize,
    pub(crate) by: PauseMethod,
    pub(crate) figure: WarmStartFigure,
}
