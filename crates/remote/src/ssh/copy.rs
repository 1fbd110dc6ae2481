//! Copies files to a host, and removes them.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use ring::digest::{Context, SHA256};

use super::connection::RemoteHost;
use super::error::RemoteError;

/// Prints `same` if file $1 has the digest $2 and the mode $3, otherwise `different`.
const COMPARE_SCRIPT: &str = r#"
if [ -f "$1" ] && [ ! -L "$1" ] && [ "$(stat -c %a -- "$1")" = "$3" ] && [ "$(sha256sum <"$1")" = "$2  -" ]
then echo same
else echo different
fi"#;

/// Moves $1 to $2. Before, writes the marker $3, if it is set, with the number and the birth of the inode of $1, and the text $4:
/// there is no moment at which the copy has no marker. Follows no link that another user has made in place of the marker.
const PLACE_FUNCTION: &str = r#"
place() {
    if [ -n "$3" ]; then
        rm -f -- "$3" && (umask 077 && set -C && printf '%s\n%s\n' "$(stat -c '%i %W' -- "$1")" "$4" >"$3") || return 1
    fi
    mv -f -T -- "$1" "$2"
}"#;

/// Replaces file $1 by the standard input, which has the digest $2, with the mode $3 and the marker $4 $5. A connection that ends
/// early must not leave a part of the file, nor end the shell by SIGPIPE before its trap. Directories above it are for all users,
/// as programs of other users need them, but only their owner can write them.
const REPLACE_SCRIPT: &str = r#"
trap '' PIPE
umask g-w,o-w && mkdir -p -- "$(dirname -- "$1")" || exit 1
umask 077
part=$(mktemp -- "$1.XXXXXX") || exit 1
trap 'rm -f -- "$part"' EXIT
cat >"$part" || exit 1
[ "$(sha256sum <"$part")" = "$2  -" ] || { echo 'the transfer was cut' >&2; exit 1; }
chmod "$3" "$part" && place "$part" "$1" "$4" "$5""#;

/// Prints the digest of the archive of directory $1, which does not depend on the owners.
const DIGEST_DIRECTORY_SCRIPT: &str = r#"
[ -d "$1" ] && [ ! -L "$1" ] && tar --sort=name --owner=0 --group=0 --numeric-owner -C "$1" -cf - . 2>/dev/null | sha256sum"#;

/// Replaces directory $1 by the archive in the standard input, whose digest is $2, with the marker $3 $4. A connection that ends
/// early must not leave a part of it. The directories above it are as in [`REPLACE_SCRIPT`].
const UNPACK_SCRIPT: &str = r#"
trap '' PIPE
umask g-w,o-w && mkdir -p -- "$(dirname -- "$1")" || exit 1
umask 077
part=$(mktemp -d -- "$1.XXXXXX") || exit 1
trap 'rm -rf -- "$part"' EXIT
tar --numeric-owner -C "$part" -xpf - || exit 1
[ "$(tar --sort=name --owner=0 --group=0 --numeric-owner -C "$part" -cf - . | sha256sum)" = "$2  -" ] ||
    { echo 'the transfer was cut' >&2; exit 1; }
rm -rf -- "$1" && place "$part" "$1" "$3" "$4""#;

/// Buffer for digests, in bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// The marker of a copy: a file of the host, and a line about the coordinator.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CopyMarker<'a> {
    pub(super) path: &'a str,
    pub(super) owner: &'a str,
}

/// Whether a copy changed the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyOutcome {
    /// The host had the same file.
    Unchanged,
    /// The file was copied.
    Copied,
}

impl RemoteHost {
    /// Copies a file of this machine to `path` on the host with these permissions, unless the host has the same file. The
    /// file at `path` is always complete, the old one or the new one. Missing directories are made.
    ///
    /// # Errors
    /// The local file cannot be read, or the remote one cannot be written.
    pub async fn copy_file(&self, local: &Path, path: &str, mode: u32) -> Result<CopyOutcome, RemoteError> {
        self.copy_marked_file(local, path, mode, CopyMarker::default()).await
    }

    /// As [`Self::copy_file`], with a marker.
    pub(super) async fn copy_marked_file(
        &self,
        local: &Path,
        path: &str,
        mode: u32,
        marker: CopyMarker<'_>,
    ) -> Result<CopyOutcome, RemoteError> {
        let (digest, mode) = (sha256_of(local).await?, format!("{mode:o}"));
        if self.is_same_file(&[path, &digest, &mode]).await? {
            return Ok(CopyOutcome::Unchanged);
        }
        let input = File::open(local).map_err(|cause| local_error(local, cause))?;
        let arguments = [path, &digest, &mode, marker.path, marker.owner];
        self.replace(path, &format!("{PLACE_FUNCTION}{REPLACE_SCRIPT}"), &arguments, input.into()).await
    }

