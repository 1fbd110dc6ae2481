//! What `farfork bench fork` has found: tables, or a document whose keys are a promise.

mod document;
mod peer;
mod strategies;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::figure::{By, Figure, Key, Pace, Place};
use crate::machine::Machine;
use crate::plan::fork::{ForkPlan, Resumed};
use crate::plan::strategies::StrategyFigures;
use crate::reference;
use crate::report::table::{Table, figure, median, spread};
use crate::samples::{Samples, Spread};

/// Figures of a run that went to its end.
#[derive(Debug)]
pub struct ForkReport {
    pub(crate) plan: ForkPlan,
    pub(crate) samples: Samples<Key>,
    /// Strategies beside each other.
    pub(crate) strategies: Vec<StrategyFigures>,
    /// What a reader should know beside the figures.
    pub(crate) notes: Vec<String>,
    /// How long it took.
    pub(crate) elapsed: Duration,
    /// What else the machine did before.
    pub(crate) load_before: f64,
}

impl ForkReport {
    /// The tables, with what is needed to read them; no line is longer than 100 columns.
    pub fn text(&self) -> String {
        let tables = [
            Some(self.checkpoint()),
            Some(self.prepare()),
            Some(self.resume()),
            Some(self.execution()),
            self.of_strategies(),
            self.of_memory(),
            self.peer(),
        ];
        let tables: Vec<String> = tables.into_iter().flatten().map(|table| table.text()).collect();
        let mut text = format!("{}\n\n{}\n\n", self.head(), tables.join("\n\n"));
        for note in self.legend().iter().chain(&self.strategies_legend()).chain(&self.peer_legend()).chain(&self.notes)
        {
            text += &format!("{note}\n");
        }
        text
    }

    fn head(&self) -> String {
        let machine = Machine::this().text();
        let ForkPlan { order, access, page_size, threads, mappings, runs, encrypted, .. } = &self.plan;
        let link = if *encrypted { "encrypted" } else { "in clear" };
        let size = match (threads, mappings) {
            (1, 0) => String::new(),
            _ => format!("\nIt has {threads} threads, and {mappings} mappings beside its own."),
        };
        format!(
            "A process with MiB of private memory in {page_size} pages, forked on its node and onto another.{size}\n\
             {machine}, load {:.1} before.\n\
             Times in ms: medians of up to {runs} samples, with the 10th and 90th percentiles in brackets.\n\
             Pages touched: {order}, {access}; between the nodes {link}. Measured in {:.0} s.",
            self.load_before,
            self.elapsed.as_secs_f64(),
        )
    }

    fn checkpoint(&self) -> Table {
        let title = "Prepare, asked by the program itself, from the call to its return; pause: it stands still";
        let headings = ["MiB", "n", "prepare", "after idle", "pause", "fork()", "ref.", "verdict"];
        let mut table = Table::new(title, &headings);
        for &mib in &self.plan.sizes_mib {
            let checkpoint = self.spread(Key::farfork(mib, Figure::Checkpoint));
            let idle = self.spread(Key::farfork(mib, Figure::Checkpoint).paced(Pace::Idle));
            let pause = self.spread(Key::farfork(mib, Figure::CheckpointPause));
            table.row([
                mib.to_string(),
                fewest(&[checkpoint, idle, pause]),
                spread(checkpoint),
                spread(idle),
                spread(pause),
                median(self.spread(Key::new(mib, By::LocalFork, Figure::Pause))),
                reference_text(Figure::Checkpoint, mib),
                verdict(Figure::Checkpoint, mib, &[checkpoint, idle]),
            ]);
        }
        table
    }

    fn prepare(&self) -> Table {
        let title = "Prepare by pid, asked by another process over gRPC: from its request to the answer";
        let mut table = Table::new(title, &["MiB", "n", "prepare", "after idle", "on the node", "pause", "ref."]);
        for &mib in &self.plan.sizes_mib {
            let prepare = self.spread(Key::farfork(mib, Figure::Prepare));
            let idle = self.spread(Key::farfork(mib, Figure::Prepare).paced(Pace::Idle));
            let on_node = self.spread(Key::farfork(mib, Figure::PrepareOnNode));
            let pause = self.spread(Key::farfork(mib, Figure::Pause));
            table.row([
                mib.to_string(),
                fewest(&[prepare, idle, on_node, pause]),
                spread(prepare),
                spread(idle),
                spread(on_node),
                spread(pause),
                reference_text(Figure::Prepare, mib),
            ]);
        }
        table
    }

