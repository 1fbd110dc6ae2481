//! The output of commands: tables and sentences for people, JSON with stable keys for scripts.

mod budget;
mod byte_progress;
mod cache;
mod memory;
mod phases;
pub(crate) mod screen;
mod summary;
mod table;
mod units;
mod views;
mod zygotes;

pub(crate) use budget::BudgetView;
pub(crate) use byte_progress::ByteProgressBar;
pub(crate) use cache::CacheView;
pub(crate) use farfork_api::byte_size::format_bytes;
pub(crate) use farfork_terminal::output::{
    is_broken_pipe, print_failure, print_json, print_line, print_note, write_bytes,
};
pub(crate) use memory::{MemoryView, PagerView, memory_text, pager_text, sum_memory_use, sum_pager_stats};
pub(crate) use phases::{PhaseView, phase_table, phase_views};
pub(crate) use summary::{summarize, summary_table};
pub(crate) use table::Table;
pub(crate) use units::{
    format_age, format_microseconds, format_processes, format_threads, format_time_of_day, shorten_command,
};
pub(crate) use views::{ChildView, NodeView, SealView, SeedView, exit_code, exit_text};
pub(crate) use zygotes::ZygotesView;
