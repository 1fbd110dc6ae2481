//! Reports: the common form of results, and pages made of it. `summary` makes a `ReportSection` of each run. `farfork
//! bench report` reads the sections of a directory, and writes `report.html` and `report.md`.

// section, table, plot: the form, which is also the schema of results (docs/guide/benchmark-results.md)
//   results ──▶ comparison, coverage ──▶ page/
//   (reads a directory)                    grid: cells as text ──▶ html, markdown
//                                          drawing/: plots as SVG

pub(crate) mod comparison;
pub(crate) mod context;
pub(crate) mod coverage;
pub(crate) mod drawing;
pub(crate) mod error;
pub(crate) mod number_text;
pub(crate) mod page;
pub(crate) mod plot;
pub(crate) mod results;
pub(crate) mod section;
pub(crate) mod stable_interval;
pub(crate) mod table;
pub(crate) mod text;
