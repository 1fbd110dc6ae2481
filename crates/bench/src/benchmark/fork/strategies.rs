//! Compares strategies. For each strategy, it forks a new seed twice on the other node. Each child touches every page
//! once. The second child profits from the seed's known working set and, if the strategy caches, from the page cache.

use farfork_api::v1::PagerStats;
use serde::Serialize;

use super::{ForkRun, ForkSubject};
use crate::error::BenchError;
use crate::experiment::local_cluster::ForkOptions;
use crate::figure::{ChildPlace, MIB_BYTES};
use crate::report::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};
use crate::samples::Spread;
use crate::workload::micro::{ChildReport, PAGE_BYTES, PAYLOAD_TOUCH, ns_to_ms};

/// The figures of a strategy, for one parent size.
#[derive(Debug, Clone, Serialize)]
pub(super) struct StrategyFigures {
    pub(super) mib: u64,
    pub(super) strategy: String,
    pub(super) first: StrategyChildFigures,
    pub(super) second: StrategyChildFigures,
}

/// Medians of all first children of a strategy, or of all second children.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct StrategyChildFigures {
    pub(super) samples: usize,
    /// Time from the request for a child to its last page. Pages that arrive before the child runs count in this time
    /// only.
    pub(super) whole_ms: f64,
    /// The part of `whole_ms` in which the child touches its pages.
    pub(super) touching_ms: f64,
    /// Faults whose page had to be requested.
    pub(super) faults_missing: f64,
    pub(super) round_trips: f64,
    /// Bytes transferred over the network.
    pub(super) network_bytes: f64,
    /// Bytes from the cache that an earlier child has filled on the node.
    pub(super) cached_bytes: f64,
    /// Memory of the seed that the child had not fetched when it ended.
    pub(super) remote_bytes: f64,
    /// The child's memory at its end that is shared with other processes, such as the files of its program.
    pub(super) shared_bytes: f64,
    /// The child's private memory at its end.
    pub(super) private_bytes: f64,
}

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
        for _ in 0..self.plan.runs().min(ROUNDS_MAX) {
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

/// The times of the children, and how they got their memory.
pub(super) fn times_table(strategies: &[StrategyFigures]) -> ReportTable {
    let title = "Strategies: every page once in a child on the other node";
    let columns = ["whole", "touching", "faults", "reads", "network", "cache"];
    strategy_table("strategies", title, &columns, strategies, |child| {
        vec![
            (child.whole_ms, "ms"),
            (child.touching_ms, "ms"),
            (child.faults_missing, ""),
            (child.round_trips, ""),
            (child.network_bytes / MIB_BYTES, "MiB"),
            (child.cached_bytes / MIB_BYTES, "MiB"),
        ]
    })
}

/// Where the memory of the children was.
pub(super) fn memory_table(strategies: &[StrategyFigures]) -> ReportTable {
    let title = "Strategies: where the memory of these children was at their end";
    strategy_table("strategy-memory", title, &["shared", "private", "remote"], strategies, |child| {
        [child.shared_bytes, child.private_bytes, child.remote_bytes].map(|bytes| (bytes / MIB_BYTES, "MiB")).to_vec()
    })
}

fn strategy_table(
    id: &str,
    title: &str,
    columns: &[&str],
    strategies: &[StrategyFigures],
    figures: impl Fn(&StrategyChildFigures) -> Vec<(f64, &'static str)>,
) -> ReportTable {
    let mut table = ReportTable::new(id, title, &[&["MiB", "strategy", "child"], columns].concat());
    for StrategyFigures { mib, strategy, first, second } in strategies {
        for (name, child) in [("first", first), ("second", second)] {
            let figure = |(value, unit)| {
                let figure = ReportFigure::single(value, unit, BetterDirection::Lower);
                ReportCell::Figure(ReportFigure { samples: child.samples, ..figure })
            };
            let key = [ReportCell::text(mib), ReportCell::text(strategy), ReportCell::text(name)];
            table.add_row(key.into_iter().chain(figures(child).into_iter().map(figure)));
        }
    }
    table
}

/// Notes that explain the tables; empty if no strategies were compared.
pub(super) fn notes(strategies: &[StrategyFigures]) -> impl Iterator<Item = String> {
    let notes = [
        "whole: from the request to the last page; touching: of that, in the child itself. faults: those whose page had to be \
         requested; reads: requests to the owner.",
        "network, cache, remote: from the owner, kept by the child's node, never fetched. shared, private: shared with other \
         processes (its program's files), and private to the child.",
    ];
    let is_wanted = !strategies.is_empty();
    notes.into_iter().filter(move |_| is_wanted).map(str::to_owned)
}
