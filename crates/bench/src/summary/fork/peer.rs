//! The table of a run with a peer: the times of whole clones, from the request to the last page.

use super::{ForkSummary, fewest_samples};
use crate::figure::{ChildPlace, ForkFigure, ForkSampleKey, ForkSystem};
use crate::samples::Spread;
use crate::summary::table::{FigureTable, format_figure, format_median};

/// The times of a clone: until it runs, and then until it has touched each page.
#[derive(Debug, Clone, Copy)]
struct CloneTimes {
    prepare: Option<Spread>,
    resume: Option<Spread>,
    execution: Option<Spread>,
}

impl ForkSummary {
    /// The table of farfork and the peer; `None` without a peer.
    pub(super) fn peer_table(&self) -> Option<FigureTable> {
        self.plan.peer?;
        let title = "CRIU: the same process cloned by dump and restore, next to farfork on the own node";
        let headings = [
            "MiB",
            "n",
            "farfork:\nclone",
            "exec.",
            "sum",
            "eager:\nclone",
            "exec.",
            "sum",
            "lazy:\nclone",
            "exec.",
            "sum",
            "pause",
        ];
        let mut table = FigureTable::new(title, &headings);
        for &mib in &self.plan.sizes_mib {
            let clones =
                [ForkSystem::Farfork, ForkSystem::CriuEager, ForkSystem::CriuLazy].map(|by| self.clone_by(mib, by));
            let pause = self.spread(ForkSampleKey::new(mib, ForkSystem::CriuLazy, ForkFigure::Pause));
            let counted: Vec<_> = clones.iter().map(|clone| clone.execution).filter(Option::is_some).collect();
            let head = [mib.to_string(), fewest_samples(&counted)];
            let cells = clones.iter().flat_map(CloneTimes::cells);
            table.add_row(head.into_iter().chain(cells).chain([format_median(pause)]));
        }
        Some(table)
    }

    /// The legend of the table.
    pub(super) fn peer_legend(&self) -> Vec<String> {
        let lines = [
            "clone: prepare and resume, of CRIU dump and restore: until the first instruction, a sum of medians.",
            "eager: all memory is present by then; lazy: it follows; pause: most time that the parent stops.",
            "CRIU's images are files in memory.",
        ];
        self.plan.peer.map_or(Vec::new(), |_| lines.map(str::to_owned).to_vec())
    }

    fn clone_by(&self, mib: u64, by: ForkSystem) -> CloneTimes {
        let own = |figure| self.spread(ForkSampleKey::new(mib, by, figure).with_place(ChildPlace::Own));
        CloneTimes {
            prepare: self.spread(ForkSampleKey::new(mib, by, ForkFigure::Prepare)),
            resume: own(ForkFigure::Resume),
            execution: own(ForkFigure::Execution),
        }
    }
}

impl CloneTimes {
    fn cells(&self) -> [String; 3] {
        let sum = |parts: &[Option<Spread>]| {
            let medians = parts.iter().map(|spread| spread.map(|spread| spread.median));
            medians.sum::<Option<f64>>().map_or("–".to_owned(), format_figure)
        };
        [
            sum(&[self.prepare, self.resume]),
            format_median(self.execution),
            sum(&[self.prepare, self.resume, self.execution]),
        ]
    }
}