    /// Runs a script that replaces the object at `path` by the standard input.
    pub(super) async fn replace(
        &self,
        path: &str,
        script: &str,
        arguments: &[&str],
        input: Stdio,
    ) -> Result<CopyOutcome, RemoteError> {
        let mut command = self.script_command(script, arguments);
        command.stdin(input).stdout(Stdio::null()).stderr(Stdio::piped());
        let output = command.output().await.map_err(|cause| RemoteError::Local { action: "run ssh", cause })?;
        let status = self.remote_status(output.status, &output.stderr).await?;
        self.require_success(&format!("write {path}"), status, &output.stderr)?;
        Ok(CopyOutcome::Copied)
    }

    /// Whether the host has a file at `path` with the contents of a file of this machine and these permissions.
    ///
    /// # Errors
    /// A file cannot be read.
    pub async fn has_file(&self, local: &Path, path: &str, mode: u32) -> Result<bool, RemoteError> {
        self.is_same_file(&[path, &sha256_of(local).await?, &format!("{mode:o}")]).await
    }

    /// Compares a file with a path, a digest and permissions.
    async fn is_same_file(&self, arguments: &[&str; 3]) -> Result<bool, RemoteError> {
        let compared = self.require_script(&format!("read {}", arguments[0]), COMPARE_SCRIPT, arguments, b"").await?;
        Ok(compared.trim_end() == "same")
    }

    /// Copies a directory of this machine to `path` on the host, unless the host has the same one: the same names, contents,
    /// modes and times. The directory at `path` is replaced as a whole. Missing directories above it are made.
    ///
    /// # Errors
    /// The local directory cannot be read, or the remote one cannot be written. One of the machines lacks GNU tar.
    pub async fn copy_directory(&self, local: &Path, path: &str) -> Result<CopyOutcome, RemoteError> {
        self.copy_marked_directory(local, path, CopyMarker::default()).await
    }

    /// As [`Self::copy_directory`], with a marker.
    pub(super) async fn copy_marked_directory(
        &self,
        local: &Path,
        path: &str,
        marker: CopyMarker<'_>,
    ) -> Result<CopyOutcome, RemoteError> {
        let digest = sha256_of_directory(local).await?;
        let compared = self.script(DIGEST_DIRECTORY_SCRIPT, &[path], b"").await?;
        if compared.stdout.split_whitespace().next() == Some(&digest) {
            return Ok(CopyOutcome::Unchanged);
        }
        let failed = |cause| RemoteError::Local { action: "run tar", cause };
        let mut archive = archive_command(local).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let input = archive.stdout.take().expect("it is piped");
        // Afterwards, this process no longer has the pipe, so tar does not wait for a reader.
        let (script, arguments) =
            (format!("{PLACE_FUNCTION}{UNPACK_SCRIPT}"), [path, &digest, marker.path, marker.owner]);
        let replaced = self.replace(path, &script, &arguments, input.into()).await;
        archive.wait().map_err(failed)?;
        replaced
    }

    /// Removes a file of the host. A missing file is no error.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub async fn remove_file(&self, path: &str) -> Result<(), RemoteError> {
        let removed = self.require_script(&format!("remove {path}"), r#"rm -f -- "$1""#, &[path], b"").await;
        removed.map(drop)
    }
}

pub(super) fn local_error(path: &Path, cause: std::io::Error) -> RemoteError {
    RemoteError::LocalFile { path: path.to_owned(), cause }
}

/// The SHA-256 digest of a file, as hexadecimal digits.
pub(super) async fn sha256_of(path: &Path) -> Result<String, RemoteError> {
    let owned = path.to_owned();
    digest_in_thread(path, move || sha256_of_bytes(File::open(owned)?)).await
}

/// The SHA-256 digest of the archive of a directory, with neither owners nor groups.
async fn sha256_of_directory(path: &Path) -> Result<String, RemoteError> {
    let mut command = archive_command(path);
    command.args(["--owner=0", "--group=0"]).stdout(Stdio::piped());
    let digest = move || {
        let mut archive = command.spawn()?;
        let digest = sha256_of_bytes(archive.stdout.take().expect("it is piped"))?;
        if archive.wait()?.success() { Ok(digest) } else { Err(std::io::Error::other("tar cannot read all of it")) }
    };
    digest_in_thread(path, digest).await
}

/// tar(1), which writes the archive of a directory to its standard output.
fn archive_command(directory: &Path) -> Command {
    let mut command = Command::new("tar");
    command.args(["--sort=name", "--numeric-owner", "-cf", "-", "-C"]).arg(directory).arg(".").stdin(Stdio::null());
    command
}

async fn digest_in_thread(
    path: &Path,
    digest: impl FnOnce() -> std::io::Result<String> + Send + 'static,
) -> Result<String, RemoteError> {
    let digest = tokio::task::spawn_blocking(digest).await.unwrap_or_else(|panic| Err(std::io::Error::other(panic)));
    digest.map_err(|cause| local_error(path, cause))
}

/// The SHA-256 digest of everything that can be read, as hexadecimal digits.
fn sha256_of_bytes(mut input: impl Read) -> std::io::Result<String> {
    let (mut context, mut buffer) = (Context::new(&SHA256), vec![0; BUFFER_BYTES]);
    loop {
        match input.read(&mut buffer)? {
            0 => return Ok(context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()),
            count => context.update(&buffer[..count]),
        }
    }
}
