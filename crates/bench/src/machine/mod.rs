//! `Machine`: the interface by which experiments use the machines of a run, and nothing else.
//!
//! A run has a coordinator, which is this program, and machines: one per node of a cluster, or a server and its clients.
//! Programs run on machines, use the files of their machine, and reach other machines by their addresses. The coordinator
//! reads their output, and writes to their input. It opens no file and no socket of a machine.
//!
//! ```text
//!                     machine `server`                    machine `client1`
//!  coordinator ──┬──▶ program, address() ◀── network ──── program ◀──┐
//!                │    scratch()                           scratch()  │
//!                └── command(): input, output, exit status ──────────┘
//! ```
//!
//! A path, a process id and an address belong to a machine. An experiment passes them to programs of that machine, and
//! to the API of the node there. A machine needs only a way to run a program there. The rest follows from it: files are
//! written and read by programs such as install(1), and hidden commands of `farfork bench` observe a machine from the inside
//! (`experiment/observer.rs`).
//!
//! | module | contents |
//! |---|---|
//! | `program` | a running program: its lines, its input, its end |
//! | `connection` | a server program and its clients |
//! | `namespace` | the only kind of machine: a network namespace of the coordinator's machine |
//! | `description` | the hardware that the figures depend on |

pub(crate) mod connection;
pub(crate) mod description;
pub(crate) mod namespace;
pub(crate) mod program;

use std::fmt::Debug;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use self::program::RunningProgram;
use crate::end_with_parent;
use crate::error::BenchError;

/// A machine of a run. A `Command` that a method receives describes a program of that machine: its arguments, environment
/// and directory. Nothing else of it is used.
pub(crate) trait Machine: Debug {
    /// Returns the command of the coordinator that runs a program on this machine. Input, output and exit status of the
    /// command are those of the program. The end of the command ends the program.
    fn command(&self, program: &Command) -> Command;

    /// The address at which the other machines reach the programs of this machine.
    fn address(&self) -> IpAddr;

    /// A directory of this machine that is removed with it. Programs of all users can read it.
    fn scratch(&self) -> &Path;

    /// The program `farfork` on this machine.
    fn farfork(&self) -> &Path;
}

impl dyn Machine + '_ {
    /// Starts a program with a pipe for its input and its output. `name` is its name in errors.
    ///
    /// # Errors
    /// The program cannot be executed.
    pub(crate) fn start(&self, name: &'static str, program: &Command) -> Result<RunningProgram, BenchError> {
        RunningProgram::start(self, name, program)
    }

    /// Starts a process of the benchmark, `farfork bench process WORK`, with this specification. `name` is its name in errors.
    ///
    /// # Errors
    /// The program cannot be executed.
    pub(crate) fn start_process(
        &self,
        name: &'static str,
        work: &str,
        specification: &impl Serialize,
    ) -> Result<RunningProgram, BenchError> {
        let mut command = self.process_command(work);
        // The process may wait for a node that no longer exists, so the end of its input does not end it.
        end_with_parent::request(&mut command);
        let mut program = self.start(name, &command)?;
        // An error means that the process has ended. Its status, which the next answer reports, explains more.
        let _ = program.send_text(&format!("{}\n", json!(specification)));
        Ok(program)
    }

    /// Runs a process of the benchmark until it ends. Returns its output, which is JSON.
    ///
    /// # Errors
    /// The errors of [`Self::run`], or the output is something else.
    pub(crate) fn run_process<T: DeserializeOwned>(
        &self,
        work: &'static str,
        specification: &impl Serialize,
    ) -> Result<T, BenchError> {
        let output = self.run(work, &self.process_command(work), json!(specification).to_string().as_bytes())?;
        serde_json::from_slice(&output).map_err(|cause| BenchError::Program { program: work, cause: cause.into() })
    }

    fn process_command(&self, work: &str) -> Command {
        let mut command = Command::new(self.farfork());
        command.args(["bench", "process", work]);
        command
    }

    /// Runs a program with this input until it ends. Returns its output. `name` is its name in errors.
    ///
    /// # Errors
    /// It cannot be executed, or fails: the cause is its error text.
    pub(crate) fn run(&self, name: &'static str, program: &Command, input: &[u8]) -> Result<Vec<u8>, BenchError> {
        self.run_program(program, input).map_err(|cause| BenchError::Program { program: name, cause })
    }

    fn run_program(&self, program: &Command, input: &[u8]) -> io::Result<Vec<u8>> {
        let mut command = self.command(program);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let written = process.stdin.take().expect("a pipe").write_all(input);
        let output = process.wait_with_output()?;
        if !output.status.success() {
            let text = [output.stdout, output.stderr].concat();
            return Err(io::Error::other(String::from_utf8_lossy(&text).trim().to_owned()));
        }
        written.map(|()| output.stdout)
    }

    /// Reads a file of the machine.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn read_file(&self, path: &Path) -> Result<Vec<u8>, BenchError> {
        self.run("cat", Command::new("cat").arg(path), &[])
    }

    /// Writes a file, and creates its directory. A relative path is below [`Self::scratch`]. `mode` is for chmod(1). Returns
    /// the path on this machine.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write_file(&self, path: impl AsRef<Path>, mode: &str, content: &[u8]) -> Result<PathBuf, BenchError> {
        let path = self.scratch().join(path);
        let mut command = Command::new("install");
        command.args(["-D", "-m", mode, "/dev/stdin"]).arg(&path);
        match self.run_program(&command, content) {
            Ok(_) => Ok(path),
            Err(cause) => Err(BenchError::File { path, cause }),
        }
    }
}
