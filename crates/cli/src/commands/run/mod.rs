//! `farfork run`: starts a program that is to become a parent.

mod collapser;
mod huge_pages;

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use clap::Args;
use farfork_api::failure::Failure;
use tonic::Code;

use crate::process_names::{ProcessNames, parse_name};

pub(crate) use collapser::CollapserProcess;

/// Run a program as a future parent, under a name or in huge pages.
///
/// The program replaces this command, as with exec(2). It keeps the process id (the shell's `$!`), the standard
/// streams and the environment. No daemon has to run.
///
/// With --huge, the program's memory uses huge pages of 2 MiB. `farfork prepare` then takes far less time for a large
/// program, because fork(2) copies one page table entry instead of 512. The C library's malloc requests huge pages
/// (GLIBC_TUNABLES). As root, the command also starts a background process for all other private memory. This process
/// collapses a range of 2 MiB when nearly all of its pages are in use. It uses up to a fifth of a CPU while it finds
/// such ranges. System settings do not change.
///
/// The background process ignores programs that CMD starts, file mappings, shared memory, and pages that CMD shares
/// with a seed or a forked process.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork run --name warm -- python3 server.py &
  farfork prepare warm
  farfork run --huge -- ./model --load weights.bin & PID=$!
  SEED=$(farfork prepare $PID)

Exit status: the status of the program; 1 the program cannot be started or the name is in use, 2 wrong usage.")]
pub(crate) struct Run {
    /// Name of the process while it runs. `prepare` and `check` accept it instead of the process id.
    ///
    /// A name is a letter, then up to 63 letters, digits, `-`, `_` and `.`.
    #[arg(long, value_parser = parse_name)]
    name: Option<String>,
    /// Use huge pages for the program's memory, so that `prepare` takes less time.
    #[arg(long)]
    huge: bool,
    /// Program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Run {
    /// Replaces this process with the program. Returns only if the program cannot be started.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let (program, arguments) = self.command.split_first().expect("clap requires one");
        let mut command = Command::new(program);
        command.args(arguments);
        let parents = ProcessNames::from_environment();
        if let Some(name) = &self.name {
            parents.register(name)?;
        }
        if self.huge {
            huge_pages::enable_huge_pages(&mut command)?;
        }
        let error = command.exec();
        if let Some(name) = &self.name {
            parents.unregister(name);
        }
        let object = format!("program {}", program.display());
        Err(Failure::new(Code::NotFound, object, format!("it cannot be started: {error}")).into())
    }
}
