//! `Figure`: the key, name, unit and direction of a measured quantity. Also conditions that several benchmarks vary.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::report::table::BetterDirection;

/// Bytes per MiB, the unit in which sizes are shown.
pub(crate) const MIB_BYTES: f64 = (1 << 20) as f64;

/// The description of a measured figure. Each benchmark has a table of its figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Figure {
    /// The name in results.
    pub(crate) key: &'static str,
    /// The name in tables.
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) better: BetterDirection,
}

impl Figure {
    /// A figure for which lower is better.
    pub(crate) const fn lower(key: &'static str, name: &'static str, unit: &'static str) -> Self {
        Self { key, name, unit, better: BetterDirection::Lower }
    }

    /// A figure for which higher is better.
    pub(crate) const fn higher(key: &'static str, name: &'static str, unit: &'static str) -> Self {
        Self { key, name, unit, better: BetterDirection::Higher }
    }

    /// A property of the workload.
    pub(crate) const fn property(key: &'static str, name: &'static str, unit: &'static str) -> Self {
        Self { key, name, unit, better: BetterDirection::Neither }
    }
}

/// In results, a figure is its key.
impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.key)
    }
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