    fn resume(&self) -> Table {
        let title = match self.plan.resumed {
            Resumed::Later => "Resume: from the request to the child's first instruction, in a container of its own",
            Resumed::First => "Resume of a seed's first child on the node: from the request to its first instruction",
            Resumed::Foretold => "Resume of a seed's first child, foretold: from the request to its first instruction",
            Resumed::Fresh => "Resume of a new process's first child: from the request to its first instruction",
        };
        let headings = ["MiB", "n", "own node", "after idle", "other node", "after idle", "ref.", "verdict"];
        let mut table = Table::new(title, &headings);
        for &mib in &self.plan.sizes_mib {
            let of = |place, pace| self.spread(Key::farfork(mib, Figure::Resume).on(place).paced(pace));
            let columns = [
                of(Place::Own, Pace::BackToBack),
                of(Place::Own, Pace::Idle),
                of(Place::Other, Pace::BackToBack),
                of(Place::Other, Pace::Idle),
            ];
            let head = [mib.to_string(), fewest(&columns)];
            let tail = [reference_text(Figure::Resume, mib), verdict(Figure::Resume, mib, &columns)];
            table.row(head.into_iter().chain(columns.map(spread)).chain(tail));
        }
        table
    }

    fn execution(&self) -> Table {
        let title = "Execution: every page once in the child, and what the same takes without farfork";
        let headings = ["MiB", "n", "own node", "other node", "fork()", "fork(), write", "link", "ref.", "verdict"];
        let mut table = Table::new(title, &headings);
        for &mib in &self.plan.sizes_mib {
            let own = self.spread(Key::farfork(mib, Figure::Execution).on(Place::Own));
            let other = self.spread(Key::farfork(mib, Figure::Execution).on(Place::Other));
            let floors = [
                (By::LocalFork, Figure::Execution),
                (By::LocalFork, Figure::ExecutionWriting),
                (By::Link, Figure::Execution),
            ];
            let floors = floors.map(|(by, figure)| self.spread(Key::new(mib, by, figure)));
            let head = [mib.to_string(), fewest(&[own, other]), spread(own), spread(other)];
            let tail = [reference_text(Figure::Execution, mib), verdict(Figure::Execution, mib, &[own, other])];
            table.row(head.into_iter().chain(floors.map(median)).chain(tail));
        }
        table
    }

    fn legend(&self) -> Vec<String> {
        vec![
            "n: samples of the row's figure with fewest; large sizes get fewer, so that a run ends in time.".into(),
            "fork(): the same by a local fork() of the same process; fork(), write: likewise, each page copied.".into(),
            "link: the same bytes over the link by two bare programs.".into(),
            format!("ref.: {}.", reference::SOURCE),
            "A program's own call is what was published: only that gets a verdict; by pid another asks.".into(),
            "verdict: the slowest median ÷ ref.; whether all of the row are below it, all above, or mixed.".into(),
        ]
    }

    fn spread(&self, key: Key) -> Option<Spread> {
        self.samples.spread(&key)
    }
}

fn fewest(columns: &[Option<Spread>]) -> String {
    columns.iter().map(|spread| spread.map_or(0, |spread| spread.count)).min().unwrap_or(0).to_string()
}

fn reference_text(figure_of: Figure, mib: u64) -> String {
    reference::of(figure_of, mib).map_or("–".to_owned(), figure)
}

/// The slowest of some medians divided by the reference, and whether they are below it.
fn verdict(figure_of: Figure, mib: u64, columns: &[Option<Spread>]) -> String {
    let medians = || columns.iter().flatten().map(|spread| spread.median);
    let (Some(slowest), Some(reference)) = (medians().max_by(f64::total_cmp), reference::of(figure_of, mib)) else {
        return "–".to_owned();
    };
    let word = if slowest < reference {
        "below"
    } else if medians().all(|median| median >= reference) {
        "above"
    } else {
        "mixed"
    };
    format!("{} {word}", figure(slowest / reference))
}
