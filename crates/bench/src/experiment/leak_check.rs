//! Counts the nodes' resources before and after a long run. A higher count after the run is a leak.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::nodes::{ClusterNode, RunningNodes};
use super::observer::resources::KINDS;
use crate::error::BenchError;

/// Time limit for a node to release resources that it keeps for some time: connections for half a minute, statistics,
/// threads.
const RELEASE_LIMIT: Duration = Duration::from_secs(60);

/// Time between two counts.
const COUNT_INTERVAL: Duration = Duration::from_millis(500);

/// The count of one kind of resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ResourceCount {
    /// The name of the node.
    pub(crate) node: String,
    /// The kind of resource.
    pub(crate) of: &'static str,
    /// The count at the start.
    pub(crate) before: u64,
    /// The count at the end.
    pub(crate) after: u64,
    /// The tolerated increase.
    pub(crate) slack: u64,
}

impl ResourceCount {
    /// Whether the increase exceeds the tolerance.
    pub(crate) fn is_leak(&self) -> bool {
        self.after > self.before + self.slack
    }

    /// The text of the failure, if there is a leak.
    pub(crate) fn leak_text(&self) -> Option<String> {
        let Self { node, of, before, after, .. } = self;
        self.is_leak().then(|| format!("{node} has {after} {of}, and had {before} at the start"))
    }
}

/// The counts of all nodes: the name of each node, and a count of each of the [`KINDS`].
#[derive(Debug, Clone)]
pub(crate) struct ResourceCounts(Vec<(String, [u64; KINDS.len()])>);

impl ResourceCounts {
    /// Counts the resources.
    fn read(running: &RunningNodes) -> Result<Self, BenchError> {
        let nodes = running.nodes().iter().enumerate();
        let count = |(index, node): (usize, &ClusterNode)| Ok((node.name.clone(), running.count_resources(index)?));
        nodes.map(count).collect::<Result<_, _>>().map(Self)
    }

    /// Counts repeatedly until the counts without a tolerance are stable, because nodes create containers in the
    /// background. After [`RELEASE_LIMIT`], returns the last counts even if they are not stable.
    pub(crate) async fn read_steady(running: &RunningNodes) -> Result<Self, BenchError> {
        let give_up = Instant::now() + RELEASE_LIMIT;
        let mut last = Self::read(running)?;
        loop {
            tokio::time::sleep(COUNT_INTERVAL).await;
            let now = Self::read(running)?;
            let is_steady = last.compare_with(&now).iter().all(|count| count.slack > 0 || count.before == count.after);
            if is_steady || Instant::now() >= give_up {
                return Ok(now);
            }
            last = now;
        }
    }

    /// Counts again until there is no leak, or until the time limit is over. Returns the counts from before and after.
    pub(crate) async fn wait_released(&self, running: &RunningNodes) -> Result<Vec<ResourceCount>, BenchError> {
        let give_up = Instant::now() + RELEASE_LIMIT;
        loop {
            let counts = self.compare_with(&Self::read(running)?);
            if !counts.iter().any(ResourceCount::is_leak) || Instant::now() >= give_up {
                return Ok(counts);
            }
            tokio::time::sleep(COUNT_INTERVAL).await;
        }
    }

    /// Pairs the counts of each kind.
    fn compare_with(&self, after: &Self) -> Vec<ResourceCount> {
        let nodes = self.0.iter().zip(&after.0);
        let pairs = nodes.flat_map(|((node, before), (_, after))| {
            let counts = KINDS.into_iter().zip(before.iter().zip(after));
            counts.map(move |((of, slack), (&before, &after))| ResourceCount {
                node: node.clone(),
                of,
                before,
                after,
                slack,
            })
        });
        pairs.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::ResourceCounts;

    #[test]
    fn a_higher_count_is_a_leak() {
        let is_leak = |descriptors: [u64; 2]| {
            let [before, after] =
                descriptors.map(|count| ResourceCounts(vec![("n1".into(), [3, 0, 0, 0, 0, count, 0, 0])]));
            let counts = before.compare_with(&after);
            assert!(counts.iter().all(|count| count.of == "descriptors" || !count.is_leak()));
            counts[5].is_leak()
        };
        assert_eq!([is_leak([3, 2]), is_leak([3, 7]), is_leak([3, 8])], [false, false, true]);
    }
}
