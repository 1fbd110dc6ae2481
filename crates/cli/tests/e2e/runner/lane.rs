//! `Lane`: runs tests one after the other in one worker. A worker whose test failed is not used again.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use super::log_directory;
use super::outcome::{Failure, FailureKind};
use super::run_context::RunContext;
use super::supervisor::Selection;
use super::worker_process::WorkerProcess;
use crate::harness::print_error;

pub(super) struct Lane<'a> {
    run: &'a RunContext,
    worker: Option<WorkerProcess<'a>>,
}

impl<'a> Lane<'a> {
    pub(super) fn new(run: &'a RunContext) -> Self {
        Self { run, worker: None }
    }

    /// Runs a test. Writes the details of a failure to `log`.
    pub(super) fn run_test(&mut self, selection: &Selection, log: &Path) -> Result<(), Failure> {
        let outcome = self.try_test(selection, log);
        self.run.wait_if_ending();
        // A test that did not run has not written a log.
        if let Err(failure) = &outcome
            && !log.exists()
        {
            log_directory::open_log(log)
                .and_then(|mut log| log.write_all(failure.reason.as_bytes()))
                .unwrap_or_else(|error| print_error(format_args!("{}: {error}", log.display())));
        }
        outcome
    }

    fn try_test(&mut self, selection: &Selection, log: &Path) -> Result<(), Failure> {
        let left = self.run.time_left().unwrap_or(Duration::MAX);
        if left.is_zero() {
            return Err(Failure::wrong("not run: the time of the whole run was over"));
        }
        if selection.test.is_shared() && self.run.has_no_cluster() {
            return Err(Failure::wrong("not run: the shared cluster does not start"));
        }
        let limit = selection.test.limit().min(left);
        let mut worker = match self.worker.take() {
            Some(worker) => worker,
            None => {
                let held = self.run.lock_workers();
                let started = WorkerProcess::start(self.run);
                drop(held);
                started.map_err(|error| Failure::wrong(format!("no worker: {error}")))?
            }
        };
        let outcome = worker.run_test(&selection.name, limit, log);
        if selection.test.is_shared() {
            self.run.note_cluster_start(!outcome.as_ref().is_err_and(|failure| failure.has_no_cluster));
        }
        if let Err(mut failure) = outcome {
            if failure.kind == FailureKind::TimedOut && self.run.time_left() == Some(Duration::ZERO) {
                failure = Failure::wrong(format!("the time of the whole run is over: {}", failure.reason));
            }
            for problem in worker.discard() {
                failure.reason.push_str(&format!("\nnot removed after the test: {problem}"));
            }
            return Err(failure);
        }
        self.worker = Some(worker);
        Ok(())
    }

    /// Stops the worker. Returns everything that its shared cluster and its tests left on the machine.
    pub(super) fn stop(self) -> Vec<String> {
        self.worker.map(WorkerProcess::stop).unwrap_or_default()
    }
}
