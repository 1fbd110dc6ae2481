//! `ReportPlot`: a plot as data. `drawing` draws it.

use serde::{Deserialize, Serialize};

use super::stable_interval::StableInterval;
use super::table::ReportTable;
use crate::samples::Spread;

/// The percentiles of a plot by percentiles.
pub(crate) const PERCENTILES: [(&str, f64); 5] =
    [("p10", 0.1), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("slowest", 1.0)];

/// A plot of one or more series.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReportPlot {
    /// Unique in its section.
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) kind: PlotKind,
    pub(crate) x: PlotAxis,
    pub(crate) y: PlotAxis,
    /// Names of the positions 0, 1, 2 … on the category axis; empty if that axis has numbers.
    pub(crate) categories: Vec<String>,
    pub(crate) series: Vec<PlotSeries>,
    /// The stable part of a run over time.
    pub(crate) stable: Option<StableInterval>,
}

/// The form of a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PlotKind {
    /// Lines by size; both axes are logarithmic.
    BySize,
    /// Lines over time; the stable interval is shaded.
    OverTime,
    /// Lines over percentiles, which are categories; the other axis is logarithmic.
    Percentiles,
    /// Lines by a number of threads, machines or children.
    Scaling,
    /// A bar for each category and series.
    Bars,
}

/// An axis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlotAxis {
    pub(crate) title: String,
    /// Empty if the axis has no unit.
    pub(crate) unit: String,
}

/// The origin of the figures of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SeriesRole {
    Measured,
    Floor,
    Reference,
}

/// A series of a plot: a line, or one bar per category.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlotSeries {
    pub(crate) name: String,
    pub(crate) role: SeriesRole,
    pub(crate) points: Vec<PlotPoint>,
}

/// A point with its spread.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlotPoint {
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// The 10th percentile, if there are several samples.
    pub(crate) low: Option<f64>,
    /// The 90th percentile, if there are several samples.
    pub(crate) high: Option<f64>,
}

/// The titles of a plot of bars.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BarTitles<'a> {
    pub(crate) plot: &'a str,
    /// Title of the axis on which bars are measured.
    pub(crate) axis: &'a str,
}

impl ReportPlot {
    pub(crate) fn new(kind: PlotKind, id: &str, title: impl Into<String>, x: PlotAxis, y: PlotAxis) -> Self {
        let (id, title) = (id.to_owned(), title.into());
        Self { id, title, kind, x, y, categories: Vec::new(), series: Vec::new(), stable: None }
    }

    /// Adds a series.
    #[must_use]
    pub(crate) fn with_series(
        mut self,
        name: &str,
        role: SeriesRole,
        points: impl IntoIterator<Item = PlotPoint>,
    ) -> Self {
        self.series.push(PlotSeries { name: name.to_owned(), role, points: points.into_iter().collect() });
        self
    }

    /// Sets the names of the positions on the category axis.
    #[must_use]
    pub(crate) fn with_categories(mut self, categories: impl IntoIterator<Item = String>) -> Self {
        self.categories = categories.into_iter().collect();
        self
    }

    /// An empty plot of times by percentiles. `x` describes the percentiles.
    pub(crate) fn by_percentiles(id: &str, title: &str, x: &str, unit: &str) -> Self {
        Self::new(PlotKind::Percentiles, id, title, PlotAxis::new(x, ""), PlotAxis::new("time", unit))
            .with_categories(PERCENTILES.map(|(name, _)| name.to_owned()))
    }

    /// Makes a plot with one bar for each row of a table and each of these columns, in the unit of the figures. The
    /// first column of the table names the rows.
    pub(crate) fn bars_of_table(
        table: &ReportTable,
        id: &str,
        titles: BarTitles<'_>,
        columns: &[(&str, SeriesRole)],
    ) -> Self {
        let figures = |column: &str| {
            let index = table.columns.iter().position(|name| name == column).expect("a column of the table");
            table.rows.iter().map(move |row| row[index].figure())
        };
        let unit = columns.iter().flat_map(|(column, _)| figures(column)).flatten().next();
        let unit = unit.map_or("", |figure| figure.unit.as_str());
        let names = table.rows.iter().map(|row| row[0].as_text().unwrap_or_default().to_owned());
        let plot = Self::new(PlotKind::Bars, id, titles.plot, PlotAxis::new(titles.axis, unit), PlotAxis::new("", ""));
        columns.iter().fold(plot.with_categories(names), |plot, &(column, role)| {
            let points = figures(column).enumerate().filter_map(|(position, figure)| {
                let figure = figure?;
                let (low, high) = (Some(figure.p10), Some(figure.p90));
                Some(PlotPoint { x: position as f64, y: figure.median, low, high })
            });
            plot.with_series(column, role, points)
        })
    }
}

impl PlotAxis {
    pub(crate) fn new(title: &str, unit: &str) -> Self {
        Self { title: title.to_owned(), unit: unit.to_owned() }
    }

    /// Title and unit.
    pub(crate) fn label(&self) -> String {
        match (self.title.as_str(), self.unit.as_str()) {
            (title, "") => title.to_owned(),
            ("", unit) => unit.to_owned(),
            (title, unit) => format!("{title}, {unit}"),
        }
    }
}

impl PlotPoint {
    pub(crate) fn new(x: f64, y: f64) -> Self {
        Self { x, y, low: None, high: None }
    }

    /// A median with its spread.
    pub(crate) fn of_spread(x: f64, spread: Spread) -> Self {
        let (low, high) = (Some(spread.p10), Some(spread.p90));
        Self { x, y: spread.median, low, high }
    }
}
