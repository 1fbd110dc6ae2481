//! Copies of a plan on a host. A marker next to each says that a coordinator made it: nothing else is replaced or removed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::connection::RemoteHost;
use super::copy::{CopyOutcome, local_error};
use super::error::RemoteError;

/// The functions of the scripts below. $1 is the copy, $2 its marker. The first line of the marker has the number and the birth
/// of the copy's inode, so that it does not apply to an object that is made later at the same path.
const FUNCTIONS: &str = r#"
exists() { [ -e "$1" ] || [ -L "$1" ]; }
inode() { stat -c '%i %W' -- "$1"; }
is_own() { [ -f "$2" ] && [ -O "$2" ] && [ "$(head -n 1 -- "$2")" = "$(inode "$1")" ]; }
"#;

/// Fails with [`STATUS_FOREIGN`] if the path has an object without a marker.
const CHECK_SCRIPT: &str = r#"! exists "$1" || is_own "$1" "$2" || exit 3"#;

/// Writes the marker, with the text $3. Follows no link that another user has made in its place.
const MARK_SCRIPT: &str = r#"umask 077 && rm -f -- "$2" && set -C && printf '%s\n%s\n' "$(inode "$1")" "$3" >"$2""#;

/// Removes the copy and its marker.
const REMOVE_SCRIPT: &str = r#"rm -rf -- "$1" && rm -f -- "$2""#;

/// Exit status of [`CHECK_SCRIPT`] that no other failure has.
const STATUS_FOREIGN: i32 = 3;

impl RemoteHost {
    /// Copies a file or directory of this machine to the absolute path `path`, unless the host has the same. The call replaces
    /// only the copy of an earlier call.
    ///
    /// `owner` is a line about the coordinator, for the marker.
    ///
    /// # Errors
    /// [`RemoteError::Foreign`]: the path has an object of others. The errors of [`Self::copy_file`] and
    /// [`Self::copy_directory`].
    pub async fn sync(&self, local: &Path, path: &str, owner: &str) -> Result<(), RemoteError> {
        let metadata = fs::metadata(local).map_err(|cause| local_error(local, cause))?;
        self.require_own(path).await?;
        let copied = match metadata.is_dir() {
            true => self.copy_directory(local, path).await?,
            false => self.copy_file(local, path, metadata.permissions().mode() & 0o7777).await?,
        };
        if copied == CopyOutcome::Copied {
            self.sync_script("mark", MARK_SCRIPT, path, owner).await?;
        }
        Ok(())
    }

    /// Removes what [`Self::sync`] has made. A missing object is no error.
    ///
    /// # Errors
    /// [`RemoteError::Foreign`]: the path has an object of others. The object cannot be removed.
    pub async fn remove_synced(&self, path: &str) -> Result<(), RemoteError> {
        self.require_own(path).await?;
        self.sync_script("remove", REMOVE_SCRIPT, path, "").await
    }

    async fn require_own(&self, path: &str) -> Result<(), RemoteError> {
        let checked = self.script(&format!("{FUNCTIONS}{CHECK_SCRIPT}"), &[path, &marker_path(path)], b"").await?;
        match checked.status {
            STATUS_FOREIGN => Err(RemoteError::Foreign { host: self.name().to_owned(), path: path.to_owned() }),
            status => self.require_success(&format!("check {path}"), status, checked.stderr.as_bytes()),
        }
    }

    async fn sync_script(&self, verb: &str, script: &str, path: &str, owner: &str) -> Result<(), RemoteError> {
        let (action, script) = (format!("{verb} {path}"), format!("{FUNCTIONS}{script}"));
        self.require_script(&action, &script, &[path, &marker_path(path), owner], b"").await.map(drop)
    }
}

/// The marker of a copy: a hidden file next to it, so that a copied directory has only its own files.
fn marker_path(path: &str) -> String {
    let (directory, name) = path.rsplit_once('/').expect("an absolute path");
    format!("{directory}/.{name}.farfork-sync")
}
