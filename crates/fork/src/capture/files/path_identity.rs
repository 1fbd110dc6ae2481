//! Detects files of a process that its node does not have at their paths. They are carried like deleted files. A
//! child's writes are in its own overlay layer, and its payload in its own directory. A service may have mounts of its
//! own, as those of a container runtime have. A mount may have been removed, or covered by another.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use farfork_sys::mount;
use farfork_sys::mount::table::{self, Mount};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags, openat, statx};
use rustix::io::Errno;

/// Whether a process that sees other mounts than we do has its own file at `path`. `found`: what statx(2) tells of it; `mounts`: where the process's
/// table of mounts is, below which directory, and which of them is the file's.
pub(in crate::capture) fn is_absent_on_node(
    path: &[u8],
    found: &Statx,
    mounts: (BorrowedFd<'_>, &str, impl Fn(&Mount) -> bool),
) -> bool {
    !has_same_times(path, found) && is_not_bind_mount(mounts).unwrap_or(true)
}

/// Whether the path that a process with our mounts has something at leads there, of which statx(2) tells `found`. None does where something was
/// mounted over it since, or its own mount was taken away (MNT_DETACH).
pub(in crate::capture) fn is_at_path(path: &[u8], found: &Statx) -> bool {
    let identity = |found: &Statx| (found.stx_dev_major, found.stx_dev_minor, found.stx_ino);
    let path = Path::new(OsStr::from_bytes(path));
    match statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID) {
        // Another one in the same mount was given its name this moment.
        Ok(at_path) => at_path.stx_mnt_id == found.stx_mnt_id || identity(&at_path) == identity(found),
        Err(error) => !matches!(error, Errno::NOENT | Errno::NOTDIR),
    }
}

/// The same of a file that is mapped: an overlay's is the one in its layer, by another mount.
pub(in crate::capture) fn is_mapping_at_path(path: &[u8], found: impl Fn() -> Option<Statx>) -> bool {
    /// One that is written meanwhile looks otherwise each time.
    const STAT_RETRIES_MAX: usize = 3;
    let is_it = |found: &Statx| is_at_path(path, found) || has_same_times(path, found);
    (0..STAT_RETRIES_MAX).any(|_| found().is_none_or(|found| is_it(&found)))
}

/// Whether we find the same at its path. An overlay shows times and size of the file below, but numbers of its own.
fn has_same_times(path: &[u8], found: &Statx) -> bool {
    let look = |found: &Statx| {
        let [modified, changed] = [found.stx_mtime, found.stx_ctime].map(|time| (time.tv_sec, time.tv_nsec));
        (found.stx_size, modified, changed)
    };
    let path = Path::new(OsStr::from_bytes(path));
    statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS).is_ok_and(|at_path| look(&at_path) == look(found))
}

/// Of a container of ours only what lies on a mount that was made for it: what its user has bound there is for its children, too.
fn is_not_bind_mount((directory, name, is_its): (BorrowedFd<'_>, &str, impl Fn(&Mount) -> bool)) -> io::Result<bool> {
    let mut text = Vec::new();
    let mounts = openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    File::from(mounts).read_to_end(&mut text)?;
    let mounts = table::parse(&text)?;
    let is_made = |mount: &Mount| mount.source == mount::SOURCE;
    Ok(!mounts.iter().any(is_made) || mounts.iter().any(|mount| is_made(mount) && is_its(mount)))
}
