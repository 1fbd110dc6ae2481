//! Finds the node's path of the root of a mount namespace. A program that was started with `farfork run --root`, or by a
//! service manager with a root directory, has a directory of the node as its root.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use farfork_sys::mount::table::{self, Mount};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags, openat, statx};

/// The directory `/proc/PID` of a process, as a prefix of paths that are relative to `directory`.
#[derive(Debug, Clone, Copy)]
pub(in crate::capture) struct ProcDirectory<'a> {
    pub(in crate::capture) directory: BorrowedFd<'a>,
    pub(in crate::capture) prefix: &'a str,
}

impl ProcDirectory<'_> {
    /// Reads the mount table of the process.
    pub(in crate::capture) fn read_mounts(self) -> io::Result<Vec<Mount>> {
        let path = format!("{}/mountinfo", self.prefix);
        let mut text = Vec::new();
        let mounts = openat(self.directory, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        File::from(mounts).read_to_end(&mut text)?;
        table::parse(&text)
    }

    fn stat_root(self) -> io::Result<Statx> {
        Ok(statx(self.directory, format!("{}/root", self.prefix), AtFlags::empty(), StatxFlags::INO)?)
    }
}

/// Returns the directory of this node that is the root of a process with its own mounts. `None` if that is the node's root,
/// or if no path of the node in UTF-8 leads to it.
///
/// # Errors
/// As reading `mountinfo`, and statx(2) of `/proc/PID/root`.
pub(in crate::capture) fn find_root_on_node(process: ProcDirectory<'_>) -> io::Result<Option<PathBuf>> {
    // Nearly all processes have the node's root. For these, do not read the mount table.
    if is_same_on_node(Path::new("/"), &process.stat_root()?) {
        return Ok(None);
    }
    find_root_among(process, &process.read_mounts()?)
}

/// As `find_root_on_node`. `mounts`: the mount table of the process.
///
/// # Errors
/// As `find_root_on_node`.
pub(in crate::capture) fn find_root_among(process: ProcDirectory<'_>, mounts: &[Mount]) -> io::Result<Option<PathBuf>> {
    let found = process.stat_root()?;
    if is_same_on_node(Path::new("/"), &found) {
        return Ok(None);
    }
    let visible = table::visible_mounts(mounts);
    let Some(root) = visible.iter().find(|mount| mount.point == *"/") else { return Ok(None) };
    let candidates = candidate_paths(root, &table::read_own_mounts()?);
    Ok(candidates.into_iter().find(|path| path.to_str().is_some() && is_same_on_node(path, &found)))
}

/// Whether this node has the same file at a path. `found`: the statx(2) result of the file.
pub(in crate::capture) fn is_same_on_node(path: &Path, found: &Statx) -> bool {
    let identity = |found: &Statx| (found.stx_dev_major, found.stx_dev_minor, found.stx_ino);
    statx(CWD, path, AtFlags::empty(), StatxFlags::INO).is_ok_and(|on_node| identity(&on_node) == identity(found))
}

/// The paths at which a mount table may show the directory that `root` mounts. Another mount may hide a path.
fn candidate_paths(root: &Mount, node_mounts: &[Mount]) -> Vec<PathBuf> {
    let of_device = node_mounts.iter().filter(|mount| mount.device == root.device);
    of_device.filter_map(|mount| Some(mount.point.join(root.root.strip_prefix(&mount.root).ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "\
27 1 254:0 / / rw - ext4 /dev/vda rw
44 27 254:0 /srv/elsewhere /data rw - ext4 /dev/vda rw
46 27 0:51 / /mnt/image rw - tmpfs t rw
";

    fn candidates(line: &str) -> Vec<PathBuf> {
        let root = table::parse(line.as_bytes()).unwrap().remove(0);
        candidate_paths(&root, &table::parse(NODE.as_bytes()).unwrap())
    }

    #[test]
    fn a_directory_is_found_below_each_mount_that_shows_it() {
        let paths = |texts: &[&str]| texts.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(candidates("90 80 254:0 /srv/image / rw - ext4 /dev/vda rw"), paths(&["/srv/image"]));
        let both = candidates("90 80 254:0 /srv/elsewhere/image / rw - ext4 /dev/vda rw");
        assert_eq!(both, paths(&["/srv/elsewhere/image", "/data/image"]));
        assert_eq!(candidates("90 80 0:51 /a / rw - tmpfs t rw"), paths(&["/mnt/image/a"]));
        assert!(candidates("90 80 0:99 / / rw - overlay o rw").is_empty());
    }

    #[test]
    fn the_nodes_own_root_has_no_path() {
        let process = ProcDirectory { directory: CWD, prefix: "/proc/self" };
        assert_eq!(find_root_on_node(process).unwrap(), None);
    }
}
