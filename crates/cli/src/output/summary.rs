//! `PhaseSummary`: the phases of several children in one table. Each line has the median and the maximum of one phase.

use farfork_api::v1::Phase;
use serde::Serialize;

use super::{Table, format_microseconds};

/// A phase of several children.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PhaseSummary {
    pub(crate) name: String,
    /// Depth in the tree of phases, as in `PhaseView`.
    pub(crate) depth: u32,
    /// Number of children that have this phase.
    pub(crate) children: usize,
    /// Median of the children's times; the upper one of the two middle times if the number of children is even.
    pub(crate) median_us: u64,
    pub(crate) max_us: u64,
    /// The node where the phase took longest.
    pub(crate) max_node: String,
}

/// A phase of the tree, with the times of all children that have it.
struct SummaryRow {
    /// The names of the phases that contain this phase, and its own name.
    path: Vec<String>,
    times: Vec<(u64, String)>,
}

/// Merges the phases of several children. Parts follow the phase that contains them. If a child has a phase several
/// times, the times are added up.
pub(crate) fn summarize<'a>(children: impl IntoIterator<Item = &'a [Phase]>) -> Vec<PhaseSummary> {
    let mut rows: Vec<SummaryRow> = Vec::new();
    for phases in children {
        let mut before = None;
        for row in rows_of(phases) {
            let at = rows.iter().position(|known| known.path == row.path);
            let at = at.unwrap_or_else(|| insert_row(&mut rows, before, row.path));
            rows[at].times.extend(row.times);
            before = Some(at);
        }
    }
    rows.into_iter().map(SummaryRow::summary).collect()
}

/// Makes a table with a line for each phase.
pub(crate) fn summary_table(phases: &[PhaseSummary]) -> String {
    let mut table = Table::new(&["PHASE", ">CHILDREN", ">MEDIAN", ">LONGEST", "ON"]);
    for phase in phases {
        let name = format!("{}{}", "  ".repeat(phase.depth as usize), phase.name);
        let [median, longest] = [phase.median_us, phase.max_us].map(format_microseconds);
        table.add_row([name, phase.children.to_string(), median, longest, phase.max_node.clone()]);
    }
    table.render()
}

/// Returns the rows of one child.
fn rows_of(phases: &[Phase]) -> Vec<SummaryRow> {
    let mut rows: Vec<SummaryRow> = Vec::new();
    let mut path: Vec<String> = Vec::new();
    for phase in phases {
        path.truncate(phase.depth as usize);
        path.push(phase.name.clone());
        match rows.iter_mut().find(|row| row.path == path) {
            Some(row) => row.times[0].0 += phase.duration_us,
            None => rows.push(SummaryRow { path: path.clone(), times: vec![(phase.duration_us, phase.node.clone())] }),
        }
    }
    rows
}

/// Inserts a row after row `before`, and after the rows that follow `before` and are deeper than the new row. Returns the
/// index of the new row.
fn insert_row(rows: &mut Vec<SummaryRow>, before: Option<usize>, path: Vec<String>) -> usize {
    let mut at = before.map_or(0, |before| before + 1);
    while rows.get(at).is_some_and(|row| row.path.len() > path.len()) {
        at += 1;
    }
    rows.insert(at, SummaryRow { path, times: Vec::new() });
    at
}

impl SummaryRow {
    fn summary(mut self) -> PhaseSummary {
        self.times.sort_unstable();
        let children = self.times.len();
        let (median_us, _) = self.times[children / 2];
        let (max_us, max_node) = self.times.pop().expect("each row has at least one child");
        let depth = u32::try_from(self.path.len() - 1).unwrap_or(u32::MAX);
        let name = self.path.pop().expect("a phase has a name");
        PhaseSummary { name, depth, children, median_us, max_us, max_node }
    }
}

#[cfg(test)]
mod tests {
    use super::{Phase, summarize, summary_table};

    fn phase(name: &str, depth: u32, duration_us: u64, node: &str) -> Phase {
        Phase { name: name.to_owned(), depth, start_us: 0, duration_us, node: node.to_owned() }
    }

    #[test]
    fn children_with_different_phases_share_a_table() {
        let first = [phase("resume", 0, 900, "n1"), phase("plan", 1, 10, "n1"), phase("record", 1, 20, "n1")];
        let second = [
            phase("resume", 0, 1500, "n2"),
            phase("source", 1, 400, "n2"),
            phase("read", 2, 300, "n2"),
            phase("bind", 1, 7, "n2"),
            phase("bind", 1, 8, "n2"),
            phase("plan", 1, 12, "n2"),
            phase("record", 1, 15, "n2"),
        ];
        let expected = "\
PHASE     CHILDREN   MEDIAN  LONGEST  ON
resume           2  1.50 ms  1.50 ms  n2
  source         1   400 µs   400 µs  n2
    read         1   300 µs   300 µs  n2
  bind           1    15 µs    15 µs  n2
  plan           2    12 µs    12 µs  n2
  record         2    20 µs    20 µs  n1";
        assert_eq!(summary_table(&summarize([&first[..], &second[..]])), expected);
        assert!(summarize([]).is_empty());
    }
}
