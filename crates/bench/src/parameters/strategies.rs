//! The figures that `farfork bench fork` takes of each strategy.

use serde::Serialize;

/// What a strategy came to, with a parent of one size.
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
    /// From the request to the last page, and of that the touching: what is there before the child runs is in the former alone.
    pub(crate) whole_ms: f64,
    pub(crate) touching_ms: f64,
    /// Faults whose page had to be asked for.
    pub(crate) faults_missing: f64,
    pub(crate) round_trips: f64,
    /// Bytes that crossed the network.
    pub(crate) network_bytes: f64,
    /// Bytes that its node had kept of a child before it.
    pub(crate) cached_bytes: f64,
    /// Memory of the seed that it never fetched, at its end.
    pub(crate) remote_bytes: f64,
    /// What of its memory others had too at its end, its programs' files for one, and what was its own.
    pub(crate) shared_bytes: f64,
    pub(crate) private_bytes: f64,
}
