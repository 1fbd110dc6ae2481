//! The section of each summary in a report: its tables, its plots, and the question that it answers. `report` makes pages
//! of them.

mod churn;
mod connect;
mod fanout;
mod fault;
mod fork;
mod function;
mod peak;
mod pool;
mod rpc;
mod stress;
#[cfg(test)]
mod tests;
mod tree;
mod volume;
mod warm_start;

use crate::report::table::{ReportCell, ReportFigure};
use crate::samples::Spread;

/// A time, for which lower is better.
fn time_cell(spread: Option<Spread>, unit: &str) -> ReportCell {
    spread.map(|spread| ReportFigure::lower(spread, unit)).into()
}

/// A time with its floor.
fn time_cell_with_floor(spread: Option<Spread>, unit: &str, floor: Option<Spread>) -> ReportCell {
    let figure = spread.map(|spread| ReportFigure::lower(spread, unit));
    figure.map(|figure| figure.with_floor(floor.map(|floor| floor.median))).into()
}
