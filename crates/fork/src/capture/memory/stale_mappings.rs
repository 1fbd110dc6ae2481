//! Notes on private mappings of files that the process itself may write to. Unwritten pages of such a mapping show later
//! writes to the file. In a child, they do so too, except for mappings of which the child has copies. This module lists
//! those.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use farfork_sys::process::MapEntry;

use super::is_private_hugetlb;
use crate::capture::files::OpenFd;
use crate::capture::shared::SEGMENT_PREFIX;

/// Maximum number of file names in a note for the user.
const STALE_NAMES_MAX: usize = 5;

/// Returns a note about private mappings of hugetlbfs files and System V segments, of which a child has copies. The note
/// lists the files and segments that the process can also write to through a shared mapping or an open file.
pub(in crate::capture) fn note_stale_mappings(pid: i32, fds: &[OpenFd], maps: &[MapEntry]) -> Option<String> {
    const OWNER_MAY_WRITE: u32 = 0o200;
    const PROT_WRITE: u8 = 2;
    let can_write = |fd: &&OpenFd| {
        let link = fs::symlink_metadata(format!("/proc/{pid}/fd/{}", fd.number));
        link.is_ok_and(|link| link.permissions().mode() & OWNER_MAY_WRITE != 0)
    };
    let is_copied = |entry: &MapEntry| is_private_hugetlb(entry) || entry.path.starts_with(SEGMENT_PREFIX);
    let is_private = |entry: &&MapEntry| !entry.is_shared && is_copied(entry);
    let is_written = |entry: &MapEntry| {
        let is_same = |other: &&MapEntry| (other.device, other.inode) == (entry.device, entry.inode);
        let is_open = |fd: &&OpenFd| (fd.device, fd.inode) == (entry.device, entry.inode);
        // The flags, if known, also show mappings that may become writable later.
        let may_write = |other: &MapEntry| other.has_flag("mw") || other.protection & PROT_WRITE != 0;
        maps.iter().filter(is_same).any(|other| other.is_shared && may_write(other))
            || fds.iter().filter(is_open).any(|fd| can_write(&fd))
    };
    let followed = maps.iter().filter(is_private).filter(|entry| is_written(entry));
    let names: BTreeSet<_> = followed.map(|entry| String::from_utf8_lossy(&entry.path)).collect();
    let shown = names.iter().take(STALE_NAMES_MAX).map(|name| &**name).collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(STALE_NAMES_MAX);
    let shown = if more > 0 { format!("{shown} and {more} more") } else { shown };
    (!names.is_empty()).then(|| {
        format!(
            "it has private mappings of {shown}, to which it may write: in children, these keep their contents and do not show later writes to the files"
        )
    })
}
