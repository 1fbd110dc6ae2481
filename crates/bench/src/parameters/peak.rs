//! The parameters of `farfork bench peak`, and the keys of its samples.

use std::path::PathBuf;

use serde::Serialize;

use crate::workload::fork_workload::ForkWorkload;
use crate::workload::functions::FunctionOptions;

/// The workloads, and the clients that fork their children.
#[derive(Debug, Clone, Serialize)]
pub struct PeakParameters {
    /// The programs, in the order of the summary.
    pub workloads: Vec<ForkWorkload>,
    /// Number of nodes with clients. The parent is on one more node.
    pub child_nodes: usize,
    /// Maximum client processes of each of these nodes. A large workload gets fewer, so that its children fit into
    /// memory.
    pub clients: usize,
    /// How long the clients of each case fork, in seconds.
    pub seconds: f64,
    /// Whether nodes keep zygotes: with them, without, or both in turn.
    pub zygotes: Vec<bool>,
    /// Paging strategies of the children, as in `farfork fork --strategy`; empty for the default.
    pub strategies: Vec<String>,
    /// How functions are run.
    #[serde(skip)]
    pub function_options: FunctionOptions,
    /// The file to which samples are written.
    #[serde(skip)]
    pub samples_file: Option<PathBuf>,
}

/// A row of the summary: one run of the clients.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct PeakCase {
    pub(crate) workload: String,
    pub(crate) zygotes: bool,
    pub(crate) strategy: String,
}

/// A figure of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PeakFigure {
    /// Number of all client processes.
    Clients,
    /// Children of all clients per second; one sample per second.
    IntervalPerS,
    /// Children of one client per second, over the whole run; one sample per client.
    ClientPerS,
    /// Time from the request for a child until its result is checked, in ms: the median of a client. One sample per
    /// client.
    ClientP50Ms,
    /// As `ClientP50Ms`, but a client's 99th percentile.
    ClientP99Ms,
    /// Children of os.fork() per second that call the function one after another, on one CPU. Functions only.
    LocalForkPerS,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct PeakSampleKey {
    #[serde(flatten)]
    pub(crate) case: PeakCase,
    pub(crate) figure: PeakFigure,
}
