//! Copies of a plan on a host. A marker next to each says that a coordinator made it: nothing else is replaced or removed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::connection::RemoteHost;
use super::copy::{CopyMarker, local_error};
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
        let marker = CopyMarker { path: &marker_path(path), owner };
        match metadata.is_dir() {
            true => self.copy_marked_directory(local, path, marker).await?,
            false => self.copy_marked_file(local, path, metadata.permissions().mode() & 0o7777, marker).await?,
        };
        Ok(())
    }

    /// Removes what [`Self::sync`] has made. A missing object is no error.
    ///
    /// # Errors
    /// [`RemoteError::Foreign`]: the path has an object of others. The object cannot be removed.
    pub async fn remove_synced(&self, path: &str) -> Result<(), RemoteError> {
        self.require_own(path).await?;
        let script = format!("{FUNCTIONS}{REMOVE_SCRIPT}");
        self.require_script(&format!("remove {path}"), &script, &[path, &marker_path(path)], b"").await.map(drop)
    }

    async fn require_own(&self, path: &str) -> Result<(), RemoteError> {
        let checked = self.script(&format!("{FUNCTIONS}{CHECK_SCRIPT}"), &[path, &marker_path(path)], b"").await?;
        match checked.status {
            STATUS_FOREIGN => Err(RemoteError::Foreign { host: self.name().to_owned(), path: path.to_owned() }),
            status => self.require_success(&format!("check {path}"), status, checked.stderr.as_bytes()),
        }
    }
}

/// The marker of a copy: a hidden file next to it, so that a copied directory has only its own files.
fn marker_path(path: &str) -> String {
    let (directory, name) = path.rsplit_once('/').expect("an absolute path");
    format!("{directory}/.{name}.farfork-sync")
}
