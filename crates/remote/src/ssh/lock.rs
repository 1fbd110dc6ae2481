//! [`HostLock`]: at most one coordinator changes a host.

use std::env;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin};

use super::connection::{RemoteHost, read_messages};
use super::error::RemoteError;

/// The file that a coordinator locks while it changes a host or measures there.
const COORDINATOR_LOCK: &str = "/run/farfork-coordinator.lock";

/// Locks the file $1, writes the holder $2 to it, and holds the lock until the standard input ends. Then removes the file,
/// still locked. If the file that was locked is no longer the one with this name, tries again.
const LOCK_SCRIPT: &str = r#"
umask 077
while :; do
    exec 9<>"$1" || exit 1
    if ! flock -n 9; then printf 'locked '; cat -- "$1"; exit 0; fi
    [ "$1" -ef /proc/self/fd/9 ] && break
done
printf '%s\n' "$2" >"$1"
echo held
cat >/dev/null
rm -f -- "$1""#;

/// A lock on a host. It ends when the value is dropped, or when the connection or the coordinator ends.
#[derive(Debug)]
pub struct HostLock {
    process: Child,
    input: Option<ChildStdin>,
}

impl RemoteHost {
    /// Locks the host for this coordinator, which runs `command`.
    ///
    /// # Errors
    /// As [`Self::lock`].
    pub async fn lock_for_coordinator(&self, command: &str) -> Result<HostLock, RemoteError> {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let user = env::var("USER").unwrap_or_else(|_| format!("user {}", rustix::process::getuid().as_raw()));
        let holder = format!("`farfork {command}` of {user} at {name}, process {}", std::process::id());
        self.lock(COORDINATOR_LOCK, &holder).await
    }

    /// Locks `path`, a file in an existing directory of the host. `holder` describes this coordinator in one line.
    ///
    /// # Errors
    /// [`RemoteError::Locked`] if another coordinator has the lock. The file cannot be created, or flock(1) is missing.
    pub async fn lock(&self, path: &str, holder: &str) -> Result<HostLock, RemoteError> {
        let holder = holder.replace('\n', " ");
        let mut command = self.script_command(LOCK_SCRIPT, &[path, &holder]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|cause| RemoteError::Local { action: "run ssh", cause })?;
        let input = process.stdin.take();
        let messages = tokio::spawn(read_messages(process.stderr.take().expect("it is piped")));
        let mut lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let answer = lines.next_line().await.ok().flatten().unwrap_or_default();
        match answer.split_once(' ') {
            None if answer == "held" => Ok(HostLock { process, input }),
            Some(("locked", holder)) => {
                let holder = if holder.is_empty() { "it has just started" } else { holder }.to_owned();
                Err(RemoteError::Locked { host: self.name().to_owned(), holder })
            }
            _ => Err(self.command_error(format!("lock {path}"), messages.await.unwrap_or_default())),
        }
    }
}

impl HostLock {
    /// Releases the lock, and waits until the host has removed its file.
    pub async fn release(mut self) {
        self.input = None;
        let _ = self.process.wait().await;
    }
}
