//! The arguments of this test binary: those of libtest, with any number of filters.

use clap::Parser;
use libtest_mimic::{Arguments, Trial};

#[derive(Parser)]
pub(crate) struct TestArguments {
    #[command(flatten)]
    pub(crate) libtest: Arguments,
    /// Further filters. A test is selected if its name contains any filter.
    #[arg(value_name = "FILTER")]
    further_filters: Vec<String>,
}

impl TestArguments {
    /// Returns whether all tests are selected.
    pub(crate) fn has_no_filter(&self) -> bool {
        self.filters().next().is_none()
    }

    /// Returns whether a filter selects a test and no `--skip` excludes it.
    pub(crate) fn selects(&self, trial: &Trial) -> bool {
        let is_selected = |arguments: &Arguments| !arguments.is_filtered_out(trial);
        if self.has_no_filter() { is_selected(&self.libtest) } else { self.split_filters().any(|a| is_selected(&a)) }
    }

    /// Returns a message for each filter that selects no test, or only long ones that do not run.
    pub(crate) fn unmatched_filters(&self, trials: &[Trial]) -> Vec<String> {
        let mut messages = Vec::new();
        for arguments in self.split_filters() {
            let filter = arguments.filter.as_deref().unwrap_or_default();
            let mut selected = trials.iter().filter(|trial| !arguments.is_filtered_out(trial)).peekable();
            if selected.peek().is_none() {
                let kind = if arguments.ignored { "long test" } else { "test" };
                messages.push(format!("no {kind} matches {filter}: --list prints the names of all tests"));
            } else if !arguments.include_ignored && !arguments.ignored && selected.all(Trial::has_ignored_flag) {
                messages.push(format!("only long tests match {filter}: --ignored runs them"));
            }
        }
        messages
    }

    /// Returns the arguments with each of the filters alone.
    fn split_filters(&self) -> impl Iterator<Item = Arguments> {
        self.filters().map(|filter| Arguments { filter: Some(filter.clone()), ..self.libtest.clone() })
    }

    fn filters(&self) -> impl Iterator<Item = &String> {
        self.libtest.filter.iter().chain(&self.further_filters)
    }
}
