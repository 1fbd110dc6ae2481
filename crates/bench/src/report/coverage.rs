//! `PUBLISHED_TABLES`: the published tables, and their place in a report. A report says how many rows of each published
//! table it has.

use super::results::ResultDirectory;
use super::section::ReportSection;
use super::table::{ReportCell, ReportTable};

/// A published table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PublishedTable {
    pub(crate) title: &'static str,
    /// The id of the section that measures the table; empty if none does.
    section: &'static str,
    /// The id of the table in that section; any table if empty.
    table: &'static str,
    /// The column of that table; any column if empty.
    column: &'static str,
    /// The number of rows of the published table.
    pub(crate) rows: usize,
}

/// The tables in the artifacts of MITOSIS and of LineFS.
#[rustfmt::skip]
pub(crate) const PUBLISHED_TABLES: &[PublishedTable] = &[
    published("Prepare of a C++ program, by size", "fork", "checkpoint", "prepare", 10),
    published("Prepare of nine functions", "function", "start", "prepare", 9),
    published("Resume of a C++ program, by size", "fork", "first-resume", "other node", 10),
    published("Resume of nine functions", "function", "start", "resume, other node", 9),
    published("Execution of a C++ program, by size", "fork", "execution", "own node", 10),
    published("Execution of nine functions", "function", "execution", "own node", 9),
    published("Peak throughput of containers", "peak", "rate", "of each client", 1),
    published("Warm starts of eight functions", "warm_start", "best", "rate", 8),
    published("Calls by client machines", "rpc", "machines", "calls", 5),
    published("Calls of one thread", "rpc", "loads", "calls", 1),
    published("Calls with a checksum, for each client machine", "stress_rpc_checksum", "rates", "of each client", 1),
    published("Stress test: forks of a C++ program", "stress_fork", "rates", "of each client", 1),
    published("Stress test: forks of Python functions", "stress_functions", "rates", "of each client", 1),
    published("Time of a connection", "connect", "latency", "time, mean", 1),
    published("Connections by threads", "connect", "threads", "authenticated", 5),
    published("Connections by client machines", "connect", "machines", "authenticated", 4),
    published("Connections by threads, with two network cards", "", "", "", 5),
    published("Synced writes of 16 KiB", "volume", "latency", "mean", 2),
    published("Throughput of writes by processes", "volume", "throughput", "volume", 8),
    published("Slowdown of a computation next to a writer", "volume", "interference", "slowdown", 4),
    published("Slowdown of a computation by copy method", "volume", "copy-methods", "slowdown", 4),
    published("LevelDB on a volume", "volume", "leveldb", "volume", 6),
];

/// Options of the published programs that have no counterpart, with the reason.
pub(crate) const WITHOUT_COUNTERPART: [(&str, &str); 2] = [
    (
        "server_qd_hint, client_qd_hint",
        "not applicable: they number queue descriptors of RDMA cards, which TCP does not have",
    ),
    (
        "server_service_id, client_service_id_base",
        "not applicable: an RDMA service id selects a listener; a node has one",
    ),
];

const fn published(
    title: &'static str,
    section: &'static str,
    table: &'static str,
    column: &'static str,
    rows: usize,
) -> PublishedTable {
    PublishedTable { title, section, table, column, rows }
}

/// Where a report has a published table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TableCoverage {
    /// The name of the section's file.
    pub(crate) name: String,
    /// Rows with the published figure.
    pub(crate) rows: usize,
}

impl PublishedTable {
    /// The section with most rows of this table; `None` if no section has any.
    pub(crate) fn find_coverage(&self, results: &ResultDirectory) -> Option<TableCoverage> {
        let covered = results.sections.iter().filter(|named| named.section.id == self.section);
        let covered = covered.map(|named| TableCoverage { name: named.name.clone(), rows: self.count(&named.section) });
        // `max_by_key` returns the last of equal elements, so the order is reversed to prefer the first section. The
        // first one in the suite's order is the main run of a benchmark.
        let most = covered.rev().max_by_key(|coverage| coverage.rows)?;
        (most.rows > 0).then(|| TableCoverage { rows: most.rows.min(self.rows), ..most })
    }

    /// The number of rows that have the published figure.
    fn count(&self, section: &ReportSection) -> usize {
        let tables = section.tables.iter().filter(|table| self.table.is_empty() || table.id == self.table);
        tables.map(|table| table.rows.iter().filter(|row| self.has_reference(table, row)).count()).sum()
    }

    fn has_reference(&self, table: &ReportTable, row: &[ReportCell]) -> bool {
        let cells = table.columns.iter().zip(row);
        let mut counted = cells.filter(|(column, _)| self.column.is_empty() || *column == self.column);
        counted.any(|(_, cell)| cell.figure().is_some_and(|figure| figure.reference.is_some()))
    }

    /// Whether this section measures the table.
    #[cfg(test)]
    pub(crate) fn is_of(&self, section: &str) -> bool {
        self.section == section
    }

    /// Why no benchmark measures the table; `None` if one does.
    pub(crate) fn exclusion(&self) -> Option<&'static str> {
        self.section.is_empty().then_some("not measured yet: needs two network cards in each node")
    }
}

#[cfg(test)]
mod tests {
    use super::{PUBLISHED_TABLES, TableCoverage};
    use crate::report::results::{NamedSection, ResultDirectory};
    use crate::report::section::ReportSection;
    use crate::report::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};

    #[test]
    fn rows_with_the_published_figure_are_counted() {
        let mut table = ReportTable::new("first-resume", "", &["MiB", "other node"]);
        for (mib, reference) in [(1, Some(2.9)), (3, None), (4, Some(2.9))] {
            let figure = ReportFigure::single(1.0, "ms", BetterDirection::Lower).with_reference(reference);
            table.add_row([ReportCell::text(mib), Some(figure).into()]);
        }
        let section = ReportSection::new("fork", "", "").with_table(table);
        let named = |name: &str| NamedSection { name: name.to_owned(), section: section.clone() };
        let results = ResultDirectory { sections: vec![named("fork"), named("fork-write")], suite: None };
        let resume = PUBLISHED_TABLES.iter().find(|table| table.title.starts_with("Resume of a C++")).unwrap();
        let coverage = resume.find_coverage(&results);
        assert_eq!(coverage, Some(TableCoverage { name: "fork".to_owned(), rows: 2 }));
        assert_eq!(PUBLISHED_TABLES[0].find_coverage(&results), None);
        assert_eq!(PUBLISHED_TABLES.iter().filter(|table| table.exclusion().is_some()).count(), 1);
    }
}
