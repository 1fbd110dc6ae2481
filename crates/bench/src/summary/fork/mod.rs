//! The summary of `farfork bench fork`: tables as text, or a JSON document whose keys must not change.

mod json;
mod peer;
mod strategies;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::figure::{ChildPlace, ForkFigure, ForkSampleKey, ForkSystem, Pace};
use crate::machine::MachineState;
use crate::parameters::fork::{ForkOperation, ForkParameters, ResumeCase};
use crate::parameters::strategies::StrategyFigures;
use crate::reference::PUBLISHED_FIGURES;
use crate::samples::{Samples, Spread};
use crate::summary::table::{FigureTable, format_figure, format_median, format_spread};

/// Figures of a completed run.
#[derive(Debug)]
pub struct ForkSummary {
    pub(crate) plan: ForkParameters,
    pub(crate) samples: Samples<ForkSampleKey>,
    /// The figures of the compared strategies.
    pub(crate) strategies: Vec<StrategyFigures>,
    /// Additional notes for the reader.
    pub(crate) notes: Vec<String>,
    /// Duration of the run.
    pub(crate) elapsed: Duration,
    /// The machine before the run.
    pub(crate) machine_state: MachineState,
}

impl ForkSummary {
    /// The tables with their legend. No line is longer than 100 columns.
    pub fn to_text(&self) -> String {
        let tables = [
            self.plan.measures(ForkOperation::Prepare).then(|| self.checkpoint_table()),
            self.plan.measures(ForkOperation::Prepare).then(|| self.prepare_table()),
            self.plan.measures(ForkOperation::Resume).then(|| self.resume_table()),
            self.plan.measures(ForkOperation::Execution).then(|| self.execution_table()),
            self.strategies_table(),
            self.memory_table(),
            self.peer_table(),
        ];
        let tables: Vec<String> = tables.into_iter().flatten().map(|table| table.render()).collect();
        let mut text = format!("{}\n\n{}\n\n", self.header_text(), tables.join("\n\n"));
        for note in self.legend().iter().chain(&self.strategies_legend()).chain(&self.peer_legend()).chain(&self.notes)
        {
            text += &format!("{note}\n");
        }
        text
    }

    fn header_text(&self) -> String {
        let ForkParameters { order, access, page_size, threads, mappings, runs, encrypted, .. } = &self.plan;
        let link = if *encrypted { "encrypted" } else { "in clear" };
        let size = match (threads, mappings) {
            (1, 0) => String::new(),
            _ => format!("\nIt has {threads} threads, and {mappings} additional mappings."),
        };
        format!(
            "A process with MiB of private memory in {page_size} pages, forked on its node and onto another.{size}\n\
             {} before.\n\
             Times in ms: medians of up to {runs} samples, with the 10th and 90th percentiles in brackets.\n\
             Pages touched: {order}, {access}; between the nodes {link}. Measured in {:.0} s.",
            self.machine_state.describe(),
            self.elapsed.as_secs_f64(),
        )
    }

    fn checkpoint_table(&self) -> FigureTable {
        let title = "Prepare, requested by the program itself, from the call to its return; pause: it is stopped";
        let headings = ["MiB", "n", "prepare", "after idle", "pause", "fork()", "ref.", "verdict"];
        let mut table = FigureTable::new(title, &headings);
        for &mib in &self.plan.sizes_mib {
            let checkpoint = self.spread(ForkSampleKey::for_farfork(mib, ForkFigure::Checkpoint));
            let idle = self.spread(ForkSampleKey::for_farfork(mib, ForkFigure::Checkpoint).with_pace(Pace::Idle));
            let pause = self.spread(ForkSampleKey::for_farfork(mib, ForkFigure::CheckpointPause));
            table.add_row([
                mib.to_string(),
                fewest_samples(&[checkpoint, idle, pause]),
                format_spread(checkpoint),
                format_spread(idle),
                format_spread(pause),
                format_median(self.spread(ForkSampleKey::new(mib, ForkSystem::LocalFork, ForkFigure::Pause))),
                reference_text(ForkFigure::Checkpoint, mib),
                reference_verdict(ForkFigure::Checkpoint, mib, &[checkpoint, idle]),
            ]);
        }
        table
    }

    fn prepare_table(&self) -> FigureTable {
        let title = "Prepare by pid, requested by another process over gRPC: from the request to the answer";
        let mut table = FigureTable::new(title, &["MiB", "n", "prepare", "after idle", "on the node", "pause", "ref."]);
        for &mib in &self.plan.sizes_mib {
            let prepare = self.spread(ForkSampleKey::for_farfork(mib, ForkFigure::Prepare));
            let idle = self.spread(ForkSampleKey::for_farfork(mib, ForkFigure::Prepare).with_pace(Pace::Idle));
            let on_node = self.spread(ForkSampleKey::for_farfork(mib, ForkFigure::PrepareOnNode));
            let pause = self.spread(ForkSampleKey::for_farfork(mib, ForkFigure::Pause));
            table.add_row([
                mib.to_string(),
                fewest_samples(&[prepare, idle, on_node, pause]),
                format_spread(prepare),
                format_spread(idle),
                format_spread(on_node),
                format_spread(pause),
                reference_text(ForkFigure::Prepare, mib),
            ]);
        }
        table
    }

