//! The parameters of `farfork bench fault`, and the keys of its samples.

use std::path::PathBuf;

use serde::Serialize;

use crate::baseline::fault::WaitMode;
use crate::figure::Pace;

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct FaultParameters {
    /// Number of rounds. Each round measures everything in turn.
    pub runs: usize,
    /// Number of faults per round, back to back and during a stream.
    pub faults: usize,
    /// Number of faults per round after idle time.
    pub idle_faults: usize,
    /// Memory of the child that is streamed during another child's faults, in MiB.
    pub stream_mib: u64,
    /// Number of seeds with one child each that fetch all of their memory at the same time; 0 for none.
    pub streams: usize,
    /// Whether memory transfers between the nodes are encrypted.
    pub encrypted: bool,
    /// The file to which samples are written.
    pub samples_file: Option<PathBuf>,
}

/// The fault that a series of samples measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "of", rename_all = "snake_case")]
pub(crate) enum FaultSeries {
    /// A touch in a child of farfork.
    Farfork,
    /// A touch in a child of farfork, while another child's memory streams to the same node.
    BesideStream,
    /// A touch in a minimal program.
    BareTouch {
        /// How the program waits for data.
        waiting: WaitMode,
    },
    /// Time in which one of several children fetches all of its memory, while the others also fetch theirs.
    Stream,
    /// The longest of the `Stream` times divided by their mean: a ratio, not a time.
    SlowestStream,
    /// The floor: the exchange of a request and a page, and the kernel's copy.
    Floor {
        /// How the program waits for data.
        waiting: WaitMode,
    },
    /// A touch in a minimal program that sleeps, while two others stream pages over the same link and map them.
    BareBesideStream,
    /// The floor of `BareBesideStream`: exchange and copy.
    FloorBesideStream,
    /// The rate of the stream during a child's faults, in MiB/s.
    StreamBeside,
    /// As `StreamBeside`, for the stream of the minimal programs.
    BareStreamBeside,
}

/// The key of a figure. The figure is in µs, unless its series says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct FaultSampleKey {
    #[serde(flatten)]
    pub(crate) series: FaultSeries,
    pub(crate) pace: Pace,
}
