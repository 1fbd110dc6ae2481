//! The figures of `farfork bench fork`: their keys, names and units; and `ChildPlace`, `Pace` and `Unit`, which all
//! benchmarks use. `experiment` and `baseline` measure them, `reference` has published ones.

use std::time::Duration;

use serde::{Serialize, Serializer};

/// What is counted in bytes is shown in these.
pub(crate) const MIB_BYTES: f64 = (1 << 20) as f64;

/// A figure of one size of parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct ForkSampleKey {
    /// Private memory of the parent, in MiB.
    pub(crate) mib: u64,
    pub(crate) by: ForkSystem,
    pub(crate) figure: ForkFigure,
    /// Where the child is; none where there is no child, or no node.
    pub(crate) node: Option<ChildPlace>,
    /// What went before.
    pub(crate) pace: Pace,
    /// Of the value.
    pub(crate) unit: Unit,
}

/// What did it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ForkSystem {
    Farfork,
    /// A floor: `fork(2)` of the same process.
    LocalFork,
    /// A floor: two bare programs at the ends of the same link.
    Link,
    /// A peer: CRIU, which has read all memory from its images before the clone runs.
    CriuEager,
    /// A peer: CRIU, which serves pages as the clone touches them.
    CriuLazy,
}

/// A span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ForkFigure {
    /// A program makes a seed of itself: from the call to its return.
    Checkpoint,
    /// How long it stands still for that.
    CheckpointPause,
    /// How long a parent stands still of which another process asks for a seed. Of a local fork: the call.
    Pause,
    /// Another process asks for a seed of the parent: from its request to the answer.
    Prepare,
    /// The part of that which the daemon's clock sees.
    PrepareOnNode,
    /// From the request to the child's first instruction.
    Resume,
    /// From the request until the child could say so: it has read a clock into its own memory.
    ResumeSpoke,
    /// From the request to its answer.
    ResumeAnswer,
    /// Every page once in the child. Of the link: the same bytes.
    Execution,
    /// The same, but every page is written, whatever the plan says.
    ExecutionWriting,
    /// The same bytes within one process's memory: what no link can be faster than.
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

/// A node that was idle for so long has lost its caches and sleeps deeply, as after a user's pause for thought.
pub(crate) const IDLE: Duration = Duration::from_millis(150);

/// What went before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Pace {
    /// The same, just now.
    BackToBack,
    /// Nothing, for [`IDLE`]: caches are cold and processors sleep.
    Idle,
}

/// What a number counts. There is one so far.
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
    /// A figure that needs no child of a node, back to back.
    pub(crate) fn new(mib: u64, by: ForkSystem, figure: ForkFigure) -> Self {
        Self { mib, by, figure, node: None, pace: Pace::BackToBack, unit: Unit::Milliseconds }
    }

    /// A figure of farfork.
    pub(crate) fn for_farfork(mib: u64, figure: ForkFigure) -> Self {
        Self::new(mib, ForkSystem::Farfork, figure)
    }

    /// The same with the child there.
    pub(crate) fn with_place(self, node: ChildPlace) -> Self {
        Self { node: Some(node), ..self }
    }

    /// The same with that before it.
    pub(crate) fn with_pace(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }
}
