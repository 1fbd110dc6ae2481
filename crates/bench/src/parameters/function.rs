//! The parameters of `farfork bench function`, and the keys of its samples.

use std::path::PathBuf;

use serde::Serialize;

use crate::figure::ChildPlace;
use crate::workload::functions::{FunctionOptions, FunctionSource};

/// The functions to measure, and how often.
#[derive(Debug, Clone, Serialize)]
pub struct FunctionParameters {
    /// The functions, in the order of the summary.
    pub functions: Vec<FunctionSource>,
    /// The payload of every call, a JSON document.
    pub payload: String,
    /// Number of samples of each figure.
    pub runs: usize,
    /// Whether the summary has a profile of each function's last child on each node.
    pub profile: bool,
    /// How functions are run.
    #[serde(skip)]
    pub function_options: FunctionOptions,
    /// The file to which samples are written.
    #[serde(skip)]
    pub samples_file: Option<PathBuf>,
}

/// A figure of a function. In JSON, `figure` is always text, and figures of children also have a `place`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "figure", content = "place", rename_all = "snake_case")]
pub(crate) enum FunctionFigure {
    /// Resident memory of the parent, in MiB.
    ResidentMib,
    /// Time of the parent's first call, in ms.
    FirstCall,
    /// Time of the parent's second call, in ms.
    WarmCall,
    /// Time from the request for a seed to the answer, in ms.
    Prepare,
    /// Time that the parent was stopped, in ms.
    Pause,
    /// Time from the request for a seed's first child on a node to the child's first instruction, in ms.
    Resume(ChildPlace),
    /// Time from the call of os.fork() to the child's first instruction, in ms.
    LocalFork,
    /// Time of the first call in a seed's first child on a node, in ms.
    Execution(ChildPlace),
    /// Time of the first call in a child of os.fork(), in ms.
    LocalExecution,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct FunctionSampleKey {
    pub(crate) function: String,
    #[serde(flatten)]
    pub(crate) figure: FunctionFigure,
}
