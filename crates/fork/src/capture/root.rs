//! Where the paths of a tree begin: at the root of its first process (chroot(2)), as its children's do at that of their container.
//! A descendant may take a directory below it for its own root; whatever has a path of it has one from here.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, open, openat2, statx};

/// The root of a tree's first process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Root<'a> {
    /// The first process.
    pub(super) pid: i32,
    /// As we see it.
    pub(super) path: &'a str,
}

impl Root<'_> {
    /// A path of the kernel's, which begins at our root, as the tree sees it.
    pub(super) fn strip<'p>(&self, path: &'p str) -> &'p str {
        self.below(path).unwrap_or(path)
    }

    /// Where we find what the tree has at a path.
    pub(super) fn shows(&self, path: &Path) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.pid)).join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Whether the tree finds a directory at a path, whatever links lead there.
    pub(super) fn has_directory(&self, path: &Path) -> bool {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(self.shows(Path::new("/")), flags, Mode::empty());
        root.is_ok_and(|root| openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT).is_ok())
    }

    /// Where the tree finds what a descendant takes for its root, to which its link in /proc leads; or why it does not. `None` where
    /// both have the same.
    pub(super) fn place_of(&self, pid: i32, link: &str) -> Result<Option<String>, String> {
        if link == self.path {
            return Ok(None);
        }
        let Some(place) = self.below(link) else {
            return Err(format!(
                "its root {link} (chroot) is not below that of pid {}, from which it descends; that is not carried",
                self.pid
            ));
        };
        let own = identity(Path::new(&format!("/proc/{pid}/root")));
        match (identity(&self.shows(Path::new(place))), own) {
            (Ok(found), Ok(own)) if found == own => Ok(Some(place.to_owned())),
            _ => Err(format!(
                "its root {link} (chroot) was removed, or is covered by a mount, so that no path leads there; that is not carried"
            )),
        }
    }

    fn below<'p>(&self, path: &'p str) -> Option<&'p str> {
        match path.strip_prefix(self.path) {
            _ if self.path == "/" => Some(path),
            Some("") => Some("/"),
            below => below.filter(|below| below.starts_with('/')),
        }
    }
}

/// A directory, and the mount that it is reached by.
fn identity(path: &Path) -> io::Result<(u32, u32, u64, u64)> {
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::INO | StatxFlags::MNT_ID)?;
    Ok((found.stx_dev_major, found.stx_dev_minor, found.stx_ino, found.stx_mnt_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen_from<'p>(root: &str, path: &'p str) -> &'p str {
        Root { pid: 1, path: root }.strip(path)
    }

    #[test]
    fn paths_are_seen_from_the_first_processes_root() {
        assert_eq!(seen_from("/", "/usr/bin/x"), "/usr/bin/x");
        assert_eq!(seen_from("/jail", "/jail/bin/x"), "/bin/x");
        assert_eq!(seen_from("/jail", "/jail"), "/");
        assert_eq!(seen_from("/jail", "/jailer/x"), "/jailer/x");
    }

    #[test]
    fn a_root_must_be_where_its_path_leads() {
        let pid = std::process::id().cast_signed();
        let refused = |root: &str, link: &str| Root { pid, path: root }.place_of(pid, link).unwrap_err();
        assert_eq!(Root { pid, path: "/" }.place_of(pid, "/"), Ok(None));
        assert!(refused("/jail", "/").contains("not below"));
        assert!(refused("/", "/proc").contains("covered"));
        assert!(refused("/", "/nowhere").contains("removed"));
    }
}
