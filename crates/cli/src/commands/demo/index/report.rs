//! `IndexReport`: the figures of the index demo, as a JSON document and as tables.

use serde::Serialize;

use crate::output::{self, Table, format_bytes, format_microseconds};

/// The times of a round's first and last answers, in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct AnswerTimes {
    first_us: u64,
    last_us: u64,
}

impl AnswerTimes {
    pub(super) fn of(times_us: impl Iterator<Item = u64> + Clone) -> Self {
        Self { first_us: times_us.clone().min().unwrap_or(0), last_us: times_us.max().unwrap_or(0) }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct ParentFigures {
    pub(super) documents: u32,
    pub(super) objects: u64,
    pub(super) build_us: u64,
    pub(super) memory_bytes: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct ChildFigures {
    pub(super) node: String,
    pub(super) resume_us: u64,
    /// Time from the start of the round until the answer.
    pub(super) answer_us: u64,
    pub(super) bytes_fetched: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct FarforkFigures {
    pub(super) prepared_us: u64,
    /// The part of `prepared_us` for which the parent was stopped.
    pub(super) pause_us: u64,
    /// Times since the start of the prepare.
    pub(super) first_fork: AnswerTimes,
    /// Times since the start of the second fork of the same seed.
    pub(super) second_fork: AnswerTimes,
    /// The children of the first fork.
    pub(super) children: Vec<ChildFigures>,
    /// Bytes that the parent's node sent, headers included, until the first fork's last answer.
    pub(super) network_bytes: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct PickleFigures {
    #[serde(flatten)]
    pub(super) times: AnswerTimes,
    pub(super) pickled_bytes: u64,
}

/// All figures that the demo measured.
#[derive(Debug, Serialize)]
pub(in super::super) struct IndexReport {
    pub(super) parent: ParentFigures,
    pub(super) farfork: FarforkFigures,
    pub(super) cold_us: u64,
    pub(super) pickle: PickleFigures,
    pub(super) local_fork: AnswerTimes,
}

impl IndexReport {
    pub(in super::super) fn print(&self) {
        self.print_parent();
        output::print_line("");
        self.comparison().print();
        output::print_line("");
        self.print_ratios();
        output::print_line("");
        output::print_line(WHEN_NOT);
    }

    fn print_parent(&self) {
        let ParentFigures { documents, objects, build_us, memory_bytes } = &self.parent;
        let FarforkFigures { prepared_us, pause_us, children, network_bytes, .. } = &self.farfork;
        output::print_line(&format!(
            "The parent: a search index of {documents} documents in Python, {objects} objects, {}, built in {}.",
            format_bytes(*memory_bytes),
            format_microseconds(*build_us),
        ));
        output::print_line(&format!(
            "farfork prepared it in {}. The parent was stopped for {} of that, and still runs.",
            format_microseconds(*prepared_us),
            format_microseconds(*pause_us),
        ));
        output::print_line(&format!(
            "{} children on two other nodes fetched {} over the network in all, on average {} each.",
            children.len(),
            format_bytes(*network_bytes),
            format_bytes(network_bytes / children.len().max(1) as u64),
        ));
        output::print_line(&format!(
            "The pickle has {}. All nodes are network namespaces of this machine.",
            format_bytes(self.pickle.pickled_bytes),
        ));
    }

    fn comparison(&self) -> Table {
        let last = format!(">LAST OF {}", self.farfork.children.len());
        let mut table = Table::new(&["ANSWERS FROM", ">FIRST", &last]);
        let mut row = |what: &str, AnswerTimes { first_us, last_us }: &AnswerTimes| {
            table.add_row([what.to_owned(), format_microseconds(*first_us), format_microseconds(*last_us)]);
        };
        row("farfork, two other nodes: prepare and fork", &self.farfork.first_fork);
        row("farfork, two other nodes: the same seed again", &self.farfork.second_fork);
        row("pickle, two other nodes: imports already done", &self.pickle.times);
        row("os.fork(), the parent's own node", &self.local_fork);
        table.add_row([
            "cold start, another node: build the index again".to_owned(),
            format_microseconds(self.cold_us),
            String::new(),
        ]);
        table
    }

    fn print_ratios(&self) {
        let first_us = self.farfork.first_fork.first_us;
        output::print_line(&format!(
            "The first answer on another node: {} a cold start, {} pickle.\nAll answers were compared with the parent's \
             own; they are equal.",
            compare(first_us, self.cold_us),
            compare(first_us, self.pickle.times.first_us),
        ));
    }
}

/// Compares two times: `12 times faster than`.
fn compare(own_us: u64, other_us: u64) -> String {
    let (word, ratio) = match own_us <= other_us {
        true => ("faster", other_us as f64 / own_us.max(1) as f64),
        false => ("slower", own_us as f64 / other_us.max(1) as f64),
    };
    if ratio < 10.0 { format!("{ratio:.1} times {word} than") } else { format!("{ratio:.0} times {word} than") }
}

/// The last text that the demo prints.
const WHEN_NOT: &str = "\
When not to use farfork:
  on one machine              os.fork() wins, as the table shows
  state that is soon rebuilt  start a new process: the cold start costs no more than the state does
  state that pickles well     multiprocessing or Ray: a few arrays or small objects, sent once
  state outside the process   children have no GPU and no TCP connection of the parent; see `farfork check`

Next: `farfork demo agent` branches one interpreter eight ways. docs/guide/first-fork.md forks a program of your own.";
