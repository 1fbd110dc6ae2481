//! [`HostLock`]: at most one coordinator changes a host.

use std::env;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;
use tokio::task::JoinHandle;

use super::command::send_heartbeats;
use super::connection::{RemoteHost, read_messages};
use super::error::RemoteError;

/// The file that a coordinator locks while it changes a host or measures there.
const COORDINATOR_LOCK: &str = "/run/farfork-coordinator.lock";

/// The variable with the holders whose locks a command may use, one per line ([`lock_holders`]).
pub const HOLDERS_VARIABLE: &str = "FARFORK_LOCK_HOLDERS";

/// Locks the file $1, writes the holder $2 to it, and holds the lock while the standard input is open and 12 heartbeats, those of
/// a minute, arrive within two minutes. Then removes the file, still locked. If the file that was locked is no longer the one
/// with this name, tries again. A user who cannot write $1 has a lock of the same name in the home directory.
const LOCK_SCRIPT: &str = r#"
umask 077
[ -w "$1" ] || [ -w "${1%/*}" ] || set -- "$HOME/.${1##*/}" "$2"
while :; do
    exec 9<>"$1" || exit 1
    if ! flock -n 9; then printf 'locked '; cat -- "$1"; exit 0; fi
    [ "$1" -ef /proc/self/fd/9 ] && break
done
printf '%s\n' "$2" >"$1"
echo held
while [ "$(timeout 120 head -c 12 9<&- | wc -c)" -eq 12 ]; do :; done
rm -f -- "$1""#;

/// A lock on a host. It ends when the value is dropped, or when the connection or the coordinator ends.
#[derive(Debug)]
pub struct HostLock {
    process: Child,
    heartbeat: JoinHandle<()>,
}

/// The value of [`HOLDERS_VARIABLE`] for commands that this coordinator starts on its own machine. They may use the hosts that it
/// has locked for `command`, and those that its own environment names.
pub fn lock_holders(command: &str) -> String {
    let inherited = env::var(HOLDERS_VARIABLE).into_iter();
    inherited.chain([describe_holder(command)]).collect::<Vec<_>>().join("\n")
}

/// Describes this coordinator, which runs `command`, in one line.
fn describe_holder(command: &str) -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let user = env::var("USER").unwrap_or_else(|_| format!("user {}", rustix::process::getuid().as_raw()));
    format!("`farfork {command}` of {user} at {name}, process {}", std::process::id()).replace('\n', " ")
}

impl RemoteHost {
    /// Locks the host for this coordinator, which runs `command`. A lock that a coordinator of [`HOLDERS_VARIABLE`] has is
    /// this one's, too.
    ///
    /// # Errors
    /// As [`Self::lock`].
    pub async fn lock_for_coordinator(&self, command: &str) -> Result<HostLock, RemoteError> {
        self.lock(COORDINATOR_LOCK, &describe_holder(command)).await
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
        let heartbeat = tokio::spawn(send_heartbeats(process.stdin.take().expect("it is piped")));
        let messages = tokio::spawn(read_messages(process.stderr.take().expect("it is piped")));
        let mut lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let answer = lines.next_line().await.ok().flatten().unwrap_or_default();
        match answer.split_once(' ') {
            None if answer == "held" => Ok(HostLock { process, heartbeat }),
            // The holder waits for this process.
            Some(("locked", held)) if is_inherited(held) => Ok(HostLock { process, heartbeat }),
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
        self.heartbeat.abort();
        let _ = self.process.wait().await;
    }
}

impl Drop for HostLock {
    fn drop(&mut self) {
        self.heartbeat.abort();
    }
}

fn is_inherited(holder: &str) -> bool {
    env::var(HOLDERS_VARIABLE).is_ok_and(|holders| holders.lines().any(|line| line == holder))
}
