//! The table of strategies: what the first child of a seed on another node cost, and the second.

use super::ForkReport;
use crate::coordinator::fork::strategies::{ChildFigures, StrategyFigures};
use crate::report::table::{Table, figure};

const MIB_BYTES: f64 = (1 << 20) as f64;

impl ForkReport {
    /// None where no strategies were asked for.
    pub(super) fn of_strategies(&self) -> Option<Table> {
        let headings =
            ["MiB", "strategy", "child", "n", "whole", "touching", "faults", "reads", "network", "cache", "remote"];
        let mut table = Table::new(
            "Strategies: every page once in a child on another node, the seed's first and its second",
            &headings,
        );
        for StrategyFigures { mib, strategy, first, second } in &self.strategies {
            for (name, child) in [("first", first), ("second", second)] {
                let ChildFigures { samples, whole_ms, touching_ms, .. } = child;
                let mib_of = |bytes: f64| figure(bytes / MIB_BYTES);
                table.row([
                    mib.to_string(),
                    strategy.clone(),
                    name.to_owned(),
                    samples.to_string(),
                    figure(*whole_ms),
                    figure(*touching_ms),
                    format!("{:.0}", child.faults_missing),
                    format!("{:.0}", child.round_trips),
                    mib_of(child.network_bytes),
                    mib_of(child.cached_bytes),
                    mib_of(child.remote_bytes),
                ]);
            }
        }
        (!self.strategies.is_empty()).then_some(table)
    }

    pub(super) fn strategies_legend(&self) -> Vec<String> {
        let legend = [
            "whole: from the request to the last page, ms; touching: of that, in the child itself.",
            "faults: those whose page had to be asked for; reads: of the owner.",
            "network, cache, remote: MiB from the owner, kept by the child's node, never fetched.",
        ];
        let is_wanted = !self.strategies.is_empty();
        legend.into_iter().filter(|_| is_wanted).map(str::to_owned).collect()
    }
}
