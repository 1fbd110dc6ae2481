//! The parameters of `farfork bench fanout`, and the keys of its samples.

use std::path::PathBuf;

use serde::Serialize;

use super::methods::CreateMethod;
use crate::baseline::local_fanout::ChildNetwork;

/// What is to be measured.
#[derive(Debug, Clone, Serialize)]
pub struct FanoutParameters {
    /// Children of a fan-out.
    pub children: u64,
    /// Nodes that they are spread over.
    pub nodes: usize,
    /// Private memory of the parent, in MiB.
    pub mib: u64,
    /// Rounds in which everything is measured in turn.
    pub runs: usize,
    /// In a round, one fan-out follows the other until so many seconds have passed.
    pub seconds: f64,
    /// Containers that each node keeps ready; none: as many as it does by itself.
    pub pool: Option<u64>,
    /// Zygotes that each node keeps; none: as many as it does by itself.
    pub zygotes: Option<u64>,
    /// Networks of the children, and of local forks into namespaces.
    pub network: ChildNetwork,
    /// Whether memory is encrypted between the nodes.
    pub encrypted: bool,
    /// Where each sample is written to.
    #[serde(skip)]
    pub samples_file: Option<PathBuf>,
}

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FanoutFigure {
    /// Children a second, of a round.
    ChildrenPerS,
    /// From the call until the first child's result was there, of each fan-out.
    FirstResultMs,
    /// From the call until a child had its result, of each child.
    ResultMs,
    /// From the call until who asked had it, of each child.
    AnsweredMs,
    /// Memory that a child alone has, which stays after its result.
    OwnKib,
    /// Its page tables.
    PageTablesKib,
    /// Both.
    MemoryKib,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct FanoutSampleKey {
    pub(crate) by: CreateMethod,
    pub(crate) figure: FanoutFigure,
}
