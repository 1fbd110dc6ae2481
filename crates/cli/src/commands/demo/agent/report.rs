//! `AgentReport`: the figures of the agent demo, as a JSON document and as a table.

use serde::Serialize;

use crate::output::{self, Table, format_microseconds};

/// The figures of one round: the process was branched, and the best branch kept.
#[derive(Debug, Serialize)]
pub(super) struct RoundFigures {
    pub(super) seed: String,
    pub(super) prepared_us: u64,
    /// Time from the start of the prepare until every branch ran, in microseconds.
    pub(super) running_us: u64,
    pub(super) best_branch: u32,
    pub(super) best_node: String,
    pub(super) best_length: f64,
    pub(super) worst_length: f64,
}

/// The child of the best branch, which still runs.
#[derive(Debug, Serialize)]
pub(super) struct KeptBranch {
    pub(super) child: String,
    pub(super) node: String,
    pub(super) settle_us: u64,
}

/// All figures that the demo measured.
#[derive(Debug, Serialize)]
pub(in super::super) struct AgentReport {
    pub(super) warm_us: u64,
    pub(super) warm_length: f64,
    pub(super) rounds: Vec<RoundFigures>,
    pub(super) kept: KeptBranch,
    /// The numbers of the branches that led to the kept child, as its memory has them.
    pub(super) branches: Vec<u32>,
}

impl AgentReport {
    pub(in super::super) fn print(&self) {
        output::print_line(&format!(
            "The parent: a Python interpreter that searched for {}. Its tour has the length {:.3}.",
            format_microseconds(self.warm_us),
            self.warm_length,
        ));
        output::print_line("");
        self.round_table().print();
        output::print_line("");
        let KeptBranch { child, node, settle_us } = &self.kept;
        let decisions: Vec<String> = self.branches.iter().map(u32::to_string).collect();
        output::print_line(&format!(
            "Kept: {child} on {node}, with the decisions {} in its memory.\nIt settled in {}: it needs no other node \
             any more. All other branches were killed, and all seeds were dropped.",
            decisions.join(", "),
            format_microseconds(*settle_us),
        ));
    }

    fn round_table(&self) -> Table {
        let headings =
            [">ROUND", ">PREPARED IN", ">ALL BRANCHES RAN AFTER", ">BEST BRANCH", "NODE", ">ITS TOUR", ">WORST TOUR"];
        let mut table = Table::new(&headings);
        for (number, round) in (1..).zip(&self.rounds) {
            table.add_row([
                number.to_string(),
                format_microseconds(round.prepared_us),
                format_microseconds(round.running_us),
                round.best_branch.to_string(),
                round.best_node.clone(),
                format!("{:.3}", round.best_length),
                format!("{:.3}", round.worst_length),
            ]);
        }
        table
    }
}
