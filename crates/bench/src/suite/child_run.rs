//! `ChildRun`: one benchmark as a separate process, whose standard output is its JSON document. An interrupt is
//! forwarded, so that the process removes what it created. If the suite is killed, the process gets SIGTERM.

use std::io::{self, Read as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::error::BenchError;
use crate::machine::program::request_end_with_parent;

/// Interval at which the process is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A running benchmark.
#[derive(Debug)]
pub(super) struct ChildRun {
    process: Child,
    /// Reads the document concurrently, since it may exceed the size of a pipe.
    output: JoinHandle<io::Result<String>>,
}

/// How a benchmark ended.
#[derive(Debug)]
pub(super) struct ChildOutcome {
    pub(super) status: ExitStatus,
    /// The document; `None` if the process did not print one.
    pub(super) document: Option<Value>,
    pub(super) is_interrupted: bool,
}

impl ChildRun {
    /// Starts this program with these arguments in the directory of the results.
    pub(super) fn start(program: &Path, arguments: &[String], directory: &Path) -> Result<Self, BenchError> {
        let fail = |cause| BenchError::Program { program: "farfork-bench", cause };
        let mut command = Command::new(program);
        let command = command.args(arguments).current_dir(directory).stdin(Stdio::null()).stdout(Stdio::piped());
        request_end_with_parent(command);
        let mut process = command.spawn().map_err(fail)?;
        let mut stdout = process.stdout.take().expect("a pipe");
        let output = thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).map(|_| text)
        });
        Ok(Self { process, output })
    }

    /// Waits until the process has ended. Polls `is_interrupted`; once it returns true, the process gets SIGINT.
    pub(super) fn wait(mut self, is_interrupted: &dyn Fn() -> bool) -> Result<ChildOutcome, BenchError> {
        let fail = |cause| BenchError::Program { program: "farfork-bench", cause };
        let mut has_signalled = false;
        let status = loop {
            if let Some(status) = self.process.try_wait().map_err(fail)? {
                break status;
            }
            if !has_signalled && is_interrupted() {
                has_signalled = true;
                // An error means that the process has ended.
                let _ = kill_process(Pid::from_child(&self.process), Signal::INT);
            }
            thread::sleep(POLL_INTERVAL);
        };
        let text = self.output.join().expect("the reader does not panic").map_err(fail)?;
        Ok(ChildOutcome {
            status,
            document: serde_json::from_str(&text).ok(),
            is_interrupted: has_signalled || is_interrupted(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{ChildOutcome, ChildRun};

    /// Runs a shell script with the default action for SIGINT. A shell cannot trap a signal that was ignored at its
    /// start, as in a background job of a script.
    fn run(script: &str, directory: &Path, is_interrupted: &dyn Fn() -> bool) -> ChildOutcome {
        let arguments = ["--default-signal=INT", "sh", "-c", script].map(str::to_owned);
        ChildRun::start(Path::new("/usr/bin/env"), &arguments, directory).unwrap().wait(is_interrupted).unwrap()
    }

    #[test]
    fn the_output_of_a_run_is_parsed_as_json() {
        let outcome = run("pwd >&2; echo '{\"figures\": 3}'; exit 1", Path::new("/"), &|| false);
        assert_eq!((outcome.status.code(), outcome.is_interrupted), (Some(1), false));
        assert_eq!(outcome.document.unwrap()["figures"], 3);
        assert!(run("echo no", Path::new("/"), &|| false).document.is_none());
    }

    #[test]
    fn an_interrupt_is_passed_on_once() {
        let directory = tempfile::tempdir().unwrap();
        let trap_is_set = directory.path().join("trap-is-set");
        let script = "trap 'echo 7; exit 5' INT; touch trap-is-set; while :; do sleep 0.02; done";
        let outcome = run(script, directory.path(), &|| trap_is_set.exists());
        assert_eq!((outcome.status.code(), outcome.is_interrupted), (Some(5), true));
        assert_eq!(outcome.document, Some(7.into()));
    }
}
