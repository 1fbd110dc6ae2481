//! `farfork run`: starts a program that is to become a parent.

mod collapser;
mod huge_pages;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::{fs, io};

use clap::Args;
use farfork_api::failure::Failure;
use tonic::Code;

use crate::GlobalArgs;
use crate::process_names::{ProcessNames, parse_name};

pub(crate) use collapser::CollapserProcess;

/// Run a program as a future parent, under a name, in huge pages, or with a directory as its root.
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
///
/// With --root, the program sees a directory as its root, such as an unpacked container image. It has its own mounts:
/// the directory, with all mounts below it, and the node's /proc, /sys and /dev. Everything else is as without the
/// option: its users, network and process ids are the node's, and its writes change the directory. Children have the
/// directory of the same path on their node as root, with their own writes. `farfork fork --root` names another.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork run --name warm -- python3 server.py &
  farfork prepare warm
  farfork run --huge -- ./model --load weights.bin & PID=$!
  SEED=$(farfork prepare $PID)
  farfork run --root /srv/image -- /usr/bin/python3 /app/server.py &

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
    /// Directory that is the program's root. It must have the directories proc, sys and dev. Needs root.
    ///
    /// The path of CMD starts at this directory, and so does the working directory, `/`.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Run {
    /// Replaces this process with the program. Returns only if the program cannot be started.
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let (program, arguments) = self.command.split_first().expect("clap requires one");
        let mut command = Command::new(program);
        command.args(arguments);
        let parents = ProcessNames::in_run_dir(global.connection.run_dir());
        if let Some(name) = &self.name {
            parents.register(name)?;
        }
        if self.huge {
            huge_pages::enable_huge_pages(&mut command)?;
        }
        let failure = match self.root.as_deref() {
            None => exec_failure(program, &command.exec()),
            Some(root) => exec_in_root(&mut command, root),
        };
        if let Some(name) = &self.name {
            parents.unregister(name);
        }
        Err(failure.into())
    }
}

fn exec_failure(program: &OsStr, error: &io::Error) -> Failure {
    let failure = Failure::new(
        Code::NotFound,
        format!("program {}", program.display()),
        format!("it cannot be started: {error}"),
    );
    failure.with_next_step("give the path of an executable file, or the name of one in PATH")
}

/// Replaces this process with the program, whose root is `root`. Returns only if that fails.
fn exec_in_root(command: &mut Command, root: &Path) -> Failure {
    let program = command.get_program().to_owned();
    let refused = |cause: String| Failure::new(Code::FailedPrecondition, format!("root {}", root.display()), cause);
    if fs::canonicalize(root).is_ok_and(|root| root == Path::new("/")) {
        return refused("it is the root already".to_owned()).with_next_step("start the program without --root");
    }
    // A seed has the path as text.
    if root.to_str().is_none() {
        return refused("its path is not UTF-8".to_owned()).with_next_step("rename the directory");
    }
    // The main thread stays in the node's root, to remove the name after a failure. A thread that calls execve(2) becomes
    // the main thread, so the program keeps the process id.
    let failed = thread::scope(|scope| {
        let body = || farfork_container::enter_own_root(root).map(|()| command.exec());
        scope.spawn(body).join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
    });
    match failed {
        Ok(error) => exec_failure(&program, &error),
        Err(error) => refused(format!("it cannot be the root of a program: {error}"))
            .with_next_step("give a directory with proc, sys and dev; the command needs root"),
    }
}
