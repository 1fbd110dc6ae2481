//! The runner: runs a program on a host for a coordinator, and ends it with the coordinator's connection.
//!
//! sshd(8) closes the standard streams when the connection ends. The coordinator shows that it is alive by writing to the
//! standard input of the runner, or of the holder of a lease (`ssh/scratch.rs`). The runner adopts orphans
//! (PR_SET_CHILD_SUBREAPER), so it finds all descendants of the program, even those in other sessions.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use farfork_sys::process::{ProcStat, all_pids};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper, wait};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Interval between two writes of the coordinator.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Time without a write after which the coordinator counts as lost. A coordinator on a busy machine may be late.
pub const HEARTBEAT_LIMIT: Duration = Duration::from_secs(60);

/// Time between SIGTERM and SIGKILL. Experiments remove their namespaces and control groups in it.
pub const TERMINATE_LIMIT: Duration = Duration::from_secs(5);

/// Pause before the descendants are listed again, until none is left.
const KILL_INTERVAL: Duration = Duration::from_millis(5);

/// Exit status if the program cannot be started, as in a shell.
const NOT_STARTED: i32 = 127;

/// Runs a program until it ends or the coordinator does. Then kills all its descendants.
///
/// Without a lease, the coordinator ends with the standard input of this process, and the program has no input. With one, the
/// program has the standard input. The coordinator then ends when the standard output has no reader, or when no other process
/// locks the file `lease` (flock(2)).
///
/// The program inherits standard output and standard error. Returns its exit status, or 128 and the number of the signal that
/// ended it. Must be called in a process that has no other children.
///
/// # Errors
/// The lease cannot be opened, the signal handlers cannot be installed, or the kernel refuses to let this process adopt orphans.
pub async fn run_program(program: &str, arguments: &[String], lease: Option<&Path>) -> io::Result<i32> {
    let lease = lease.map(File::open).transpose()?;
    set_child_subreaper(Some(getpid()))?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut command = Command::new(program);
    command.args(arguments);
    if lease.is_none() {
        command.stdin(Stdio::null()).process_group(0);
    }
    let started = command.spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{program}: {error}");
            return Ok(NOT_STARTED);
        }
    };
    let ended = tokio::select! {
        status = child.wait() => Some(status?),
        () = coordinator_ends(lease) => None,
        _ = terminate.recv() => None,
        _ = hangup.recv() => None,
        _ = interrupt.recv() => None,
    };
    let status = match ended {
        Some(status) => status,
        None => terminate_child(&mut child).await?,
    };
    tokio::task::spawn_blocking(kill_descendants).await.map_err(io::Error::other)??;
    Ok(shell_status(status))
}

/// Returns when the coordinator has ended. The threads that wait for it end with the process.
async fn coordinator_ends(lease: Option<File>) {
    let (sender, mut ended) = mpsc::channel(1);
    let waits: Vec<Box<dyn FnOnce() + Send>> = match lease {
        None => vec![Box::new(wait_for_end_of_input)],
        Some(lease) => vec![Box::new(wait_for_hangup), Box::new(move || wait_for_end_of_lease(&lease))],
    };
    for wait in waits {
        let sender = sender.clone();
        thread::spawn(move || {
            wait();
            let _ = sender.blocking_send(());
        });
    }
    let _ = ended.recv().await;
}

/// Returns when the standard input has ended, or was silent for too long.
fn wait_for_end_of_input() {
    let (input, limit) = (io::stdin(), Timespec::try_from(HEARTBEAT_LIMIT).expect("a minute"));
    while matches!(poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&limit)), Ok(1..) | Err(Errno::INTR))
        && matches!(input.lock().read(&mut [0; 64]), Ok(1..))
    {}
}

/// Returns when the other end of the standard output is closed.
fn wait_for_hangup() {
    while poll(&mut [PollFd::new(&io::stdout(), PollFlags::empty())], None) == Err(Errno::INTR) {}
}

/// Returns when no other process locks the file.
fn wait_for_end_of_lease(lease: &File) {
    while flock(lease, FlockOperation::LockShared) == Err(Errno::INTR) {}
}

/// Ends the program with SIGTERM to its process group, if it has its own. Kills it if it does not end in time.
async fn terminate_child(child: &mut Child) -> io::Result<ExitStatus> {
    // The child is not reaped yet, so its process id is its own.
    if let Some(pid) = child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
        // With a lease, the program has a group of its own only if it makes one.
        let _ = kill_process_group(pid, Signal::TERM).or_else(|_| kill_process(pid, Signal::TERM));
    }
    if let Ok(status) = timeout(TERMINATE_LIMIT, child.wait()).await {
        return status;
    }
    child.start_kill()?;
    child.wait().await
}

/// Kills and reaps all descendants. Kills only children, whose process ids cannot be reused before they are reaped; an orphan
/// becomes a child.
fn kill_descendants() -> io::Result<()> {
    let own_pid = getpid().as_raw_pid();
    let is_child = |pid: &i32| ProcStat::read(*pid).is_ok_and(|stat| stat.parent == own_pid);
    loop {
        for child in all_pids()?.into_iter().filter(is_child).filter_map(Pid::from_raw) {
            let _ = kill_process(child, Signal::KILL);
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break thread::sleep(KILL_INTERVAL),
                Err(Errno::CHILD) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// The exit status as a shell reports it.
pub(crate) fn shell_status(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
