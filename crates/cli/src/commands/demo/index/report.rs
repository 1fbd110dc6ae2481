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
        output::print_line(&self.advice());
    }

    /// Returns the last text that the demo prints. The comparison with os.fork() depends on the machine: more nodes may
    /// have more processors.
    fn advice(&self) -> String {
        let (own, local) = (self.farfork.first_fork, self.local_fork);
        let first = compare(local.first_us, own.first_us);
        let last = compare(local.last_us, own.last_us);
        let local = format!("os.fork() is simpler; first answer: {first} farfork, last: {last} farfork");
        format!("When not to use farfork:\n  on one machine              {local}\n{WHEN_NOT}")
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

/// The part of the advice that does not depend on the figures.
const WHEN_NOT: &str =
    "  state that is soon rebuilt  start a new process: the cold start costs no more than the state does
  state that pickles well     multiprocessing or Ray: a few arrays or small objects, sent once
  state outside the process   children have no GPU and no TCP connection of the parent; see `farfork check`

Next: `farfork demo agent` branches one interpreter eight ways. docs/guide/first-fork.md forks a program of your own.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_agrees_with_the_figures() {
        let times = |first_us, last_us| AnswerTimes { first_us, last_us };
        let mut report = IndexReport {
            parent: ParentFigures { documents: 1, objects: 1, build_us: 1, memory_bytes: 1 },
            farfork: FarforkFigures {
                prepared_us: 1,
                pause_us: 1,
                first_fork: times(1000, 2000),
                second_fork: times(1, 1),
                children: Vec::new(),
                network_bytes: 1,
            },
            cold_us: 1,
            pickle: PickleFigures { times: times(1, 1), pickled_bytes: 1 },
            local_fork: times(100, 3000),
        };
        let advice = report.advice();
        let expected = "first answer: 10 times faster than farfork, last: 1.5 times slower than farfork\n";
        assert!(advice.contains(expected), "{advice}");
        report.local_fork = times(100, 1000);
        assert!(report.advice().contains("last: 2.0 times faster than farfork\n"), "{}", report.advice());
    }
}
