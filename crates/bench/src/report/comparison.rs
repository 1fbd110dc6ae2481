//! `FigureComparison`: whether a figure differs between two runs by more than their spreads. Pure.

use super::section::ReportSection;
use super::table::{BetterDirection, ReportCell, ReportFigure};

/// Minimum number of samples for a verdict. Fewer samples do not show a spread.
const SAMPLES_MIN: usize = 3;

/// The rule, for the readers of a report.
pub(crate) const COMPARISON_RULE: &str = "A figure is slower or faster (memory: larger or smaller) only where the \
    intervals from the 10th to the 90th percentile of both runs do not overlap. Where they overlap, it is within noise. \
    A figure with fewer than three samples in either run has no spread, and gets no verdict. Spreads show the noise within \
    a run. They do not show what differs between runs, such as other load on the machine: compare the loads and the floors \
    of both runs before you trust a verdict.";

/// A figure of this run next to the same figure of another run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FigureComparison {
    pub(crate) other_median: f64,
    pub(crate) verdict: ComparisonVerdict,
}

/// How the figure of this run compares with the figure of the other run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ComparisonVerdict {
    Better,
    Worse,
    WithinNoise,
    TooFewSamples,
    /// The figure is a property of the workload.
    NotJudged,
}

impl FigureComparison {
    /// Compares a figure with the same figure of another run.
    pub(crate) fn new(figure: &ReportFigure, other: &ReportFigure) -> Self {
        let (is_above, is_below) = (figure.p10 > other.p90, figure.p90 < other.p10);
        let verdict = match figure.better {
            BetterDirection::Neither => ComparisonVerdict::NotJudged,
            _ if figure.samples.min(other.samples) < SAMPLES_MIN => ComparisonVerdict::TooFewSamples,
            BetterDirection::Lower if is_above => ComparisonVerdict::Worse,
            BetterDirection::Lower if is_below => ComparisonVerdict::Better,
            BetterDirection::Higher if is_above => ComparisonVerdict::Better,
            BetterDirection::Higher if is_below => ComparisonVerdict::Worse,
            BetterDirection::Lower | BetterDirection::Higher => ComparisonVerdict::WithinNoise,
        };
        Self { other_median: other.median, verdict }
    }
}

impl ComparisonVerdict {
    /// The verdict for people, on a figure with this unit.
    pub(crate) fn text(self, unit: &str) -> &'static str {
        let is_memory = unit.ends_with("iB");
        match self {
            Self::Better if is_memory => "smaller",
            Self::Better => "faster",
            Self::Worse if is_memory => "larger",
            Self::Worse => "slower",
            Self::WithinNoise => "within noise",
            Self::TooFewSamples => "too few samples",
            Self::NotJudged => "",
        }
    }
}

/// The figure of the same table, row and column in a section of another run. A row is identified by its text cells.
pub(crate) fn find_counterpart<'a>(
    other: &'a ReportSection,
    table_id: &str,
    row: &[ReportCell],
    column: &str,
) -> Option<&'a ReportFigure> {
    let table = other.tables.iter().find(|table| table.id == table_id)?;
    let index = table.columns.iter().position(|name| name == column)?;
    let key = row_key(row);
    table.rows.iter().find(|candidate| row_key(candidate) == key)?.get(index)?.figure()
}

fn row_key(row: &[ReportCell]) -> Vec<&str> {
    row.iter().filter_map(ReportCell::as_text).collect()
}

#[cfg(test)]
mod tests {
    use super::{ComparisonVerdict, FigureComparison, find_counterpart};
    use crate::report::section::ReportSection;
    use crate::report::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};
    use crate::samples::Spread;

    fn figure(p10: f64, median: f64, p90: f64, better: BetterDirection) -> ReportFigure {
        ReportFigure::new(Spread { count: 5, median, p10, p90 }, "ms", better)
    }

    fn verdict(figure: &ReportFigure, other: &ReportFigure) -> ComparisonVerdict {
        FigureComparison::new(figure, other).verdict
    }

    #[test]
    fn only_intervals_that_do_not_overlap_differ() {
        let lower = |p10, median, p90| figure(p10, median, p90, BetterDirection::Lower);
        let other = lower(1.0, 2.0, 3.0);
        assert_eq!(verdict(&lower(3.1, 4.0, 5.0), &other), ComparisonVerdict::Worse);
        assert_eq!(verdict(&lower(3.0, 4.0, 5.0), &other), ComparisonVerdict::WithinNoise);
        assert_eq!(verdict(&lower(0.1, 0.5, 0.9), &other), ComparisonVerdict::Better);
        let higher = |p10, median, p90| figure(p10, median, p90, BetterDirection::Higher);
        let other = higher(1.0, 2.0, 3.0);
        assert_eq!(verdict(&higher(3.1, 4.0, 5.0), &other), ComparisonVerdict::Better);
        assert_eq!(verdict(&higher(0.1, 0.5, 0.9), &other), ComparisonVerdict::Worse);
        let size = figure(9.0, 9.0, 9.0, BetterDirection::Neither);
        assert_eq!(verdict(&size, &other), ComparisonVerdict::NotJudged);
    }

    #[test]
    fn a_figure_without_spread_gets_no_verdict() {
        let single = ReportFigure::single(9.0, "ms", BetterDirection::Lower);
        let other = figure(1.0, 2.0, 3.0, BetterDirection::Lower);
        assert_eq!(verdict(&single, &other), ComparisonVerdict::TooFewSamples);
        assert_eq!(verdict(&other, &single), ComparisonVerdict::TooFewSamples);
        assert_eq!([ComparisonVerdict::Worse.text("KiB"), ComparisonVerdict::Worse.text("ms")], ["larger", "slower"]);
    }

    #[test]
    fn text_cells_identify_a_row() {
        let mut table = ReportTable::new("times", "", &["MiB", "node", "pause"]);
        for (node, pause) in [("own", 1.0), ("other", 2.0)] {
            let pause = ReportFigure::single(pause, "ms", BetterDirection::Lower);
            table.add_row([ReportCell::text(4), ReportCell::text(node), Some(pause).into()]);
        }
        let section = ReportSection::new("fork", "", "").with_table(table);
        let find = |size: u64, node: &str, column| {
            let row = [ReportCell::text(size), ReportCell::text(node), ReportCell::Missing];
            find_counterpart(&section, "times", &row, column).map(|figure| figure.median)
        };
        assert_eq!((find(4, "other", "pause"), find(4, "own", "pause")), (Some(2.0), Some(1.0)));
        assert_eq!((find(8, "own", "pause"), find(4, "own", "prepare")), (None, None));
    }
}
