//! Compares strategies. For each strategy, it forks a new seed twice on the other node. Each child touches every page
//! once. The second child profits from the seed's known working set and, if the strategy caches, from the page cache.

use farfork_api::v1::PagerStats;

use super::{ForkRun, ForkSubject};
use crate::error::BenchError;
use crate::experiment::local_cluster::ForkOptions;
use crate::figure::ChildPlace;
use crate::parameters::strategies::{StrategyChildFigures, StrategyFigures};
use crate::samples::Spread;
use crate::workload::micro::{ChildReport, PAGE_BYTES, PAYLOAD_TOUCH, ns_to_ms};

/// Maximum rounds per strategy and size: each makes and drops a seed.
const ROUNDS_MAX: usize = 5;

/// The figures of one child, in the order of the fields of [`StrategyChildFigures`] after `samples`.
struct StrategySample([f64; 9]);

impl ForkRun<'_> {
    /// Measures all strategies of the plan, in turn.
    pub(super) async fn sample_strategies(
        &mut self,
        fork_subject: &mut ForkSubject,
    ) -> Result<Vec<StrategyFigures>, BenchError> {
        let mut taken: Vec<[Vec<StrategySample>; 2]> =
            self.plan.strategies.iter().map(|_| Default::default()).collect();
        for _ in 0..self.plan.runs.min(ROUNDS_MAX) {
            for (strategy, of_strategy) in self.plan.strategies.iter().zip(&mut taken) {
                // Start a new program. The seed of the same program would start with the working set of the previous
                // seed.
                fork_subject.parent = self.start_micro(fork_subject.mib)?;
                let seed = self.cluster.prepare(fork_subject.parent.pid()).await?.seed;
                for samples in of_strategy.iter_mut() {
                    samples.push(self.sample_strategy_child(&seed, strategy).await?);
                    self.cluster.wait_for_working_set(&seed).await?;
                }
                self.cluster.drop_seed(&seed).await?;
            }
        }
        let figures = |(strategy, [first, second]): (&String, [Vec<StrategySample>; 2])| StrategyFigures {
            mib: fork_subject.mib,
            strategy: strategy.clone(),
            first: medians(&first),
            second: medians(&second),
        };
        Ok(self.plan.strategies.iter().zip(taken).map(figures).collect())
    }

    async fn sample_strategy_child(&mut self, seed: &str, strategy: &str) -> Result<StrategySample, BenchError> {
        let wanted = ForkOptions { strategy, ..ForkOptions::default() };
        let (child, detail) = self.cluster.fork_with_detail(seed, ChildPlace::Other, PAYLOAD_TOUCH, wanted).await?;
        let report = ChildReport::parse(&child.output)?;
        let pager: PagerStats = detail.pager.unwrap_or_default();
        let touching_ms = ns_to_ms(report.touch_ns);
        let remote_bytes = detail.memory.and_then(|memory| memory.remote_bytes).unwrap_or_default();
        let network_bytes = pager.bytes_fetched.saturating_sub(pager.bytes_same_host);
        Ok(StrategySample([
            ns_to_ms(report.reported_unix_ns - child.sent_unix_ns) + touching_ms,
            touching_ms,
            pager.faults_missing as f64,
            pager.round_trips as f64,
            network_bytes as f64,
            (pager.pages_cached * PAGE_BYTES) as f64,
            remote_bytes as f64,
            report.shared_bytes as f64,
            report.private_bytes as f64,
        ]))
    }
}

fn medians(samples: &[StrategySample]) -> StrategyChildFigures {
    let median = |index: usize| {
        let values: Vec<f64> = samples.iter().map(|StrategySample(values)| values[index]).collect();
        Spread::from_samples(&values).map_or(0.0, |spread| spread.median)
    };
    StrategyChildFigures {
        samples: samples.len(),
        whole_ms: median(0),
        touching_ms: median(1),
        faults_missing: median(2),
        round_trips: median(3),
        network_bytes: median(4),
        cached_bytes: median(5),
        remote_bytes: median(6),
        shared_bytes: median(7),
        private_bytes: median(8),
    }
}
