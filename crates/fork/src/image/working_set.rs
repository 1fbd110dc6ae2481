//! The working set of a sealed seed, in a file next to its image. The next daemon's first children get it at once.
//!
//! The file is only a hint. It has no checksum: pages that the seed has are fetched as they are, others are ignored.
//! It is not synced to disk: after a crash, the working set is learnt again.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::Image;
use super::writer::TEMPORARY_SUFFIX;

/// What the file's name ends with, in place of the image's.
const WORKING_SET_EXTENSION: &str = "set";

/// Most bytes of one: as many as a set of single pages has, each with its extent, number and count.
const WORKING_SET_BYTES_MAX: u64 = 1 << 20;

//  ID.image ◀── the seed's memory          ID.set ◀── the pages that its children touch, as they read them of the owner
/// Where the working set of the seed of this image is kept.
pub fn working_set_path(image: &Path) -> PathBuf {
    image.with_extension(WORKING_SET_EXTENSION)
}

impl Image {
    /// Keeps the seed's working set beside the image, in place of the one before; nothing where the image was removed.
    ///
    /// # Errors
    /// As open(2), write(2) and rename(2).
    pub fn save_working_set(&self, set: &[u8]) -> io::Result<()> {
        let path = working_set_path(self.path());
        let aside = path.with_extension(format!("{WORKING_SET_EXTENSION}.{TEMPORARY_SUFFIX}"));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
        file.write_all(set)?;
        fs::rename(&aside, &path)?;
        // Who removes an image does that first, and then what stands beside it: this may have come in between.
        if !self.path().exists() {
            let _ = fs::remove_file(&path);
        }
        Ok(())
    }

    /// The working set that is kept beside the image; none where there is none, or what is there is too long for one.
    pub fn load_working_set(&self) -> Vec<u8> {
        let path = working_set_path(self.path());
        let is_fit = fs::metadata(&path).is_ok_and(|found| found.len() <= WORKING_SET_BYTES_MAX);
        if is_fit { fs::read(&path).unwrap_or_default() } else { Vec::new() }
    }
}
