//! Files that a container has for itself: what a child has written lies in its own layer, its payload in a directory of its own. Their paths
//! lead to other files on any node, or to none, so they are carried like deleted ones.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use farfork_sys::mount;
use farfork_sys::mount::table::{self, Mount};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags, openat, statx};

/// Whether the file that a process has at `path` is its container's, and not as the node has it there. `found`: what statx(2) tells of it;
/// `mounts`: where the process's table of mounts is, below which directory, and which of them is the file's.
pub(in crate::capture) fn is_containers_own(
    path: &[u8],
    found: &Statx,
    mounts: (BorrowedFd<'_>, &str, impl Fn(&Mount) -> bool),
) -> bool {
    // Overlays and tmpfs have no device: of others' files nothing more is asked.
    found.stx_dev_major == 0 && !is_as_here(path, found) && is_in_container(mounts).unwrap_or(false)
}

/// Whether we find the same at its path. An overlay shows times and size of the file below, but numbers of its own.
fn is_as_here(path: &[u8], found: &Statx) -> bool {
    let look = |found: &Statx| {
        let [modified, changed] = [found.stx_mtime, found.stx_ctime].map(|time| (time.tv_sec, time.tv_nsec));
        (found.stx_size, modified, changed)
    };
    let path = Path::new(OsStr::from_bytes(path));
    statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS).is_ok_and(|here| look(&here) == look(found))
}

/// Whether a file's mount was made for a container.
fn is_in_container((directory, name, is_its): (BorrowedFd<'_>, &str, impl Fn(&Mount) -> bool)) -> io::Result<bool> {
    let mut text = Vec::new();
    let mounts = openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    File::from(mounts).read_to_end(&mut text)?;
    Ok(table::parse(&text)?.iter().any(|mount| is_its(mount) && mount.source == mount::SOURCE))
}
