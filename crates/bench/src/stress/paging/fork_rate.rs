//! Measures how many children per second the nodes fork, before the first round and after the last. A lower rate at the
//! end means that the run has slowed the nodes down. Other load on the machine also changes the rate, so local forks
//! are measured in turn. The measurement at the end is repeated, up to a limit, until its rate is not lower.

use std::time::Instant;

use farfork_api::v1;
use serde::Serialize;

use crate::baseline::local_fanout::{ChildNetwork, LocalFanout, NAMESPACE_SETS};
use crate::error::BenchError;
use crate::experiment::fanout_client::FanoutClient;
use crate::experiment::nodes::RunningNodes;
use crate::samples::Spread;
use crate::workload::child_task::ChildTask;
use crate::workload::sparse::SPARSE;
use crate::workload::start_parent;

/// Number of children per fan-out, and of fan-outs per measurement. The median of the fan-outs counts.
const CHILDREN: u64 = 24;
const FANOUTS_PER_MEASUREMENT: usize = 7;

/// Number of measurements at the start, of which the median counts, and maximum number at the end.
const FIRST_MEASUREMENTS: usize = 3;
const LAST_MEASUREMENTS_MAX: usize = 8;

/// Private memory of the parent, in MiB.
const MIB: u64 = 4;

/// The last rate must reach this fraction of the first.
const RATE_RATIO_MIN: f64 = 0.9;

/// The rate of forks.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct ForkRate {
    /// Children per second, of all nodes.
    pub(crate) per_s: f64,
    /// `per_s` divided by the rate of local forks into the namespaces of containers.
    pub(crate) of_floor: f64,
}

impl ForkRate {
    /// Whether the rate is at least the earlier one, within the spread of measurements. Slower nodes lower both
    /// numbers. A slower machine lowers only `per_s`, faster local forks only `of_floor`.
    pub(crate) fn is_not_slower_than(&self, before: &Self) -> bool {
        self.per_s >= before.per_s * RATE_RATIO_MIN || self.of_floor >= before.of_floor * RATE_RATIO_MIN
    }
}

/// Measures before the first round. Returns the median of some measurements, or one measurement if the rate is not
/// judged.
pub(super) async fn measure_first(nodes: &RunningNodes, is_judged: bool) -> Result<ForkRate, BenchError> {
    let mut rates = Vec::new();
    for _ in 0..if is_judged { FIRST_MEASUREMENTS } else { 1 } {
        rates.push(measure(nodes).await?);
    }
    rates.sort_by(|one, other| one.of_floor.total_cmp(&other.of_floor));
    Ok(rates[rates.len() / 2])
}

/// Measures after the last round until the rate is not slower than `before`, up to [`LAST_MEASUREMENTS_MAX`] times.
/// Returns the measurement with the highest `of_floor` if all are slower. Measures once if the rate is not judged.
pub(super) async fn measure_last(
    nodes: &RunningNodes,
    before: &ForkRate,
    is_judged: bool,
) -> Result<ForkRate, BenchError> {
    let mut best = ForkRate::default();
    for _ in 0..if is_judged { LAST_MEASUREMENTS_MAX } else { 1 } {
        let rate = measure(nodes).await?;
        if rate.is_not_slower_than(before) {
            return Ok(rate);
        }
        if rate.of_floor > best.of_floor {
            best = rate;
        }
    }
    Ok(best)
}

/// Measures the rate once. Checks every result.
async fn measure(nodes: &RunningNodes) -> Result<ForkRate, BenchError> {
    let parent = start_parent(&SPARSE, nodes.nodes()[0].machine(), MIB, None)?;
    let mut floor = LocalFanout::start(nodes.nodes()[0].machine(), MIB, NAMESPACE_SETS, ChildNetwork::Private)?;
    let mut client = nodes.nodes()[0].connect().await?;
    let request = v1::PrepareRequest { pid: parent.pid(), ..Default::default() };
    let seed = client.prepare(request).await?.id;
    let fanout_client =
        FanoutClient::new(nodes.nodes(), &seed, ChildTask::Sparse { mib: MIB }).await?.forgetting_children();
    // The first fan-out makes each node fetch the descriptor, and make a zygote.
    fanout_client.fan_out(0, CHILDREN).await?;
    let (mut rates, mut ratios) = (Vec::new(), Vec::new());
    for fanout in 1..=FANOUTS_PER_MEASUREMENT as u64 {
        let began = Instant::now();
        fanout_client.fan_out(fanout * CHILDREN, CHILDREN).await?;
        let took = began.elapsed().as_secs_f64();
        let (floor_took, _) = floor.fan_out(fanout * CHILDREN, CHILDREN)?;
        rates.push(CHILDREN as f64 / took);
        ratios.push(floor_took.as_secs_f64() / took);
    }
    client.drop_seed(&seed).await?;
    let median = |samples: &[f64]| Spread::from_samples(samples).map_or(0.0, |spread| spread.median);
    Ok(ForkRate { per_s: median(&rates), of_floor: median(&ratios) })
}

#[cfg(test)]
mod tests {
    use super::ForkRate;

    #[test]
    fn a_fork_rate_of_nine_tenths_is_not_slower() {
        let rate = |per_s, of_floor| ForkRate { per_s, of_floor };
        assert!(rate(50.0, 0.091).is_not_slower_than(&rate(100.0, 0.1)), "the machine has become slower");
        assert!(rate(100.0, 0.066).is_not_slower_than(&rate(100.0, 0.1)), "local forks have become faster");
        assert!(!rate(89.0, 0.089).is_not_slower_than(&rate(100.0, 0.1)));
    }
}