    fn resume_table(&self) -> FigureTable {
        let title = match self.plan.resume_case {
            ResumeCase::Later => "Resume: from the request to the child's first instruction, in a container of its own",
            ResumeCase::First => {
                "Resume of a seed's first child on the node: from the request to its first instruction"
            }
            ResumeCase::Speculative => {
                "Resume of a seed's first child, foretold: from the request to its first instruction"
            }
            ResumeCase::Fresh => "Resume of a new process's first child: from the request to its first instruction",
        };
        let headings = ["MiB", "n", "own node", "after idle", "other node", "after idle", "ref.", "verdict"];
        let mut table = FigureTable::new(title, &headings);
        for &mib in &self.plan.sizes_mib {
            let of = |place, pace| {
                self.spread(ForkSampleKey::for_farfork(mib, ForkFigure::Resume).with_place(place).with_pace(pace))
            };
            let columns = [
                of(ChildPlace::Own, Pace::BackToBack),
                of(ChildPlace::Own, Pace::Idle),
                of(ChildPlace::Other, Pace::BackToBack),
                of(ChildPlace::Other, Pace::Idle),
            ];
            let head = [mib.to_string(), fewest_samples(&columns)];
            let tail = [reference_text(ForkFigure::Resume, mib), reference_verdict(ForkFigure::Resume, mib, &columns)];
            table.add_row(head.into_iter().chain(columns.map(format_spread)).chain(tail));
        }
        table
    }

    fn execution_table(&self) -> FigureTable {
        let title = "Execution: every page once in the child, and the same without farfork";
        let headings = ["MiB", "n", "own node", "other node", "fork()", "fork(), write", "link", "ref.", "verdict"];
        let mut table = FigureTable::new(title, &headings);
        for &mib in &self.plan.sizes_mib {
            let own = self.spread(ForkSampleKey::for_farfork(mib, ForkFigure::Execution).with_place(ChildPlace::Own));
            let other =
                self.spread(ForkSampleKey::for_farfork(mib, ForkFigure::Execution).with_place(ChildPlace::Other));
            let floors = [
                (ForkSystem::LocalFork, ForkFigure::Execution),
                (ForkSystem::LocalFork, ForkFigure::ExecutionWriting),
                (ForkSystem::Link, ForkFigure::Execution),
            ];
            let floors = floors.map(|(by, figure)| self.spread(ForkSampleKey::new(mib, by, figure)));
            let head = [mib.to_string(), fewest_samples(&[own, other]), format_spread(own), format_spread(other)];
            let tail = [
                reference_text(ForkFigure::Execution, mib),
                reference_verdict(ForkFigure::Execution, mib, &[own, other]),
            ];
            table.add_row(head.into_iter().chain(floors.map(format_median)).chain(tail));
        }
        table
    }

    fn legend(&self) -> Vec<String> {
        vec![
            "n: samples of the row's figure with fewest; large sizes get fewer, so that a run ends in time.".into(),
            "fork(): the same by a local fork() of the same process; fork(), write: likewise, each page copied.".into(),
            "link: the same bytes over the link by two bare programs.".into(),
            format!("ref.: {}.", PUBLISHED_FIGURES.fork.source),
            "Only a program's own call was published, so only that has a verdict. By pid: another process asks.".into(),
            "verdict: the slowest median ÷ ref.; whether all of the row are below it, all above, or mixed.".into(),
        ]
    }

    pub(super) fn spread(&self, key: ForkSampleKey) -> Option<Spread> {
        self.samples.spread(&key)
    }
}

fn fewest_samples(columns: &[Option<Spread>]) -> String {
    columns.iter().map(|spread| spread.map_or(0, |spread| spread.count)).min().unwrap_or(0).to_string()
}

fn reference_text(figure_of: ForkFigure, mib: u64) -> String {
    PUBLISHED_FIGURES.fork.published_ms(figure_of, mib).map_or("–".to_owned(), format_figure)
}

/// The slowest of some medians divided by the reference, and whether the medians are below the reference.
fn reference_verdict(figure_of: ForkFigure, mib: u64, columns: &[Option<Spread>]) -> String {
    let medians = || columns.iter().flatten().map(|spread| spread.median);
    let (Some(slowest), Some(reference)) =
        (medians().max_by(f64::total_cmp), PUBLISHED_FIGURES.fork.published_ms(figure_of, mib))
    else {
        return "–".to_owned();
    };
    let word = if slowest < reference {
        "below"
    } else if medians().all(|median| median >= reference) {
        "above"
    } else {
        "mixed"
    };
    format!("{} {word}", format_figure(slowest / reference))
}
