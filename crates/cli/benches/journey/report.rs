//! The figures as a table for people, or each sample as a line of JSON.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use serde_json::json;

use crate::samples::{Metric, Samples, Spread};

/// A heading, and the cell of a size under it.
type Column = (&'static str, fn(&Samples) -> String);

const PREPARE: &[Column] = &[
    ("fork()", |samples| spread(samples, Metric::LocalFork, 1000.0)),
    ("pause", |samples| spread(samples, Metric::Pause, 1000.0)),
    ("pause − fork()", |samples| text(samples.difference(Metric::Pause, Metric::LocalFork), 1000.0)),
    ("prepare", |samples| spread(samples, Metric::Prepare, 1000.0)),
    ("prepare, as asked", |samples| spread(samples, Metric::PrepareAnswer, 1000.0)),
];

const RESUME: &[Column] = &[
    ("back to back", |samples| spread(samples, Metric::Resume, 1000.0)),
    ("after 150 ms idle", |samples| spread(samples, Metric::ResumeIdle, 1000.0)),
    ("first of a seed", |samples| spread(samples, Metric::ResumeFirst, 1000.0)),
    ("of that, on its node", |samples| spread(samples, Metric::Engine, 1000.0)),
    ("child has the time", |samples| spread(samples, Metric::Spoke, 1000.0)),
    ("answer", |samples| spread(samples, Metric::Answer, 1000.0)),
];

const TOUCH: &[Column] = &[
    ("child, every page", |samples| spread(samples, Metric::Touch, 1.0)),
    ("copy over the link", |samples| spread(samples, Metric::LinkCopy, 1.0)),
    ("child ÷ link", |samples| {
        let ratio = samples.spread(Metric::Touch).median / samples.spread(Metric::LinkCopy).median;
        format!("{ratio:.1}")
    }),
    ("local copy-on-write", |samples| spread(samples, Metric::LocalCopy, 1.0)),
];

/// What was measured so far.
#[derive(Debug)]
pub(crate) struct Report {
    as_json: bool,
    sizes: Vec<(u64, Samples)>,
}

impl Report {
    /// Nothing yet.
    pub(crate) fn new(as_json: bool) -> Self {
        Self { as_json, sizes: Vec::new() }
    }

    /// Takes what was measured with a parent of `mib`. Samples are printed as they come.
    pub(crate) fn add(&mut self, mib: u64, samples: Samples) {
        if self.as_json {
            for (metric, values) in samples.all() {
                for (run, value) in values.iter().enumerate() {
                    println!("{}", json!({ "metric": metric.key(), "mib": mib, "run": run, "value": value }));
                }
            }
        } else {
            eprintln!("{mib} MiB: done");
        }
        self.sizes.push((mib, samples));
    }

    /// Prints the tables.
    pub(crate) fn print(&self) {
        if self.as_json {
            return;
        }
        println!("Medians, with the 10th and 90th percentiles.\n");
        self.table("Prepare, ms", PREPARE);
        self.table("Resume, ms from the request to the child's first instruction", RESUME);
        self.table("Every page once, at random, µs a page", TOUCH);
    }

    fn table(&self, title: &str, columns: &[Column]) {
        let mut table = Table::new();
        table.load_preset(NOTHING);
        table.set_header(std::iter::once("MiB").chain(columns.iter().map(|(heading, _)| *heading)));
        for (mib, samples) in &self.sizes {
            let cells = columns.iter().map(|(_, cell)| cell(samples));
            table.add_row(std::iter::once(mib.to_string()).chain(cells));
        }
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
        }
        println!("{title}\n{table}\n");
    }
}

fn spread(samples: &Samples, metric: Metric, unit: f64) -> String {
    text(samples.spread(metric), unit)
}

fn text(Spread { median, low, high }: Spread, unit: f64) -> String {
    format!("{:.2} ({:.2}–{:.2})", median / unit, low / unit, high / unit)
}
