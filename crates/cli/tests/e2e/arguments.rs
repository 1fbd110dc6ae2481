//! The arguments of this test binary: those of libtest, with any number of filters.

use clap::Parser;
use libtest_mimic::{Arguments, Trial};

use crate::check_set::SET_VARIABLE;

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

    /// Returns a message for each filter that selects no test, or only tests that do not run: long ones, and those outside of
    /// the selected set.
    pub(crate) fn unmatched_filters(&self, trials: &[Trial], is_in_set: impl Fn(&str) -> bool) -> Vec<String> {
        let mut messages = Vec::new();
        for arguments in self.split_filters() {
            let filter = arguments.filter.as_deref().unwrap_or_default();
            let has_long = arguments.include_ignored || arguments.ignored;
            let matching: Vec<_> = trials.iter().filter(|trial| !arguments.is_filtered_out(trial)).collect();
            let running: Vec<_> = matching.iter().filter(|trial| has_long || !trial.has_ignored_flag()).collect();
            if matching.is_empty() {
                let kind = if arguments.ignored { "long test" } else { "test" };
                messages.push(format!("no {kind} matches {filter}: --list prints the names of all tests"));
            } else if running.is_empty() {
                messages.push(format!("only long tests match {filter}: --ignored runs them"));
            } else if !running.iter().any(|trial| is_in_set(trial.name())) {
                messages.push(format!(
                    "no test of the set matches {filter}: without {SET_VARIABLE}, all tests are selected"
                ));
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
