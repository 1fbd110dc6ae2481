//! The parameters of `farfork bench fault`, and the keys of its samples.

use std::path::PathBuf;

use serde::Serialize;

use crate::baseline::fault::WaitMode;
use crate::figure::Pace;

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct FaultParameters {
    /// Rounds in which everything is measured in turn.
    pub runs: usize,
    /// Faults of a round, back to back and beside a stream.
    pub faults: usize,
    /// Of these, faults after idleness.
    pub idle_faults: usize,
    /// Memory that is streamed beside them, in MiB.
    pub stream_mib: u64,
    /// Children of as many seeds that take all of their memory at the same time; none for none.
    pub streams: usize,
    /// Whether memory is encrypted between the nodes.
    pub encrypted: bool,
    /// Where each sample is written to.
    pub samples_file: Option<PathBuf>,
}

/// What was timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "of", rename_all = "snake_case")]
pub(crate) enum FaultSeries {
    /// A touch in a child of farfork.
    Farfork,
    /// A touch in the same child, while another child's memory streams to its node.
    BesideStream,
    /// A bare program's touch.
    BareTouch {
        /// How it waits.
        waiting: WaitMode,
    },
    /// All memory of one of several children that take theirs at the same time.
    Stream,
    /// The slowest of these, divided by their mean: no time, but a number.
    SlowestStream,
    /// The exchange of a request and a page, and the kernel's copy: the floor.
    Floor {
        /// How it waits.
        waiting: WaitMode,
    },
    /// A bare program's touch, while two others stream pages over the same link and map them. Those that fault sleep.
    BareBesideStream,
    /// The floor there: exchange and copy of such a touch.
    FloorBesideStream,
    /// What the stream beside a child's faults brought meanwhile: no time, but MiB/s.
    StreamBeside,
    /// The same of the bare stream.
    BareStreamBeside,
}

/// A figure, in µs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct FaultSampleKey {
    #[serde(flatten)]
    pub(crate) series: FaultSeries,
    pub(crate) pace: Pace,
}
