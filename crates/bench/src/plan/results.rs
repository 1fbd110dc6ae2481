//! [`RunResults`]: the directory with all output of one run. Each run has its own; `latest` is a link to the last one.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use farfork_remote::ssh::{OutputLine, OutputStream};
use farfork_terminal::output;
use serde::Serialize;
use serde_json::{Value, json};

use super::error::PlanError;
use super::template::Values;

/// The link to the directory of the last run.
const LATEST: &str = "latest";
/// The file that shows how each step ended. It is written last.
const OUTCOME_FILE: &str = "outcome.json";
/// Interval at which `follow` looks for further output.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);

/// The output of a run.
///
/// ```text
/// results/latest/hosts/NAME.log            all output of a machine, with the names of the steps
/// results/latest/round-1/STEP.NAME.out     standard output of a step
/// results/latest/experiments/STEP-round-1.json  results of an experiment, for `farfork bench report`
/// results/latest/outcome.json              how each step ended
/// ```
#[derive(Debug)]
pub(super) struct RunResults {
    directory: PathBuf,
    /// Whether lines are also printed.
    prints_lines: bool,
    /// The logs of machines, by name.
    logs: Mutex<HashMap<String, File>>,
    outcomes: Mutex<Vec<StepOutcome>>,
}

/// How a step ended on a machine.
#[derive(Debug, Serialize)]
pub(super) struct StepOutcome {
    /// `once`, `round-N` or `cleanup`.
    pub(super) round: String,
    /// The values of the parameters.
    pub(super) values: Values,
    pub(super) step: String,
    /// The host, or the name of this machine.
    pub(super) host: String,
    pub(super) seconds: f64,
    pub(super) attempts: u32,
    /// Why it failed.
    pub(super) failure: Option<String>,
}

impl RunResults {
    /// Makes a directory for a run or a cleanup below `results`.
    pub(super) fn create(results: &Path, prints_lines: bool) -> Result<Self, PlanError> {
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string().replace(':', "-");
        let directory = results.join(format!("run-{time}"));
        let make = || {
            fs::create_dir_all(results)?;
            // Fails if another run has it.
            fs::create_dir(&directory)?;
            fs::create_dir(directory.join("hosts"))
        };
        make().map_err(file_error(&directory))?;
        Ok(Self { directory, prints_lines, logs: Mutex::default(), outcomes: Mutex::default() })
    }

    /// Makes `latest` lead to this run.
    pub(super) fn link_latest(&self) -> Result<(), PlanError> {
        let (link, new) = (self.directory.with_file_name(LATEST), self.directory.join(LATEST));
        let name = self.directory.file_name().expect("it has a name");
        symlink(name, &new).and_then(|()| fs::rename(&new, &link)).map_err(file_error(&link))
    }

    /// The directory.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The log of a machine.
    pub(super) fn log_path(&self, machine: &str) -> PathBuf {
        log_path(&self.directory, machine)
    }

    /// Creates the file for the standard output of a step. `path` is relative to the directory.
    pub(super) fn create_file(&self, path: &str) -> Result<File, PlanError> {
        let path = self.directory.join(path);
        let create = || {
            fs::create_dir_all(path.parent().expect("it is below the directory"))?;
            File::create(&path)
        };
        create().map_err(file_error(&path))
    }

    /// Keeps a line of a step. `stdout` gets the line if it is of the standard output. `is_shown` is false for the document of
    /// an experiment.
    pub(super) fn add_line(
        &self,
        machine: &str,
        step: &str,
        line: &OutputLine,
        stdout: &mut File,
        is_shown: bool,
    ) -> Result<(), PlanError> {
        if line.stream == OutputStream::Stdout {
            let end: &[u8] = if line.has_newline { b"\n" } else { b"" };
            stdout.write_all(&[&line.bytes[..], end].concat()).map_err(file_error(&self.directory))?;
        }
        if is_shown {
            self.log(machine, step, &line.bytes)?;
        }
        Ok(())
    }

    /// Writes a line to the log of a machine, and prints it.
    pub(super) fn log(&self, machine: &str, step: &str, text: &[u8]) -> Result<(), PlanError> {
        let path = self.log_path(machine);
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        if !logs.contains_key(machine) {
            let log = OpenOptions::new().create(true).append(true).open(&path).map_err(file_error(&path))?;
            logs.insert(machine.to_owned(), log);
        }
        let log = logs.get_mut(machine).expect("it was inserted");
        let line = [b"[", step.as_bytes(), b"] ", text, b"\n"].concat();
        log.write_all(&line).map_err(file_error(&path))?;
        if self.prints_lines {
            let line = [machine.as_bytes(), b" ", &line].concat();
            // A terminal that is gone does not end the run.
            let _ = output::write_bytes(&line);
        }
        Ok(())
    }

    /// Keeps how a step ended.
    pub(super) fn add_outcome(&self, outcome: StepOutcome) {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
    }

    /// Writes how all steps ended. Returns the document.
    pub(super) fn finish(&self, plan: &Path, failure: Option<&PlanError>) -> Result<Value, PlanError> {
        let outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        let document = json!({
            "plan": plan,
            "directory": self.directory,
            "steps": *outcomes,
            "failure": failure.map(ToString::to_string),
        });
        let path = self.directory.join(OUTCOME_FILE);
        fs::write(&path, format!("{document:#}\n")).map_err(file_error(&path))?;
        Ok(document)
    }
}

/// Prints the log of a machine in the last run, until the run has ended.
pub(super) fn follow(results: &Path, machine: &str) -> Result<(), PlanError> {
    let directory = results.join(LATEST);
    let directory = fs::canonicalize(&directory).map_err(file_error(&directory))?;
    let (path, mut position) = (log_path(&directory, machine), 0);
    loop {
        let has_ended = directory.join(OUTCOME_FILE).exists();
        let mut bytes = Vec::new();
        let mut read = || {
            let mut log = File::open(&path)?;
            log.seek(SeekFrom::Start(position))?;
            log.read_to_end(&mut bytes)
        };
        match read() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            read => position += read.map_err(file_error(&path))? as u64,
        }
        if output::write_bytes(&bytes).is_err() || (has_ended && bytes.is_empty()) {
            return Ok(());
        }
        if bytes.is_empty() {
            thread::sleep(FOLLOW_INTERVAL);
        }
    }
}

fn log_path(directory: &Path, machine: &str) -> PathBuf {
    directory.join("hosts").join(format!("{machine}.log"))
}

fn file_error(path: &Path) -> impl Fn(io::Error) -> PlanError {
    let path = path.to_owned();
    move |cause| PlanError::File { path: path.clone(), cause }
}
