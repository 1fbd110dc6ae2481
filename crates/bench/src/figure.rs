//! The keys and units of the figures of `farfork bench fork`, and `ChildPlace` and `Pace`, which other benchmarks use too.
//! `experiment` and `baseline` measure the figures, and `reference` has published values.

use std::time::Duration;

use serde::{Serialize, Serializer};

/// Bytes per MiB, the unit in which sizes are shown.
pub(crate) const MIB_BYTES: f64 = (1 << 20) as f64;

/// The key of a figure for one parent size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct ForkSampleKey {
    /// Private memory of the parent, in MiB.
    pub(crate) mib: u64,
    pub(crate) by: ForkSystem,
    pub(crate) figure: ForkFigure,
    /// Where the child is; `None` if the figure has no child or does not depend on its node.
    pub(crate) node: Option<ChildPlace>,
    /// The state before the measurement.
    pub(crate) pace: Pace,
    /// Unit of the value.
    pub(crate) unit: Unit,
}

/// The system that was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ForkSystem {
    Farfork,
    /// A floor: `fork(2)` of the same process.
    LocalFork,
    /// A floor: two minimal programs at the ends of the link between the nodes.
    Link,
    /// A peer: CRIU, which reads all memory from its images before the clone runs.
    CriuEager,
    /// A peer: CRIU, which serves pages as the clone touches them.
    CriuLazy,
}

/// A measured time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ForkFigure {
    /// A program requests a checkpoint of itself: time from the call to its return.
    Checkpoint,
    /// The part of the checkpoint in which the program is stopped.
    CheckpointPause,
    /// Time that a parent is stopped when another process requests the seed. For a local fork: time of the call of
    /// fork(2).
    Pause,
    /// Another process requests a seed of the parent: time from the request to the answer.
    Prepare,
    /// The part of prepare that the daemon measures.
    PrepareOnNode,
    /// Time from the request for a child to the child's first instruction.
    Resume,
    /// Time from the request for a child until the child could report: it has read a clock into its own memory.
    ResumeSpoke,
    /// Time from the request for a child to the answer of the node.
    ResumeAnswer,
    /// Time for a child to touch each page once. For the link: time to transfer the same number of bytes.
    Execution,
    /// As `Execution`, but the child writes to each page, whatever access the parameters select.
    ExecutionWriting,
    /// Time to copy the same number of bytes within one process: a lower bound for each link.
    MemoryCopy,
}

/// Where a child is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ChildPlace {
    /// On the node of its parent.
    Own,
    /// On another node.
    Other,
}

/// After this idle time, a node's caches are cold and its CPUs are in deep sleep states, as between two commands of a
/// user.
pub(crate) const IDLE: Duration = Duration::from_millis(150);

/// The state before a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Pace {
    /// Immediately after the previous measurement of the same figure.
    BackToBack,
    /// After the idle time [`IDLE`]: caches are cold and CPUs sleep.
    Idle,
}

/// The unit of a figure. All figures of `farfork bench fork` are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unit {
    Milliseconds,
}

impl Serialize for Unit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Milliseconds => serializer.serialize_str("ms"),
        }
    }
}

impl ForkSampleKey {
    /// The key of a back-to-back figure without a place of a child.
    pub(crate) fn new(mib: u64, by: ForkSystem, figure: ForkFigure) -> Self {
        Self { mib, by, figure, node: None, pace: Pace::BackToBack, unit: Unit::Milliseconds }
    }

    /// The key of a figure of farfork.
    pub(crate) fn for_farfork(mib: u64, figure: ForkFigure) -> Self {
        Self::new(mib, ForkSystem::Farfork, figure)
    }

    /// Sets the place of the child.
    pub(crate) fn with_place(self, node: ChildPlace) -> Self {
        Self { node: Some(node), ..self }
    }

    /// Sets the pace.
    pub(crate) fn with_pace(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }
}
