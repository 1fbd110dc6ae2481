//! Private mappings of what the process itself may write to: where it has not written through the mapping, they show what is written to the file. A
//! child's pages are its own.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use farfork_sys::process::MapEntry;

use super::{Kind, kind};
use crate::capture::files::OpenFd;

/// A person reads no more names.
const NAMES_MAX: usize = 5;

/// What has no path (memfds, deleted files) and is mapped privately by a process that may write to it: by a shared mapping, or by an open file.
pub(in crate::capture) fn note_of_followed((pid, fds): (i32, &[OpenFd]), maps: &[MapEntry]) -> Option<String> {
    const OWNER_MAY_WRITE: u32 = 0o200;
    let can_write = |fd: &&OpenFd| {
        let link = fs::symlink_metadata(format!("/proc/{pid}/fd/{}", fd.number));
        link.is_ok_and(|link| link.permissions().mode() & OWNER_MAY_WRITE != 0)
    };
    let is_private = |entry: &&MapEntry| !entry.is_shared && entry.inode != 0 && kind(entry) == Ok(Kind::Anonymous);
    let is_written = |entry: &MapEntry| {
        let is_same = |other: &&MapEntry| (other.device, other.inode) == (entry.device, entry.inode);
        let is_open = |fd: &&OpenFd| (fd.device, fd.inode) == (entry.device, entry.inode);
        maps.iter().filter(is_same).any(|other| other.is_shared && other.has_flag("mw"))
            || fds.iter().filter(is_open).any(|fd| can_write(&fd))
    };
    let followed = maps.iter().filter(is_private).filter(|entry| is_written(entry));
    let names: BTreeSet<_> = followed.map(|entry| String::from_utf8_lossy(&entry.path)).collect();
    let shown = names.iter().take(NAMES_MAX).map(|name| &**name).collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(NAMES_MAX);
    let shown = if more > 0 { format!("{shown} and {more} more") } else { shown };
    (!names.is_empty()).then(|| {
        format!(
            "it has private mappings of {shown}, to which it may write: in children these keep what they show, also where it has not written through them"
        )
    })
}
