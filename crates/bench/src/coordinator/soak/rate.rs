//! How many children a second the nodes fork: the same before the first round and after the last, or something of what happened
//! between slows them down. What else the machine does changes meanwhile: so it is compared with local forks that do the same,
//! in turn, and measured at the end until it is as it was, some times at most.

use std::path::{Path, PathBuf};
use std::time::Instant;

use farfork_node::api::v1;
use farfork_node::client;
use serde::Serialize;

use super::ground::{Ground, REQUEST_LIMIT};
use crate::baseline::crowd::{CROWD, ChildNetwork, LocalCrowd};
use crate::coordinator::cluster::told;
use crate::coordinator::crowd::Crowd;
use crate::error::BenchError;
use crate::samples::Spread;
use crate::workload::micro::PAYLOAD_PATH;
use crate::workload::parent::Parent;
use crate::workload::sparse::SPARSE;

/// Children of a fan-out, and fan-outs of a measurement, of which the median counts.
const CHILDREN: u64 = 24;
const FANOUTS: usize = 7;

/// Measurements at the start, of which the median counts, and at the end, at most.
const TRIES: usize = 3;
const TRIES_MAX: usize = 8;

/// Private memory of the parent, in MiB.
const MIB: u64 = 4;

/// Namespaces that local forks take in turn: more than there are children at once.
const CONTAINERS: u64 = 16;

/// The part of the first rate that the last must come to.
const KEPT_MIN: f64 = 0.9;

/// How fast children come.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Rate {
    /// Children a second, of all nodes.
    pub per_s: f64,
    /// The same, divided by that of local forks into the namespaces of containers.
    pub of_floor: f64,
}

impl Rate {
    /// Whether it is no less than before, but for what any two measurements differ by. What slows nodes down lowers both numbers;
    /// a machine that has become slower lowers the first alone, one whose local forks have become faster the second alone.
    pub fn is_kept(&self, before: &Self) -> bool {
        self.per_s >= before.per_s * KEPT_MIN || self.of_floor >= before.of_floor * KEPT_MIN
    }
}

/// What is measured with.
#[derive(Debug)]
pub(super) struct Programs {
    parent: PathBuf,
    floor: PathBuf,
}

impl Programs {
    pub(super) fn install(directory: &Path) -> Result<Self, BenchError> {
        Ok(Self { parent: SPARSE.install(directory)?, floor: CROWD.install(directory)? })
    }

    /// Before the first round: the median of some measurements.
    pub(super) async fn measure_first(&self, ground: &Ground) -> Result<Rate, BenchError> {
        let mut rates = Vec::new();
        for _ in 0..TRIES {
            rates.push(self.measure(ground).await?);
        }
        rates.sort_by(|one, other| one.of_floor.total_cmp(&other.of_floor));
        Ok(rates[TRIES / 2])
    }

    /// After the last round: the best of several measurements, of which the first that is good enough is the last.
    pub(super) async fn measure_last(&self, ground: &Ground, before: &Rate) -> Result<Rate, BenchError> {
        let mut best = Rate::default();
        for _ in 0..TRIES_MAX {
            let rate = self.measure(ground).await?;
            if rate.is_kept(before) {
                return Ok(rate);
            }
            if rate.of_floor > best.of_floor {
                best = rate;
            }
        }
        Ok(best)
    }

    /// Every result is checked.
    async fn measure(&self, ground: &Ground) -> Result<Rate, BenchError> {
        let parent = Parent::start(&SPARSE, &self.parent, MIB, PAYLOAD_PATH.as_ref())?;
        let mut floor = LocalCrowd::start(&self.floor, MIB, (CONTAINERS, ChildNetwork::Private))?;
        let mut client = ground.client(0).await?;
        let request = v1::PrepareRequest { pid: parent.pid(), ..Default::default() };
        let object = format!("process {}", parent.pid());
        let seed = client.prepare(client::within(REQUEST_LIMIT, request)).await.map_err(told(object))?.into_inner().id;
        let mut crowd = Crowd::of(ground.nodes(), &seed, MIB).await?.forgetting();
        // The first brings the descriptor to each node, and has each keep what it may for more.
        crowd.fan_out(0, CHILDREN).await?;
        let (mut rates, mut ratios) = (Vec::new(), Vec::new());
        for fanout in 1..=FANOUTS as u64 {
            let began = Instant::now();
            crowd.fan_out(fanout * CHILDREN, CHILDREN).await?;
            let took = began.elapsed().as_secs_f64();
            let (floor_took, _) = floor.fan_out(fanout * CHILDREN, CHILDREN)?;
            rates.push(CHILDREN as f64 / took);
            ratios.push(floor_took.as_secs_f64() / took);
        }
        let request = v1::DropRequest { seed: seed.clone(), force: true };
        client.drop(client::within(REQUEST_LIMIT, request)).await.map_err(told(&seed))?;
        let median = |samples: &[f64]| Spread::of(samples).map_or(0.0, |spread| spread.median);
        Ok(Rate { per_s: median(&rates), of_floor: median(&ratios) })
    }
}

#[cfg(test)]
mod tests {
    use super::Rate;

    #[test]
    fn nine_tenths_are_kept_whatever_the_machine_does() {
        let rate = |per_s, of_floor| Rate { per_s, of_floor };
        assert!(rate(50.0, 0.091).is_kept(&rate(100.0, 0.1)), "the machine has become slower");
        assert!(rate(100.0, 0.066).is_kept(&rate(100.0, 0.1)), "local forks have become faster");
        assert!(!rate(89.0, 0.089).is_kept(&rate(100.0, 0.1)));
    }
}
