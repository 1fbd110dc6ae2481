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

/// Medians of one of the two children.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct StrategyChildFigures {
    pub(crate) samples: usize,
    /// From the request to the last page, and the part of it in which the child touches its pages. Pages that arrive
    /// before the child runs count only in the former.
    pub(crate) whole_ms: f64,
    pub(crate) touching_ms: f64,
    /// Faults whose page had to be requested.
    pub(crate) faults_missing: f64,
    pub(crate) round_trips: f64,
    /// Bytes transferred over the network.
    pub(crate) network_bytes: f64,
    /// Bytes from the cache that an earlier child has filled on the node.
    pub(crate) cached_bytes: f64,
    /// Memory of the seed that was not fetched by its end.
    pub(crate) remote_bytes: f64,
    /// Its memory at its end: shared with other processes, such as its programs' files, and private.
    pub(crate) shared_bytes: f64,
    pub(crate) private_bytes: f64,
}
