//! The parameters of `farfork bench warm-start`, and the keys of its samples.

use std::path::PathBuf;

use serde::Serialize;

use super::methods::PauseMethod;
use crate::workload::functions::FunctionOptions;
use crate::workload::warm_function::WarmWorkload;

/// Parameters of a run.
#[derive(Debug, Clone, Serialize)]
pub struct WarmStartParameters {
    /// The programs, in the order of the summary.
    pub workloads: Vec<WarmWorkload>,
    /// Numbers of children in parallel to measure. If empty, the best number is searched.
    pub parallel: Vec<usize>,
    /// Number of rounds. Each round measures everything in turn.
    pub runs: usize,
    /// Time of one measurement, in seconds.
    pub seconds: f64,
    /// The directory that is the root of the parents and their children; `None` for the node's root.
    pub root: Option<PathBuf>,
    /// How functions are run.
    #[serde(skip)]
    pub function_options: FunctionOptions,
    /// The file to which samples are written.
    #[serde(skip)]
    pub samples_file: Option<PathBuf>,
}

/// The measured figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WarmStartFigure {
    /// Function runs per second of all children.
    RunsPerS,
    /// Time from the request to unpause a child to the answer of its function: the median of a round.
    AnswerMs,
    /// As `AnswerMs`, but the 99th percentile of a round.
    AnswerP99Ms,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct WarmStartSampleKey {
    pub(crate) workload: String,
    pub(crate) parallel: usize,
    pub(crate) by: PauseMethod,
    pub(crate) figure: WarmStartFigure,
}
