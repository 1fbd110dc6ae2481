//! What commands print: tables and sentences for people, JSON with stable keys for scripts.

mod bar;
mod budget;
mod cache;
mod memory;
mod phases;
mod summary;
mod table;
mod units;
mod views;
mod zygotes;

use std::io::{self, Write as _};

use farfork_node::failure::Failure;
use serde::Serialize;

use crate::Global;

pub(crate) use bar::ByteBar;
pub(crate) use budget::BudgetView;
pub(crate) use cache::CacheView;
pub(crate) use farfork_node::amount::bytes;
pub(crate) use memory::{MemoryView, PagerView, memory_sum, memory_text, pager_sum, pager_text};
pub(crate) use phases::{PhaseView, phase_table, phase_views};
pub(crate) use summary::{summarize, summary_table};
pub(crate) use table::Table;
pub(crate) use units::{age, microseconds, shortened, threads};
pub(crate) use views::{ChildView, NodeView, SealView, SeedView, exit_code, exit_text};
pub(crate) use zygotes::ZygotesView;

/// Prints one JSON document on standard output.
pub(crate) fn json(document: &impl Serialize) {
    let text = serde_json::to_string_pretty(document).expect("a view serialises");
    line(&text);
}

/// Prints a report: the document for scripts, if that is wanted, else the text.
pub(crate) fn report<Document: Serialize>(
    global: &Global,
    document: impl FnOnce() -> Document,
    text: impl FnOnce() -> String,
) {
    if global.json {
        json(&document());
    } else {
        line(text().trim_end());
    }
}

/// Prints a line on standard output. Who reads it may have gone; then there is nobody to tell.
pub(crate) fn line(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// Writes bytes on standard output as they are, at once.
pub(crate) fn raw(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// Tells of a failure on standard error: object and cause on a line, the next step on another.
pub(crate) fn failure(failure: &Failure) {
    let mut text = format!("farfork: {}: {}", failure.object(), failure.cause());
    if !failure.next_step().is_empty() {
        text += &format!("\n         {}", failure.next_step());
    }
    let _ = writeln!(io::stderr(), "{text}");
}
