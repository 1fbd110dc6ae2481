//! Processes of this program that end with the process of this program that has started them, even if SIGKILL ends it.

use std::env;
use std::io;
use std::process::Command;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// The process id of the process that has started this one.
const PARENT: &str = "FARFORK_BENCH_PARENT";

/// Makes a command end with this process. Call it in a thread that runs until the command has ended: the kernel sends the
/// signal when that thread ends.
pub(crate) fn request(command: &mut Command) {
    command.env(PARENT, std::process::id().to_string());
}

/// Makes this process get SIGTERM when its parent ends, if the parent has requested that. Other programs inherit the
/// variable too, but the process that it names is not their parent.
///
/// # Errors
/// prctl(2) fails.
pub(crate) fn end_with_parent() -> io::Result<()> {
    let parent = env::var(PARENT).ok().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    if parent.is_none() || getppid() != parent {
        return Ok(());
    }
    Ok(set_parent_process_death_signal(Some(Signal::TERM))?)
}
