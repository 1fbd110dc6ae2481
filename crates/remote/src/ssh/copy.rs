//! Copies files to a host, and removes them.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use ring::digest::{Context, SHA256};
use tokio::io::AsyncReadExt as _;

use super::connection::{RemoteHost, one_line};
use super::error::RemoteError;
use crate::shell::quote_all;

/// Prints `same` if file $1 has the digest $2 and the mode $3, otherwise `different`.
const COMPARE_SCRIPT: &str = r#"
if [ -f "$1" ] && [ ! -L "$1" ] && [ "$(stat -c %a -- "$1")" = "$3" ] && [ "$(sha256sum <"$1")" = "$2  -" ]
then echo same
else echo different
fi"#;

/// Replaces file $1 by the standard input, which has the digest $2, with the mode $3. A connection that ends early must not
/// leave a part of the file.
const REPLACE_SCRIPT: &str = r#"
umask 077
mkdir -p -- "$(dirname -- "$1")" && part=$(mktemp -- "$1.XXXXXX") || exit 1
trap 'rm -f -- "$part"' EXIT
cat >"$part" || exit 1
[ "$(sha256sum <"$part")" = "$2  -" ] || { echo 'the transfer was cut' >&2; exit 1; }
chmod "$3" "$part" && mv -f -T -- "$part" "$1""#;

/// Buffer for digests, in bytes.
const BUFFER_BYTES: usize = 1 << 20;

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
        let (digest, mode) = (sha256_of(local).await?, format!("{mode:o}"));
        let arguments = [path, &digest, &mode];
        if self.is_same_file(&arguments).await? {
            return Ok(CopyOutcome::Unchanged);
        }
        let input = File::open(local).map_err(|cause| local_error(local, cause))?;
        let words = ["exec", "sh", "-c", REPLACE_SCRIPT, "sh"].into_iter().chain(arguments);
        let mut command = self.ssh(&quote_all(words));
        command.stdin(input).stdout(Stdio::null()).stderr(Stdio::piped());
        let failed = |cause| RemoteError::Local { action: "run ssh", cause };
        let mut child = command.spawn().map_err(failed)?;
        let mut messages = Vec::new();
        child.stderr.take().expect("it is piped").read_to_end(&mut messages).await.map_err(failed)?;
        match child.wait().await.map_err(failed)?.success() {
            true => Ok(CopyOutcome::Copied),
            false => Err(self.command_error(format!("write {path}"), one_line(&messages))),
        }
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

    /// Removes a file of the host. A missing file is no error.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub async fn remove_file(&self, path: &str) -> Result<(), RemoteError> {
        let removed = self.require_script(&format!("remove {path}"), r#"rm -f -- "$1""#, &[path], b"").await;
        removed.map(drop)
    }
}

fn local_error(path: &Path, cause: std::io::Error) -> RemoteError {
    RemoteError::LocalFile { path: path.to_owned(), cause }
}

/// The SHA-256 digest of a file, as hexadecimal digits.
async fn sha256_of(path: &Path) -> Result<String, RemoteError> {
    let owned: PathBuf = path.to_owned();
    let read = move || {
        let (mut file, mut context) = (File::open(owned)?, Context::new(&SHA256));
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(context.finish()),
                count => context.update(&buffer[..count]),
            }
        }
    };
    let digest = tokio::task::spawn_blocking(read).await.unwrap_or_else(|panic| Err(std::io::Error::other(panic)));
    let digest = digest.map_err(|cause| local_error(path, cause))?;
    Ok(digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}
