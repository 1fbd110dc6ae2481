//! [`HostDirectory`]: a directory on a host, which is removed when its coordinator ends.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::command::send_heartbeats;
use super::connection::{RemoteHost, read_messages};
use super::copy::{local_error, sha256_of};
use super::error::RemoteError;
use crate::runner::TERMINATE_LIMIT;

/// Name of the file in the directory that the holder locks.
const LEASE_NAME: &str = "lease";

/// Makes a directory $1 that all users can read, in a file system whose programs can be executed: some hosts mount /run and /tmp
/// with noexec. Removes directories of holders that were killed. Holds the lease while the standard input is open and 12
/// heartbeats, those of a minute, arrive within two minutes. Then releases the lease, which ends the programs that use the
/// directory, and removes the directory.
const HOLD_SCRIPT: &str = r#"
umask 022
for parent in /run /var/tmp /tmp; do
    for old in "$parent"/farfork-experiment-*/lease; do
        [ -f "$old" ] && flock -n "$old" rm -rf -- "${old%/lease}"
    done
    directory=$parent/farfork-experiment-$1
    mkdir -m 700 -- "$directory" || { directory=; continue; }
    trap 'rm -rf -- "$directory"' EXIT
    trap 'exit 1' HUP INT TERM
    printf '#!/bin/sh\n' >"$directory/lease" && chmod 755 "$directory" "$directory/lease" && "$directory/lease" && break
    rm -rf -- "$directory"
    directory=
done 2>/dev/null
[ -n "$directory" ] || { echo 'no program can be executed in /run, /var/tmp or /tmp' >&2; exit 1; }
exec 9<"$directory/lease" && flock 9 || exit 1
echo "directory $directory"
while [ "$(timeout 120 head -c 12 9<&- | wc -c)" -eq 12 ]; do :; done
exec 9<&-
for attempt in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf -- "$directory" 2>/dev/null && break
    sleep 1
done"#;

/// Writes the standard input, which has the digest $3, to the program $2 in directory $1. Fails if the directory was removed.
const ADD_SCRIPT: &str = r#"
cd -- "$1" && cat >"$2" && [ "$(sha256sum <"$2")" = "$3  -" ] && chmod 755 "$2""#;

/// A directory on a host. It is removed, and the programs that have its lease are ended, when this value is dropped, or when the
/// connection or the coordinator ends.
#[derive(Debug)]
pub struct HostDirectory {
    process: Child,
    path: String,
    heartbeat: JoinHandle<()>,
}

impl RemoteHost {
    /// Makes a directory that all users of the host can read, and in which programs can be executed. Its path ends with `name`:
    /// letters, digits and `-`. On all hosts of the same kind, the path is the same.
    ///
    /// # Errors
    /// The directory cannot be made, or flock(1) is missing.
    pub async fn make_directory(&self, name: &str) -> Result<HostDirectory, RemoteError> {
        let mut command = self.script_command(HOLD_SCRIPT, &[name]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|cause| RemoteError::Local { action: "run ssh", cause })?;
        let heartbeat = tokio::spawn(send_heartbeats(process.stdin.take().expect("it is piped")));
        let messages = tokio::spawn(read_messages(process.stderr.take().expect("it is piped")));
        let mut lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let answer = lines.next_line().await.ok().flatten().unwrap_or_default();
        match answer.strip_prefix("directory ") {
            Some(path) => Ok(HostDirectory { process, path: path.to_owned(), heartbeat }),
            None => Err(self.command_error("make a directory", messages.await.unwrap_or_default())),
        }
    }
}

impl HostDirectory {
    /// The path of the directory.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The file whose lock ends with this value ([`RemoteHost::leased_command`]).
    pub fn lease(&self) -> String {
        format!("{}/{LEASE_NAME}", self.path)
    }

    /// Copies a program of this machine to the directory, under its own name. Returns its path.
    ///
    /// # Errors
    /// The program cannot be read or written.
    pub async fn add_program(&self, host: &RemoteHost, local: &Path) -> Result<PathBuf, RemoteError> {
        let input = File::open(local).map_err(|cause| local_error(local, cause))?;
        let name = local.file_name().unwrap_or_default();
        let path = Path::new(&self.path).join(name);
        let arguments = [self.path(), &name.to_string_lossy(), &sha256_of(local).await?];
        host.replace(&path.to_string_lossy(), ADD_SCRIPT, &arguments, input.into()).await?;
        Ok(path)
    }

    /// Ends the programs that have the lease, and waits until the directory is removed.
    pub async fn remove(mut self) {
        self.heartbeat.abort();
        // A program may take all of its time. If more is needed, the host continues alone.
        let _ = timeout(TERMINATE_LIMIT * 2, self.process.wait()).await;
    }
}

impl Drop for HostDirectory {
    fn drop(&mut self) {
        self.heartbeat.abort();
    }
}
