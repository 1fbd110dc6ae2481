//! Masks paths in an overlay: the container's upper layer has an empty file or directory in their place, which hides the
//! node's present and future files. The container's root user may change this replacement, but cannot see the node's file.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Timespec, Timestamps, XattrFlags, utimensat};

use super::copy_ownership;
use crate::users::ContainerUsers;

/// Marks a directory of an upper layer as opaque: it shows nothing of the layer below.
const OPAQUE_XATTR: (&str, &[u8]) = ("trusted.overlay.opaque", b"y");

/// Access control lists of a directory, which are copied with its owner.
const ACL_XATTRS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// Longest access control list that is copied, in bytes: about 500 entries.
const ACL_BYTES_MAX: usize = 4096;

/// Creates a replacement for each hidden path in the upper layer of an overlay over `point`, which is not mounted yet.
/// Returns the paths of everything that it created, relative to the layer.
pub(super) fn mask_in_upper(
    point: &Path,
    upper: &Path,
    hidden: &[&Path],
    users: Option<&ContainerUsers>,
) -> io::Result<Vec<PathBuf>> {
    let below = hidden.iter().filter_map(|path| path.strip_prefix(point).ok());
    let paths: Vec<&Path> = below.filter(|path| path.parent().is_some()).collect();
    // Sorted: a directory precedes those below it.
    let on_the_way: BTreeSet<&Path> = paths.iter().flat_map(|path| path.ancestors().skip(1)).collect();
    let mut made: Vec<(&Path, Option<Metadata>)> = Vec::new();
    for directory in on_the_way.into_iter().filter(|directory| !directory.as_os_str().is_empty()) {
        match fs::metadata(point.join(directory)) {
            Ok(metadata) if metadata.is_dir() => {
                copy_directory(&point.join(directory), &upper.join(directory), &metadata, users)?;
                made.push((directory, Some(metadata)));
            }
            // It does not exist yet, but would become visible if the node created it later.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_opaque(&upper.join(directory), 0o755)?;
                made.push((directory, None));
            }
            // It is not a directory, so the hidden path cannot exist.
            _ => {}
        }
    }
    let has_room = |path: &Path| {
        let parent = path.parent().unwrap_or(path);
        parent.as_os_str().is_empty() || made.iter().any(|(directory, _)| *directory == parent)
    };
    let filled: Vec<&Path> = paths.iter().copied().filter(|path| has_room(path)).collect();
    for path in &filled {
        match fs::symlink_metadata(point.join(path)) {
            Ok(metadata) if !metadata.is_dir() => {
                File::create(upper.join(path))?.set_permissions(fs::Permissions::from_mode(0o444))?;
            }
            _ => make_opaque(&upper.join(path), 0o555)?,
        }
    }
    // Last, because creating entries changes the times of a directory.
    made.iter().try_for_each(|(directory, metadata)| match metadata {
        Some(metadata) => copy_times(metadata, &upper.join(directory)),
        None => Ok(()),
    })?;
    let made = made.iter().map(|(directory, _)| *directory);
    Ok(made.chain(filled).map(Path::to_owned).collect())
}

/// Creates a directory that shows nothing of the layer below.
fn make_opaque(path: &Path, mode: u32) -> io::Result<()> {
    fs::create_dir(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(rustix::fs::setxattr(path, OPAQUE_XATTR.0, OPAQUE_XATTR.1, XattrFlags::empty())?)
}

/// Creates a copy of a parent directory of a hidden path, without its entries: the overlay takes the attributes from the
/// upper layer.
fn copy_directory(from: &Path, to: &Path, metadata: &Metadata, users: Option<&ContainerUsers>) -> io::Result<()> {
    fs::create_dir(to)?;
    copy_ownership(metadata, to, users)?;
    let mut list = [0; ACL_BYTES_MAX];
    for name in ACL_XATTRS {
        // Most directories have none.
        if let Ok(length) = rustix::fs::getxattr(from, name, &mut list) {
            rustix::fs::setxattr(to, name, &list[..length], XattrFlags::empty())?;
        }
    }
    Ok(())
}

fn copy_times(from: &Metadata, to: &Path) -> io::Result<()> {
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps {
        last_access: time(from.atime(), from.atime_nsec()),
        last_modification: time(from.mtime(), from.mtime_nsec()),
    };
    Ok(utimensat(CWD, to, &times, rustix::fs::AtFlags::empty())?)
}
