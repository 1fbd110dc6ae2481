//! `farfork bench` and `farfork stress`: run the program `farfork-bench`, which is next to this one.
//!
//! `farfork-bench` is a separate program, because its baselines and the RPC systems that it measures take as long to build
//! as farfork itself.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use clap::Args;
use farfork_api::failure::Failure;
use tonic::Code;

use crate::GlobalArgs;

/// File name of the program.
const PROGRAM: &str = "farfork-bench";

/// The arguments of a command of `farfork-bench`, which parses them itself.
#[derive(Args)]
pub(crate) struct BenchProgramArguments {
    /// A benchmark or test and its options; `--help` lists them.
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl BenchProgramArguments {
    /// Replaces this process with `farfork-bench COMMAND ARGUMENT...`.
    ///
    /// # Errors
    /// The program is missing, or it cannot be executed.
    pub(crate) fn run(self, command: &str, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let json = global.json.then(|| OsString::from("--json"));
        let arguments = json.into_iter().chain([command.into()]).chain(self.arguments);
        Err(execute(arguments))
    }
}

/// Returns whether a command begins with `bench` or `stress`, which `farfork-bench` executes.
pub(crate) fn has_command(command: &[impl AsRef<OsStr>]) -> bool {
    command.first().map(AsRef::as_ref).is_some_and(|first| first == "bench" || first == "stress")
}

/// Translates `farfork help bench …` and `farfork help stress …` into arguments of `farfork-bench`. Returns `None` for
/// any other command line.
///
/// clap handles `help` itself, and this program declares no command below `bench` and `stress`. So the caller must call
/// this before clap parses the command line.
pub(crate) fn help_arguments(command_line: impl IntoIterator<Item = OsString>) -> Option<Vec<OsString>> {
    let mut words = command_line.into_iter().skip(1);
    if words.next()? != "help" {
        return None;
    }
    let mut arguments: Vec<OsString> = words.collect();
    has_command(&arguments).then(|| {
        arguments.push("--help".into());
        arguments
    })
}

/// Replaces this process with `farfork-bench` and these arguments. Returns only if that fails.
pub(crate) fn execute(arguments: impl IntoIterator<Item = OsString>) -> anyhow::Error {
    let program = match program_path() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let error = Command::new(&program).args(arguments).exec();
    match error.kind() {
        io::ErrorKind::NotFound => missing(&program).into(),
        _ => anyhow::Error::new(error).context(program.display().to_string()),
    }
}

/// Returns the path of `farfork-bench` if that file exists.
///
/// # Errors
/// current_exe(3) fails: the path of this program is unknown.
pub(crate) fn installed_program() -> anyhow::Result<Option<PathBuf>> {
    program_path().map(|program| Some(program).filter(|program| program.exists()))
}

fn program_path() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot read the path of this program")?;
    Ok(own.with_file_name(PROGRAM))
}

fn missing(program: &Path) -> Failure {
    let cause = format!("there is no {}, which has the benchmarks and stress tests", program.display());
    Failure::new(Code::NotFound, format!("program {PROGRAM}"), cause).with_next_step(
        "build it with `cargo build --release --bin farfork-bench`, or install it with `make install-bench`",
    )
}

#[cfg(test)]
mod tests {
    use super::help_arguments;

    #[test]
    fn help_of_benchmarks_is_printed_by_the_bench_program() {
        let asked = |line: &str| {
            let arguments = help_arguments(line.split(' ').map(Into::into))?;
            Some(arguments.join(" ".as_ref()).into_string().unwrap())
        };
        assert_eq!(asked("farfork help bench fork").as_deref(), Some("bench fork --help"));
        assert_eq!(asked("farfork help stress").as_deref(), Some("stress --help"));
        for other in ["farfork", "farfork help", "farfork help fork", "farfork fork help bench", "farfork bench help"] {
            assert_eq!(asked(other), None, "{other}");
        }
    }
}
