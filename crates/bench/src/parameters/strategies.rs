//! The figures that `farfork bench fork` takes of each strategy.

use serde::Serialize;

/// The figures of a strategy, for one parent size.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct StrategyFigures {
    pub(crate) mib: u64,
    pub(crate) strategy: String,
    pub(crate) first: StrategyChildFigures,
    pub(crate) second: StrategyChildFigures,
}

/// Medians of all first children of a strategy, or of all second children.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct StrategyChildFigures {
    pub(crate) samples: usize,
    /// Time from the request for a child to its last page. Pages that arrive before the child runs count in this time
    /// only.
    pub(crate) whole_ms: f64,
    /// The part of `whole_ms` in which the child touches its pages.
    pub(crate) touching_ms: f64,
    /// Faults whose page had to be requested.
    pub(crate) faults_missing: f64,
    pub(crate) round_trips: f64,
    /// Bytes transferred over the network.
    pub(crate) network_bytes: f64,
    /// Bytes from the cache that an earlier child has filled on the node.
    pub(crate) cached_bytes: f64,
    /// Memory of the seed that the child had not fetched when it ended.
    pub(crate) remote_bytes: f64,
    /// The child's memory at its end that is shared with other processes, such as the files of its program.
    pub(crate) shared_bytes: f64,
    /// The child's private memory at its end.
    pub(crate) private_bytes: f64,
}
