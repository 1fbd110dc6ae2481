//! The root from which the paths of a tree resolve: the root of its mount namespace. Paths of children resolve from the root
//! of their container. For a process with another root (chroot(2)), the path of that root is recorded.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use farfork_sys::namespace;
use farfork_sys::process::ProcStat;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, open, openat2, statx};

use crate::capture::error::{CaptureError, Refusal};
use crate::capture::files::{NO_PATH_REASON, path_identity};
use crate::capture::state::proc_link::read_proc_link;

/// A process in the tree's mount namespace whose root is the root of that namespace. The tree's paths are resolved through
/// its `/proc/PID/root`.
#[derive(Debug, Clone, Copy)]
pub(in crate::capture) struct TreeRoot {
    pub(in crate::capture) pid: i32,
}

impl TreeRoot {
    /// Finds a process with the root of the tree's mount namespace: the first process, else the nearest ancestor with it,
    /// else this process.
    pub(in crate::capture) fn find(first: i32) -> Result<Self, CaptureError> {
        let is_whole = |pid: i32| read_proc_link(pid, pid, "root").is_ok_and(|root| root == ROOT_PATH);
        if is_whole(first) {
            return Ok(Self { pid: first });
        }
        let namespace = |pid: i32| read_proc_link(pid, pid, "ns/mnt");
        let wanted = namespace(first)?;
        let parent = |pid: &i32| ProcStat::read(*pid).ok().map(|stat| stat.parent).filter(|parent| *parent > 0);
        let others = std::iter::successors(parent(&first), parent).chain([std::process::id().cast_signed()]);
        let shows = |pid: &i32| is_whole(*pid) && namespace(*pid).is_ok_and(|found| found == wanted);
        others.into_iter().find(shows).map(|pid| Self { pid }).ok_or_else(|| {
            let root = fs::metadata(format!("/proc/{first}/root"));
            let reason = match root.is_ok_and(|root| root.nlink() == 0) {
                true => "its root directory was removed; start it again in a directory that stays",
                false => "it has a root of its own (chroot) in a mount namespace whose root no ancestor of it has; that is not carried",
            };
            CaptureError::refused(first, vec![Refusal::new(format!("pid {first}"), reason)])
        })
    }

    /// Converts a path of the tree, without symbolic links, to a path in farfork's mount namespace.
    pub(in crate::capture) fn resolve(&self, path: &Path) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.pid)).join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Whether the tree has a directory at a path. Symbolic links are followed.
    pub(in crate::capture) fn has_directory(&self, path: &Path) -> bool {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(self.resolve(Path::new(ROOT_PATH)), flags, Mode::empty());
        root.is_ok_and(|root| openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT).is_ok())
    }

    /// Refuses a process whose root is not at the path `link` of the tree. `link` is the text of `/proc/PID/root`.
    pub(in crate::capture) fn refusal(&self, pid: i32, link: &str) -> Option<Refusal> {
        if link == ROOT_PATH {
            return None;
        }
        let own = directory_identity(Path::new(&format!("/proc/{pid}/root")));
        let is_there =
            matches!((directory_identity(&self.resolve(Path::new(link))), own), (Ok(found), Ok(own)) if found == own);
        let reason = format!(
            "its root {link} (chroot) was removed, or is covered by a mount, so that no path leads there; that is not carried"
        );
        (!is_there).then(|| Refusal::new(format!("pid {pid}"), reason))
    }
}

/// Refuses a current directory that is no longer at its path. Does not check processes in other mount namespaces. A removed
/// directory is carried.
pub(in crate::capture) fn refuse_current_directory(pid: i32) -> Option<Refusal> {
    let refuse = |reason: String| Some(Refusal::new(format!("pid {pid}, current directory"), reason));
    let link = format!("/proc/{pid}/cwd");
    let path = match fs::read_link(&link) {
        Ok(path) => path,
        Err(error) if error.kind() == io::ErrorKind::InvalidFilename => return refuse(LONG_PATH_REASON.to_owned()),
        Err(_) => return None,
    };
    let found = statx(CWD, &link, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::MNT_ID).ok()?;
    if found.stx_nlink == 0 {
        return None;
    }
    if path.to_str().is_none() {
        return refuse(format!("the path {} is not UTF-8", path.display()));
    }
    let is_ours = namespace::is_main_thread_namespace(CWD, &format!("/proc/{pid}/ns/mnt"));
    if is_ours && !path_identity::is_at_path(path.as_os_str().as_bytes(), &found) {
        return refuse(format!("{} {NO_PATH_REASON}", path.display()));
    }
    None
}

/// The kernel neither shows nor accepts such a path.
const LONG_PATH_REASON: &str = "its path is longer than 4,095 bytes (PATH_MAX), with which a child could not enter it; let the \
     process enter a directory with a shorter path first (chdir(2))";

/// The root of a process that has not called chroot(2).
pub(in crate::capture) const ROOT_PATH: &str = "/";

/// Identity of a directory, and the mount through which it is reached.
fn directory_identity(path: &Path) -> io::Result<(u32, u32, u64, u64)> {
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::INO | StatxFlags::MNT_ID)?;
    Ok((found.stx_dev_major, found.stx_dev_minor, found.stx_ino, found.stx_mnt_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_must_be_the_directory_at_its_path() {
        let pid = std::process::id().cast_signed();
        let root = TreeRoot::find(pid).unwrap();
        assert_eq!(root.refusal(pid, "/"), None);
        for elsewhere in ["/proc", "/nowhere"] {
            assert!(root.refusal(pid, elsewhere).unwrap().to_string().contains("no path leads there"));
        }
    }
}
