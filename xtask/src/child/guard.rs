//! Ends the running processes if this program is killed: SIGKILL leaves it no time to forward a signal. Otherwise they would
//! continue, next to those of the next run.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::LazyLock;

/// Each line of the input names the process groups that run. The input ends with this program.
const SCRIPT: &str = "while read -r line; do groups=$line; done; [ -z \"$groups\" ] || kill -s TERM -- $groups";

/// Leads to the process that runs the script. It starts with the first running process.
static INPUT: LazyLock<io::Result<ChildStdin>> = LazyLock::new(start);

/// Tells the guard which process groups run. The caller holds the lock of their list. A run without a guard is still useful, so
/// failures are ignored.
pub(super) fn set_groups(groups: &[u32]) {
    let mut line: String = groups.iter().map(|group| format!("-{group} ")).collect();
    line.push('\n');
    if let Ok(mut input) = INPUT.as_ref() {
        let _ = input.write_all(line.as_bytes());
    }
}

/// Starts the guard in a process group of its own, which signals of the terminal do not reach.
fn start() -> io::Result<ChildStdin> {
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT]).process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn()?.stdin.take().ok_or(io::ErrorKind::BrokenPipe.into())
}
