//! `Machine`: the interface by which experiments use the machines of a run. `namespace` and `remote` are the kinds of machines.
//! `source` makes them, `program` has running programs, and `description` the hardware that figures depend on.

pub(crate) mod description;
pub(crate) mod namespace;
pub(crate) mod program;
pub(crate) mod remote;
pub(crate) mod source;

use std::env;
use std::fmt::Debug;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use farfork_api::failure::Failure;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tonic::Code;

use self::program::RunningProgram;
use crate::error::BenchError;

/// A machine of a run. It belongs to a node, to a server, or to a client of the server.
///
/// ```text
///                     machine `server`                    machine `client1`
///  coordinator ──┬──▶ program, address() ◀── network ──── program ◀──┐
///                │    scratch()                           scratch()  │
///                └── command(): input, output, exit status ──────────┘
/// ```
///
/// The coordinator is this program. It reads the output of programs, and writes to their input. It opens no file and no socket
/// of a machine. A path, a process id and an address belong to a machine: an experiment passes them to programs of that
/// machine, and to the API of its node.
///
/// A machine needs only a way to run a program there. The rest follows from it: cat(1) writes and reads files,
/// and processes of the benchmark observe a machine from the inside (`experiment/observer.rs`).
///
/// A `Command` that a method receives describes a program: its arguments, environment and directory. Nothing else of it is
/// used.
pub(crate) trait Machine: Debug {
    /// Returns the command of the coordinator that runs a program on this machine. Input, output and exit status of the
    /// command are those of the program. The end of the command ends the program.
    fn command(&self, program: &Command) -> Command;

    /// The name of the host; `None` for a machine that is a part of the coordinator's.
    fn name(&self) -> Option<&str> {
        None
    }

    /// The address at which the other machines reach the programs of this machine.
    fn address(&self) -> IpAddr;

    /// A directory of this machine that is removed with it. Programs of all users can read it.
    fn scratch(&self) -> &Path;

    /// The program `farfork` on this machine.
    fn farfork(&self) -> &Path;
}

/// Writes the standard input to file $2 with mode $1. install(1) could not open a standard input that is a socket, which
/// sshd(8) makes.
const WRITE_SCRIPT: &str =
    r#"umask 022 && mkdir -p -- "$(dirname -- "$2")" && umask 077 && cat >"$2" && chmod "$1" -- "$2""#;

/// Makes a command of which `program` is the last arguments. It has the environment and the directory of `program`, by
/// default `/`.
pub(crate) fn prefix_command(prefix: &[&str], program: &Command) -> Command {
    let mut command = Command::new(prefix[0]);
    command.args(&prefix[1..]).arg(program.get_program()).args(program.get_args());
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(program.get_current_dir().unwrap_or("/".as_ref()));
    command
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
        program::request_end_with_parent(&mut command);
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
        command.args(["bench", "process", work]).arg(self.scratch());
        command
    }

    /// Runs a program with this input until it ends. Returns its output. `name` is its name in errors.
    ///
    /// # Errors
    /// It cannot be executed, or fails: the cause is its error text.
    pub(crate) fn run(&self, name: &'static str, program: &Command, input: &[u8]) -> Result<Vec<u8>, BenchError> {
        let failed = |cause| BenchError::Program { program: name, cause }.on_machine(self.name());
        self.run_program(program, input).map_err(failed)
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
        let mut command = Command::new("sh");
        command.args(["-c", WRITE_SCRIPT, "sh", mode]).arg(&path);
        match self.run_program(&command, content) {
            Ok(_) => Ok(path),
            Err(cause) => Err(BenchError::File { path, cause }.on_machine(self.name())),
        }
    }
}

/// The path of the program `farfork` of this machine, whose nodes and commands the benchmarks measure: it is next to
/// `farfork-bench`.
///
/// # Errors
/// It does not exist.
pub(crate) fn find_farfork() -> anyhow::Result<PathBuf> {
    let path = env::current_exe().context("readlink of /proc/self/exe")?.with_file_name("farfork");
    if path.exists() {
        return Ok(path);
    }
    let cause = format!("there is no {}, which the benchmarks measure", path.display());
    let failure = Failure::new(Code::NotFound, "program farfork", cause);
    Err(failure
        .with_next_step("build it with `cargo build --release --bin farfork`, or install it with `make install`")
        .into())
}
