//! The working set of a sealed seed, in a file next to its image, for the first children of the next daemon.
//!
//! The file is only a hint. It has no checksum: a wrong page is fetched in vain, and pages that the seed lacks are
//! ignored. It is not synced to disk: after a crash, the working set is learnt again.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::Image;
use super::writer::TEMPORARY_SUFFIX;

/// File name extension, in place of the image's.
const WORKING_SET_EXTENSION: &str = "set";

/// Maximum size of a working set, in bytes: enough for a full set of single pages, each with its extent, number and count.
const WORKING_SET_BYTES_MAX: u64 = 1 << 20;

//  ID.image ◀── the seed's memory          ID.set ◀── the pages that its children touch, as they read them of the owner
/// Returns the path of the working set that belongs to an image.
pub fn working_set_path(image: &Path) -> PathBuf {
    image.with_extension(WORKING_SET_EXTENSION)
}

impl Image {
    /// Saves the seed's working set next to the image, in place of the previous set. Leaves no file if the image was
    /// removed.
    ///
    /// # Errors
    /// As open(2), write(2) and rename(2).
    pub fn save_working_set(&self, set: &[u8]) -> io::Result<()> {
        let path = working_set_path(self.path());
        let aside = path.with_extension(format!("{WORKING_SET_EXTENSION}.{TEMPORARY_SUFFIX}"));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
        file.write_all(set)?;
        fs::rename(&aside, &path)?;
        // An image is removed before the files next to it. It may have been removed during the rename: then remove the
        // set, too.
        if !self.path().exists() {
            let _ = fs::remove_file(&path);
        }
        Ok(())
    }

    /// Loads the working set next to the image. Empty if there is none, or if the file is too long.
    pub fn load_working_set(&self) -> Vec<u8> {
        let path = working_set_path(self.path());
        let is_fit = fs::metadata(&path).is_ok_and(|found| found.len() <= WORKING_SET_BYTES_MAX);
        if is_fit { fs::read(&path).unwrap_or_default() } else { Vec::new() }
    }
}
