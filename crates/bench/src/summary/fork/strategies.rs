//! The tables of strategies: times of the first and the second child of a seed on another node, and how much of their
//! memory is shared, private or remote.

use super::ForkSummary;
use crate::figure::MIB_BYTES;
use crate::parameters::strategies::{StrategyChildFigures, StrategyFigures};
use crate::summary::table::{FigureTable, format_figure};

impl ForkSummary {
    /// `None` if no strategies were compared.
    pub(super) fn strategies_table(&self) -> Option<FigureTable> {
        let title = "Strategies: every page once in a child on another node, the seed's first and its second";
        let headings = ["MiB", "strategy", "child", "n", "whole", "touching", "faults", "reads", "network", "cache"];
        self.strategy_rows(title, &headings, |child| {
            vec![
                child.samples.to_string(),
                format_figure(child.whole_ms),
                format_figure(child.touching_ms),
                format!("{:.0}", child.faults_missing),
                format!("{:.0}", child.round_trips),
                mib_of(child.network_bytes),
                mib_of(child.cached_bytes),
            ]
        })
    }

    /// `None` if no strategies were compared.
    pub(super) fn memory_table(&self) -> Option<FigureTable> {
        let headings = ["MiB", "strategy", "child", "n", "shared", "private", "remote"];
        self.strategy_rows("Strategies: where the memory of these children was at their end", &headings, |child| {
            let [shared, private, remote] = [child.shared_bytes, child.private_bytes, child.remote_bytes].map(mib_of);
            vec![child.samples.to_string(), shared, private, remote]
        })
    }

    fn strategy_rows(
        &self,
        title: &str,
        headings: &[&'static str],
        cells: impl Fn(&StrategyChildFigures) -> Vec<String>,
    ) -> Option<FigureTable> {
        let mut table = FigureTable::new(title, headings);
        for StrategyFigures { mib, strategy, first, second } in &self.strategies {
            for (name, child) in [("first", first), ("second", second)] {
                table.add_row([mib.to_string(), strategy.clone(), name.to_owned()].into_iter().chain(cells(child)));
            }
        }
        (!self.strategies.is_empty()).then_some(table)
    }

    pub(super) fn strategies_legend(&self) -> Vec<String> {
        let legend = [
            "whole: from the request to the last page, ms; touching: of that, in the child itself.",
            "faults: those whose page had to be requested; reads: requests to the owner.",
            "network, cache, remote: MiB from the owner, kept by the child's node, never fetched.",
            "shared, private: MiB shared with other processes (its program's files), and private to the child.",
        ];
        let is_wanted = !self.strategies.is_empty();
        legend.into_iter().filter(|_| is_wanted).map(str::to_owned).collect()
    }
}

fn mib_of(bytes: f64) -> String {
    format_figure(bytes / MIB_BYTES)
}
