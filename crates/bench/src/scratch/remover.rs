//! The remover: a process that waits for the end of the benchmark, and then removes what the benchmark has left. The hidden
//! command `farfork bench remover` runs it.
//!
//! Its standard input is a pipe from the benchmark, with the path of each scratch directory. The pipe ends with the
//! benchmark, even if SIGKILL or SIGQUIT ends it. After an ordinary end, nothing is left.

use std::ffi::OsString;
use std::io::{self, BufRead as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::leftovers;
use crate::error::BenchError;

/// The hidden command, which is also the name in errors.
const REMOVER: &str = "remover";

/// Time for programs that the benchmark was starting to complete: `ip` may be making a namespace.
const SETTLE_TIME: Duration = Duration::from_millis(300);

/// The pipe to the remover of this process, once it was started. The pipe ends with the process.
static PIPE: Mutex<Option<ChildStdin>> = Mutex::new(None);

/// Makes the remover remove a directory after the end of this process. The first call starts the remover.
pub(super) fn register(directory: &Path, farfork: &Path) -> Result<(), BenchError> {
    let failed = |cause| BenchError::Program { program: REMOVER, cause };
    let mut pipe = PIPE.lock().unwrap_or_else(PoisonError::into_inner);
    if pipe.is_none() {
        *pipe = Some(start(farfork).map_err(failed)?);
    }
    let message = [directory.as_os_str().as_bytes(), &[0]].concat();
    pipe.as_mut().map_or(Ok(()), |pipe| pipe.write_all(&message)).map_err(failed)
}

/// Starts the remover in a session of its own: Ctrl-C and the end of the terminal must not reach it.
fn start(farfork: &Path) -> io::Result<ChildStdin> {
    let mut command = Command::new("setsid");
    command.arg(farfork).args(["bench", REMOVER]).arg(std::process::id().to_string());
    let mut remover = command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    Ok(remover.stdin.take().expect("a pipe"))
}

/// Waits until the benchmark `pid` has ended, and removes its remains.
///
/// # Errors
/// Standard input cannot be read.
pub(crate) fn run_remover(pid: i32) -> io::Result<()> {
    let (mut input, mut directories) = (io::stdin().lock(), Vec::new());
    loop {
        let mut path = Vec::new();
        input.read_until(0, &mut path)?;
        // The last path is incomplete if the benchmark was killed while it wrote it. Its directory is empty.
        if path.pop() != Some(0) {
            break;
        }
        directories.push(PathBuf::from(OsString::from_vec(path)));
    }
    directories.retain(|directory| directory.exists());
    if !directories.is_empty() {
        thread::sleep(SETTLE_TIME);
    }
    leftovers::remove_of_benchmark(pid, &directories);
    Ok(())
}
