//! `farfork run`: starts a program that is to become a parent.

mod collapser;
mod huge_pages;

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use clap::Args;
use farfork_node::failure::Failure;
use tonic::Code;

use crate::process_names::{ProcessNames, parse_name};

pub(crate) use collapser::CollapserProcess;

/// Run a program that is to be prepared: under a name, in huge pages.
///
/// The program takes this command's place: it has its process id (the shell's `$!`), its streams and its environment, and its exit
/// status is the command's. It runs on this machine as it would without farfork, and no daemon need run yet.
///
/// With --huge its memory goes to huge pages of 2 MiB, so that making a seed of a large program takes far less time: a fork copies
/// one entry where it copied 512. The C library's malloc asks for them from the start (GLIBC_TUNABLES); a process in the background makes
/// them of all other small pages once nearly 2 MiB of neighbours are there, whatever the program's language, taking a fifth of a CPU while there
/// are such, which needs root. The machine's settings are not changed. Programs that CMD starts in turn are not looked after, nor are mappings of
/// files, shared memory, and pages that CMD shares with a seed or a fork of it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork run --name warm -- python3 server.py &
  farfork prepare warm
  farfork run --huge -- ./model --load weights.bin & PID=$!
  SEED=$(farfork prepare $PID)

Exit status: that of the program; 1 it could not be started, or the name is taken, 2 wrong usage.")]
pub(crate) struct Run {
    /// A name for the process, which `prepare` and `check` take in its id's place while it runs.
    #[arg(long, value_parser = parse_name)]
    name: Option<String>,
    /// Have its memory in huge pages, so that making a seed of it is quick.
    #[arg(long)]
    huge: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Run {
    /// Returns only if the program cannot be started.
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
