//! Runs a command as one step. Copies its output to a log file and to the thread that prints, and parses the test results in
//! it.

use std::env;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, PipeReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::output::TestOutput;
use crate::child::{ChildProcess, POLL_INTERVAL};
use crate::terminal;
use crate::workspace::{Workspace, cargo_program};

/// Limit on the wait for the end of the output after a command has ended. Only a process that the command left running keeps
/// the pipe open longer.
const OUTPUT_LIMIT: Duration = Duration::from_secs(5);

/// Maximum number of bytes that are read at once, if no line ends before. A command may write without line ends.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Variables in which `cargo run` describes this program. Build scripts that watch them would run again whenever cargo is
/// called alternately from the shell and from here.
const OWN_PACKAGE: [&str; 5] =
    ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "CARGO_MANIFEST_LINKS", "CARGO_PRIMARY_PACKAGE", "OUT_DIR"];
const OWN_PACKAGE_PREFIX: &str = "CARGO_PKG_";

/// Returns a cargo command with the environment of the shell.
pub(super) fn command(workspace: &Workspace, arguments: &[&str]) -> Command {
    run_in_root(workspace, Command::new(cargo_program()), arguments)
}

/// Returns a cargo command that runs in its own mount namespace. Container pools watch the mounts of their namespace, and
/// discard containers if other programs change them.
pub(super) fn isolated_command(workspace: &Workspace, arguments: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--"]).arg(cargo_program());
    run_in_root(workspace, command, arguments)
}

/// As `isolated_command`, with the directories of the tests on a file system with reflinks, which is made in `scratch`.
pub(super) fn command_with_reflinks(workspace: &Workspace, scratch: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(workspace.root().join("scripts/with-reflinks.sh"));
    command.arg(scratch).arg(cargo_program());
    run_in_root(workspace, command, arguments)
}

fn run_in_root(workspace: &Workspace, mut command: Command, arguments: &[&str]) -> Command {
    command.current_dir(workspace.root()).args(arguments);
    forget_own_package(&mut command);
    command
}

/// Removes the variables that describe this program's own package.
pub(super) fn forget_own_package(command: &mut Command) {
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let is_own = |name: &String| OWN_PACKAGE.contains(&&**name) || name.starts_with(OWN_PACKAGE_PREFIX);
    for name in names.filter(is_own) {
        command.env_remove(name);
    }
}

/// The result of a command.
pub(super) struct CommandCompletion {
    /// `None` if the command exceeded its limit and was killed with all its descendants.
    pub(super) status: Option<ExitStatus>,
    pub(super) log: PathBuf,
    pub(super) output: TestOutput,
}

impl CommandCompletion {
    pub(super) fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

/// Runs a command until it ends, or until `limit` has passed. An existing `log` is overwritten.
pub(super) fn run(command: &mut Command, log: &Path, limit: Duration) -> Result<CommandCompletion> {
    fs::create_dir_all(log.parent().context("the path of the log has no directory")?)?;
    let file = File::create(log).with_context(|| format!("{} cannot be written", log.display()))?;
    let (reader, writer) = io::pipe()?;
    let started = ChildProcess::start(command.stdout(writer.try_clone()?).stderr(writer));
    // The command holds the write ends. Without ours, the pipe ends when all processes that write to it have ended.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let child = started?;
    let output = Arc::new(Mutex::new(TestOutput::default()));
    let copier = copy_output(reader, file, Arc::clone(&output));
    let status = child.wait(limit)?;
    let give_up = Instant::now() + OUTPUT_LIMIT;
    while !copier.is_finished() && Instant::now() < give_up {
        thread::sleep(POLL_INTERVAL);
    }
    let output = std::mem::take(&mut *lock(&output));
    Ok(CommandCompletion { status, log: log.to_owned(), output })
}

fn copy_output(pipe: PipeReader, mut log: File, output: Arc<Mutex<TestOutput>>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut lines = BufReader::new(pipe);
        let mut line = Vec::new();
        while (&mut lines).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            let text = String::from_utf8_lossy(&line);
            // Does not wait for the terminal: results must not be lost if nothing reads the output.
            terminal::print(&text);
            // A full disk loses the log, but does not stop the run.
            let _ = log.write_all(&line);
            lock(&output).read_line(text.trim_end_matches('\n'));
            line.clear();
        }
    })
}

fn lock(output: &Mutex<TestOutput>) -> MutexGuard<'_, TestOutput> {
    output.lock().unwrap_or_else(PoisonError::into_inner)
}
