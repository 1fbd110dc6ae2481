//! Keeps what is masked out of an overlay itself. A cover can be taken off by root of a container; behind it there is
//! nothing of the node's then, as the overlay has something of its own there that hides it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Timespec, Timestamps, XattrFlags, utimensat};

use super::copy_ownership;

/// Marks a directory of an upper layer as one that shows nothing of the layer below.
const OPAQUE: (&str, &[u8]) = ("trusted.overlay.opaque", b"y");

/// Access lists of a directory, which belong to its ownership.
const ACCESS_LISTS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// Longest access list that is copied, in bytes: some hundred entries.
const ACCESS_LIST_BYTES_MAX: usize = 4096;

/// Puts, into the upper layer of an overlay over `point` that is not mounted yet, something in the place of each masked path.
pub(super) fn hide(point: &Path, upper: &Path, masked: &[PathBuf]) -> io::Result<()> {
    for path in masked {
        let Ok(below) = path.strip_prefix(point) else { continue };
        let Some(parent) = below.parent() else { continue };
        // Where there is not even a place for it, the container cannot show it, either.
        if !point.join(parent).is_dir() {
            continue;
        }
        copy_parents(point, upper, parent)?;
        let place = upper.join(below);
        match fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.is_dir() => {
                File::create(&place)?.set_permissions(fs::Permissions::from_mode(0o444))?;
            }
            // Or nothing yet: it would show through as soon as the node makes it.
            _ => {
                fs::create_dir(&place)?;
                fs::set_permissions(&place, fs::Permissions::from_mode(0o555))?;
                rustix::fs::setxattr(&place, OPAQUE.0, OPAQUE.1, XattrFlags::empty())?;
            }
        }
        copy_times(point, upper, parent)?;
    }
    Ok(())
}

/// The directories on the way: what the overlay shows of them comes from here.
fn copy_parents(point: &Path, upper: &Path, parent: &Path) -> io::Result<()> {
    for directory in outermost_first(parent) {
        let (from, to) = (point.join(directory), upper.join(directory));
        match fs::create_dir(&to) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            made => made?,
        }
        copy_ownership(&from, &to)?;
        for name in ACCESS_LISTS {
            let mut list = vec![0; ACCESS_LIST_BYTES_MAX];
            // Most have none.
            if let Ok(length) = rustix::fs::getxattr(&from, name, &mut list) {
                rustix::fs::setxattr(&to, name, &list[..length], XattrFlags::empty())?;
            }
        }
    }
    Ok(())
}

/// Once they are filled.
fn copy_times(point: &Path, upper: &Path, parent: &Path) -> io::Result<()> {
    for directory in outermost_first(parent) {
        let metadata = fs::metadata(point.join(directory))?;
        let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps {
            last_access: time(metadata.atime(), metadata.atime_nsec()),
            last_modification: time(metadata.mtime(), metadata.mtime_nsec()),
        };
        utimensat(CWD, upper.join(directory), &times, rustix::fs::AtFlags::empty())?;
    }
    Ok(())
}

fn outermost_first(parent: &Path) -> Vec<&Path> {
    let mut all: Vec<&Path> = parent.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
    all.reverse();
    all
}
