//! Resolves the watches of an inotify instance to paths: the kernel shows inodes and handles, a child needs paths.

use std::fs::{File, metadata};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use farfork_sys::file_handle;
use farfork_sys::mount::table::{self, Mount};
use farfork_sys::process::WatchEntry;
use farfork_wire::descriptor::{InotifyWatch, RESTORED_NUMBER_MAX};

use crate::capture::state::tree_root::TreeRoot;

/// Finds the paths of an inotify instance's watches. The error says why a watch cannot be carried. `root` is the root of the
/// tree.
pub(super) fn resolve_watches(root: TreeRoot, entries: &[WatchEntry]) -> Result<Vec<InotifyWatch>, String> {
    let mounts = std::fs::read(format!("/proc/{}/mountinfo", root.pid)).and_then(|text| table::parse(&text));
    let mounts = mounts.map_err(|error| format!("its mounts cannot be read: {error}"))?;
    let mut watches = Vec::with_capacity(entries.len());
    for entry in entries {
        let number = entry.number;
        let path = find_path(root, entry, &mounts).and_then(|path| path.to_str().map(str::to_owned));
        let path = path.ok_or_else(|| {
            format!(
                "its watch {number} is of a file (inode {}) whose path cannot be found; remove it first",
                entry.inode
            )
        })?;
        if number > RESTORED_NUMBER_MAX {
            return Err(format!(
                "its watch has the number {number}, and numbers beyond {RESTORED_NUMBER_MAX} are not carried"
            ));
        }
        watches.push(InotifyWatch { number, path, mask: entry.mask });
    }
    watches.sort_unstable_by_key(|watch| watch.number);
    Ok(watches)
}

/// Finds a path of a watched inode: tries each mount of its file system.
fn find_path(root: TreeRoot, entry: &WatchEntry, mounts: &[Mount]) -> Option<PathBuf> {
    /// Minor numbers of the kernel's own device numbers have 20 bits.
    const MINOR_BITS: u32 = 20;
    let device = format!("{}:{}", entry.device >> MINOR_BITS, entry.device & ((1 << MINOR_BITS) - 1));
    let is_it = |path: &PathBuf| metadata(root.resolve(path)).is_ok_and(|found| found.ino() == entry.inode);
    let (kind, bytes) = &entry.handle;
    let through = |mount: &Mount| {
        let mount = File::open(root.resolve(&mount.point)).ok()?;
        file_handle::resolve_path(mount.as_fd(), *kind, bytes).ok().filter(is_it)
    };
    mounts.iter().filter(|mount| mount.device == device).find_map(through)
}
