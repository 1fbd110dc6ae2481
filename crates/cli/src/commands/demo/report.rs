//! `DemoReport`: the demo's figures, printed as tables.

use serde::Serialize;

use super::measurement::AcrossNodes;
use crate::output::{self, Table, format_bytes, format_microseconds};

/// All that was measured.
#[derive(Debug, Serialize)]
pub(super) struct DemoReport {
    pub(super) array_bytes: u64,
    #[serde(flatten)]
    pub(super) across: AcrossNodes,
    /// When each result of a local fork came, in microseconds.
    #[serde(rename = "local_fork_result_us")]
    pub(super) local: Vec<u64>,
    /// When the result of one fresh process came, in microseconds.
    #[serde(rename = "cold_start_result_us")]
    pub(super) cold: u64,
}

impl DemoReport {
    pub(super) fn print(&self) {
        self.print_parent();
        output::print_line("");
        self.children().print();
        output::print_line("");
        self.comparison().print();
        output::print_line("");
        self.print_network();
    }

    fn print_parent(&self) {
        let AcrossNodes { threads, memory_bytes, pause_us, prepare_us, .. } = &self.across;
        output::print_line(&format!(
            "A Python process: NumPy, an array of {}, {}, {} of memory in all.",
            format_bytes(self.array_bytes),
            output::format_threads(*threads),
            format_bytes(*memory_bytes),
        ));
        output::print_line(&format!(
            "Prepared in {}; it stood still for {} of that, and runs on.",
            format_microseconds(*prepare_us),
            format_microseconds(*pause_us),
        ));
    }

    fn children(&self) -> Table {
        let mut table = Table::new(&[">CHILD", "NODE", ">RESUMED IN", ">RESULT AFTER", ">FETCHED"]);
        for (number, child) in (1..).zip(&self.across.children) {
            table.add_row([
                number.to_string(),
                child.node.clone(),
                format_microseconds(child.resume_us),
                format_microseconds(child.result_us),
                format_bytes(child.bytes_fetched),
            ]);
        }
        table
    }

    fn comparison(&self) -> Table {
        let across: Vec<u64> = self.across.children.iter().map(|child| child.result_us).collect();
        let mut table = Table::new(&["THE SAME WORK", ">FIRST RESULT", ">LAST RESULT"]);
        let mut row = |what: &str, results: &[u64]| {
            let first = results.iter().min().map_or_else(String::new, |us| format_microseconds(*us));
            let last = results.iter().max().map_or_else(String::new, |us| format_microseconds(*us));
            table.add_row([what.to_owned(), first, last]);
        };
        row(&format!("farfork: {} children on two other nodes", across.len()), &across);
        row(&format!("os.fork(): {} children on the parent's node", self.local.len()), &self.local);
        row("cold start: one fresh process, alone", &[self.cold]);
        table
    }

    fn print_network(&self) {
        let AcrossNodes { children, memory_bytes, network_bytes, .. } = &self.across;
        let whole = memory_bytes * children.len() as u64;
        output::print_line(&format!(
            "Across the network: {}, where {} copies of the parent would be {} ({:.0} %). All results are right.",
            format_bytes(*network_bytes),
            children.len(),
            format_bytes(whole),
            100.0 * *network_bytes as f64 / whole.max(1) as f64,
        ));
    }
}
