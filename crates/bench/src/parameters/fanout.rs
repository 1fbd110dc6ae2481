//! The parameters of `farfork bench fanout`, and the keys of its samples.

use std::path::PathBuf;

use serde::Serialize;

use super::methods::CreateMethod;
use crate::baseline::local_fanout::ChildNetwork;

/// Parameters of a run.
#[derive(Debug, Clone, Serialize)]
pub struct FanoutParameters {
    /// Number of children of a fan-out.
    pub children: u64,
    /// Number of nodes over which the children are spread.
    pub nodes: usize,
    /// Private memory of the parent, in MiB.
    pub mib: u64,
    /// Number of rounds. Each round measures everything in turn.
    pub runs: usize,
    /// A round repeats fan-outs until this many seconds have passed.
    pub seconds: f64,
    /// Containers that each node keeps ready; `None` for the default.
    pub pool: Option<u64>,
    /// Maximum zygotes of each node; `None` for the default.
    pub zygotes: Option<u64>,
    /// Network of the children, and of local forks into namespaces.
    pub network: ChildNetwork,
    /// Whether memory transfers between the nodes are encrypted.
    pub encrypted: bool,
    /// The file to which samples are written.
    #[serde(skip)]
    pub samples_file: Option<PathBuf>,
}

/// The measured figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FanoutFigure {
    /// Children per second in a round.
    ChildrenPerS,
    /// Time from the call until the first child has its result; one sample per fan-out.
    FirstResultMs,
    /// Time from the call until a child has its result; one sample per child.
    ResultMs,
    /// Time from the call until the requester has a child's result; one sample per child.
    AnsweredMs,
    /// Private memory of a child that still runs after its result.
    OwnKib,
    /// Page tables of a child that still runs after its result.
    PageTablesKib,
    /// Sum of `OwnKib` and `PageTablesKib`.
    MemoryKib,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct FanoutSampleKey {
    pub(crate) by: CreateMethod,
    pub(crate) figure: FanoutFigure,
}
