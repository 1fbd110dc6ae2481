//! Runs CRIU's commands as processes: their arguments, how to wait for them, and the errors in their logs.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::process::Child;
use tokio::time::timeout;

use super::CriuError;
use crate::error::BenchError;
use crate::machine::Machine;

/// The program name, which is searched in PATH.
const CRIU: &str = "criu";

/// Time limit of each command. A lazy clone of 1 GiB takes a minute or more.
const COMMAND_LIMIT: Duration = Duration::from_secs(300);

/// The address of the page server.
const LOOPBACK: &str = "127.0.0.1";

/// The port of the page server. It is not an ephemeral port, so no connection of the machine has it.
const PORT: &str = "27011";

/// A harmless error that every command reports if limits may not be raised.
const IGNORED_ERROR: &str = "rlimit:";

/// CRIU's commands for cloning one process.
#[derive(Debug)]
pub(super) struct CriuCommand {
    /// The process.
    pub(super) pid: u32,
    /// The standard output of the process, `pipe:[INODE]`. The clone gets a file instead.
    pub(super) stdout: String,
    /// The directory of images and logs.
    pub(super) images: PathBuf,
}

/// A running command. It is killed if this value is dropped before the command ends.
#[derive(Debug)]
pub(super) struct CriuProcess {
    command: &'static str,
    process: Child,
    log: PathBuf,
}

/// Checks that CRIU is installed and works with this kernel.
pub(super) async fn check_installed() -> Result<(), CriuError> {
    let output =
        match tokio::process::Command::new(CRIU).arg("check").stdin(Stdio::null()).kill_on_drop(true).output().await {
            Ok(output) => output,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(CriuError::Missing),
            Err(error) => return Err(CriuError::Command { command: "check", output: error.to_string() }),
        };
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Err(CriuError::Unusable { output: first_error(&text) })
}

impl CriuCommand {
    /// Creates an empty directory for the images and logs.
    pub(super) fn make_directory(&self, machine: &dyn Machine) -> Result<(), BenchError> {
        self.remove_directory(machine)?;
        machine.run("mkdir", Command::new("mkdir").arg(&self.images), &[]).map(drop)
    }

    /// Removes the directory of images and logs.
    pub(super) fn remove_directory(&self, machine: &dyn Machine) -> Result<(), BenchError> {
        machine.run("rm", Command::new("rm").arg("-rf").arg(&self.images), &[]).map(drop)
    }

    /// Writes the whole process into images. The process continues.
    pub(super) fn dump(&self, machine: &dyn Machine) -> Result<CriuProcess, CriuError> {
        self.run(machine, "dump", self.dump_command(), Stdio::null())
    }

    /// Writes everything except the memory, and serves the memory until the last page is sent. Then the process
    /// continues.
    pub(super) fn dump_lazily(&self, machine: &dyn Machine) -> Result<CriuProcess, CriuError> {
        let mut command = self.dump_command();
        command.args(["--lazy-pages", "--address", LOOPBACK, "--port", PORT, "--status-fd", "1"]);
        self.run(machine, "dump", command, Stdio::piped())
    }

    /// Requests the pages that a lazily restored process touches from the page server.
    pub(super) fn serve_lazy_pages(&self, machine: &dyn Machine) -> Result<CriuProcess, CriuError> {
        let mut command = Command::new(CRIU);
        command.args(["lazy-pages", "--page-server", "--address", LOOPBACK, "--port", PORT]);
        command.args(["--status-fd", "1"]);
        self.run(machine, "lazy-pages", command, Stdio::piped())
    }

    /// Restores the process, whose output is written to a file. The command runs until the process ends.
    pub(super) fn restore(&self, machine: &dyn Machine, output: &Path) -> Result<CriuProcess, CriuError> {
        self.run(machine, "restore", self.restore_command(output), Stdio::null())
    }

    /// As `restore`, with memory on demand.
    pub(super) fn restore_lazily(&self, machine: &dyn Machine, output: &Path) -> Result<CriuProcess, CriuError> {
        let mut command = self.restore_command(output);
        command.arg("--lazy-pages");
        self.run(machine, "restore", command, Stdio::null())
    }

    fn dump_command(&self) -> Command {
        let mut command = Command::new(CRIU);
        command.args(["dump", "--leave-running", "--tree", &self.pid.to_string()]);
        command
    }

    /// The command restores in a new pid namespace, because the clone gets the pid that its parent still has.
    fn restore_command(&self, output: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$@\" > \"$0\""]).arg(output);
        command.args(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", CRIU, "restore", "--inherit-fd"]);
        command.arg(format!("fd[1]:{}", self.stdout));
        command
    }

    fn run(
        &self,
        machine: &dyn Machine,
        name: &'static str,
        mut command: Command,
        stdout: Stdio,
    ) -> Result<CriuProcess, CriuError> {
        let log = format!("{name}.log");
        command.arg("--images-dir").arg(&self.images).args(["--log-file", &log]);
        let mut command = tokio::process::Command::from(machine.command(&command));
        command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null()).kill_on_drop(true);
        let process =
            command.spawn().map_err(|cause| CriuError::Command { command: name, output: cause.to_string() })?;
        Ok(CriuProcess { command: name, process, log: self.images.join(log) })
    }
}

impl CriuProcess {
    /// Waits for the byte by which the command reports that it is ready.
    pub(super) async fn wait_ready(&mut self, machine: &dyn Machine) -> Result<(), CriuError> {
        let stdout = self.process.stdout.as_mut().expect("a command that serves has a pipe");
        match timeout(COMMAND_LIMIT, stdout.read_u8()).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(self.log_error(machine)),
        }
    }

    /// Waits for the end of the command, which must succeed.
    pub(super) async fn wait_success(mut self, machine: &dyn Machine) -> Result<(), CriuError> {
        match timeout(COMMAND_LIMIT, self.process.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(_) => Err(self.log_error(machine)),
            Err(_) => {
                let output = format!("not done after {} s", COMMAND_LIMIT.as_secs());
                Err(CriuError::Command { command: self.command, output })
            }
        }
    }

    fn log_error(&self, machine: &dyn Machine) -> CriuError {
        let log = machine.read_file(&self.log).unwrap_or_default();
        CriuError::Command { command: self.command, output: first_error(&String::from_utf8_lossy(&log)) }
    }
}

/// The first relevant error of a log, which may have caused the others.
fn first_error(log: &str) -> String {
    let mut errors = log.lines().filter_map(|line| line.split_once("Error ").map(|(_, error)| error));
    let first = errors.find(|error| !error.contains(IGNORED_ERROR));
    first.map_or("its log has no error".to_owned(), |error| error.rsplit("): ").next().unwrap_or(error).to_owned())
}

#[cfg(test)]
mod tests {
    use super::first_error;

    #[test]
    fn the_first_error_of_the_log_is_reported() {
        let log = "(00.0) Error (criu/util.c:1533): rlimit: Can't setup RLIMIT_NOFILE for self\n\
                   (00.1) Warn  (criu/x.c:1): slow\n\
                   (00.2) Error (criu/vdso.c:381): vdso: Unexpected rt vDSO area bounds\n\
                   (00.3) Error (criu/crtools.c:260): Could not initialize kernel features detection.\n";
        assert_eq!(first_error(log), "vdso: Unexpected rt vDSO area bounds");
        assert_eq!(first_error(""), "its log has no error");
    }
}
