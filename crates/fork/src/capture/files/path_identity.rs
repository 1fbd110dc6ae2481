//! Detects files of a process that its node lacks at their paths. They are carried like deleted files. Examples are a
//! child's payload, files in its overlay layer, and files on private mounts of a service or container. Others are files on a
//! mount that was unmounted, or that a later mount hides.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};

use farfork_container::resolve_on_node;
use farfork_sys::mount;
use farfork_sys::mount::table::Mount;
use rustix::fs::{AtFlags, CWD, FileType, OFlags, Statx, StatxFlags, statx};
use rustix::io::Errno;

use super::fd_kind::DELETED_SUFFIX;
use crate::capture::state::node_root::{self, ProcDirectory};

/// Whether a process with its own mounts has another file at `path` than this node has in the root of the process. `found`:
/// its statx(2) result. `is_its` selects the file's mount.
pub(in crate::capture) fn is_absent_on_node(
    path: &[u8],
    found: &Statx,
    process: ProcDirectory<'_>,
    is_its: impl Fn(&Mount) -> bool,
) -> bool {
    if has_same_times(path, found) {
        return false;
    }
    let Ok(mounts) = process.read_mounts() else { return true };
    let path = Path::new(OsStr::from_bytes(path));
    let root = node_root::find_root_among(process, &mounts).ok().flatten();
    let resolve = |root: PathBuf| resolve_on_node(&root, path, OFlags::empty()).ok();
    let is_in_root = root.and_then(resolve).is_some_and(|here| has_same_times(here.as_os_str().as_bytes(), found));
    !is_in_root && is_not_bind_mount(&mounts, is_its)
}

/// Whether a path still leads to the file that a process with the same mounts has open. `found`: its statx(2) result. False
/// if another mount covers the path, or if the file's mount was removed (MNT_DETACH).
pub(in crate::capture) fn is_at_path(path: &[u8], found: &Statx) -> bool {
    let path = Path::new(OsStr::from_bytes(path));
    match statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID) {
        // On the same mount, another inode means only that the file was replaced just now.
        Ok(at_path) => at_path.stx_mnt_id == found.stx_mnt_id || identity(&at_path) == identity(found),
        Err(error) => !matches!(error, Errno::NOENT | Errno::NOTDIR),
    }
}

/// Maximum number of directory entries that are searched for another name of a file: some 20 ms.
const SEARCHED_ENTRIES_MAX: usize = 65_536;

/// The other names of a file whose opened name was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::capture) enum OtherName {
    /// The file has no name, or still has the opened one.
    NotNeeded,
    /// A path in the directory of the removed name.
    Found(Vec<u8>),
    /// The file has a name, but none in the directory of the removed name.
    Elsewhere,
}

impl OtherName {
    /// Searches the directory of the removed name of a regular file or named pipe. `link` is the text of its link in `/proc`; `found` is
    /// its statx(2) result. The file must be of a process in this mount namespace.
    pub(in crate::capture) fn find(link: &[u8], found: &Statx) -> Self {
        let file_type = FileType::from_raw_mode(found.stx_mode.into());
        let has_name = (file_type.is_file() || file_type.is_fifo()) && found.stx_nlink > 0;
        let Some(removed) = link.strip_suffix(DELETED_SUFFIX).filter(|_| has_name) else {
            return Self::NotNeeded;
        };
        let is_it = |path: &Path| leads_to(path, found);
        // A name may end with the suffix, or the file may have got its name back.
        let current = [link, removed].map(|path| Path::new(OsStr::from_bytes(path)));
        if is_it(current[0]) {
            return Self::NotNeeded;
        }
        if is_it(current[1]) {
            return Self::Found(removed.to_vec());
        }
        let entries = current[1].parent().and_then(|directory| fs::read_dir(directory).ok());
        let mut names = entries.into_iter().flatten().take(SEARCHED_ENTRIES_MAX).flatten();
        let other = names.find(|entry| entry.ino() == found.stx_ino && is_it(&entry.path()));
        other.map_or(Self::Elsewhere, |entry| Self::Found(entry.path().into_os_string().into_vec()))
    }
}

/// The reason for refusing a file whose other names are unknown.
pub(in crate::capture) const OTHER_NAME_REASON: &str = "was removed, or never had a name (O_TMPFILE), but the file has \
     another name (a hard link) outside of this directory: not carried; open it by a name that it has, or remove that name";

/// Size and times of a file that is being written may differ between two statx(2) calls.
const STAT_RETRIES_MAX: usize = 3;

/// Whether a path still leads to a mapped file. On an overlay, the mapped file is the file of a layer, which is on another
/// mount.
pub(in crate::capture) fn is_mapping_at_path(path: &[u8], found: impl Fn() -> Option<Statx>) -> bool {
    let is_it = |found: &Statx| is_at_path(path, found) || has_same_times(path, found);
    (0..STAT_RETRIES_MAX).any(|_| found().is_none_or(|found| is_it(&found)))
}

/// Whether a path leads to exactly the file of a statx(2) call, or, on an overlay, to a file that looks like it.
pub(in crate::capture) fn is_same_file(path: &[u8], found: impl Fn() -> Option<Statx>) -> bool {
    let is_it = |found: &Statx| leads_to(Path::new(OsStr::from_bytes(path)), found) || has_same_times(path, found);
    (0..STAT_RETRIES_MAX).any(|_| found().is_some_and(|found| is_it(&found)))
}

/// Whether a path leads to this file, without following a symbolic link at its end.
fn leads_to(path: &Path, found: &Statx) -> bool {
    let at_path = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS);
    at_path.is_ok_and(|at_path| identity(&at_path) == identity(found))
}

/// The device and inode number of a file.
fn identity(file: &Statx) -> (u32, u32, u64) {
    (file.stx_dev_major, file.stx_dev_minor, file.stx_ino)
}

/// Whether this node has a file with the same size and times at the path. An overlay shows the size and times of the file in
/// its layer, but inode numbers of its own.
fn has_same_times(path: &[u8], found: &Statx) -> bool {
    let look = |found: &Statx| {
        let [modified, changed] = [found.stx_mtime, found.stx_ctime].map(|time| (time.tv_sec, time.tv_nsec));
        (found.stx_size, modified, changed)
    };
    let path = Path::new(OsStr::from_bytes(path));
    statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS).is_ok_and(|at_path| look(&at_path) == look(found))
}

/// Whether a file may differ from the node's file at the same path. In a container of farfork, only files on mounts that
/// farfork made may differ. The other mounts are bind mounts of the user, which the container's children get, too.
fn is_not_bind_mount(mounts: &[Mount], is_its: impl Fn(&Mount) -> bool) -> bool {
    let is_made = |mount: &Mount| mount.source == mount::SOURCE;
    !mounts.iter().any(is_made) || mounts.iter().any(|mount| is_made(mount) && is_its(mount))
}
