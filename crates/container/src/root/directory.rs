//! Makes a directory the root of a mount namespace, and keeps the kernel's file systems in it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use farfork_sys::mount::{self, MountDepth};
use farfork_sys::namespace;
use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
use rustix::io::Errno;

use super::PRIVATE_DIR;
use crate::config::RootSpec;

//  before                    after
//  /                         (detached)
//  /proc  /sys  /dev         /proc  /sys  /dev        with all mounts below them
//  /srv/image                /                        with all mounts below it
//
// Programs need the kernel's file systems. Nothing else of the old root stays visible.

/// Limit on attempts to look up a path with `..`. openat2(2) fails with EAGAIN if anything on the machine was mounted or
/// renamed during the lookup.
const RESOLVE_TRIES_MAX: usize = 100;

/// The directories of the kernel's file systems.
const KERNEL_DIRECTORIES: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Returns the node's path of a path without symbolic links, for a process whose root is the directory `root` of the node.
/// The kernel's file systems are at the same paths. Makes no system call.
pub fn path_on_node(root: &Path, path: &Path) -> PathBuf {
    if is_below_kernel_directory(path) {
        return path.to_owned();
    }
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Like [`path_on_node`], but follows symbolic links as the process does: an absolute link starts at `root`. With
/// `O_NOFOLLOW` in `flags`, a link at the end of the path is not followed. If `root` is the node's root, returns the path as
/// it is.
///
/// # Errors
/// As openat2(2): `NotFound` if the process does not find the file.
pub fn resolve_on_node(root: &Path, path: &Path, flags: OFlags) -> io::Result<PathBuf> {
    if root == Path::new("/") || is_below_kernel_directory(path) {
        return Ok(path.to_owned());
    }
    let directory = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    let found = open_in_root(directory.as_fd(), path, flags, Mode::empty())?;
    fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

/// Opens a path below `root`, out of which no symbolic link leads.
///
/// # Errors
/// As openat2(2).
pub(crate) fn open_in_root(root: BorrowedFd<'_>, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let mut tries = (0..RESOLVE_TRIES_MAX).map(|_| openat2(root, path, flags, mode, resolve));
    let settled = tries.find(|opened| !matches!(opened, Err(Errno::AGAIN)));
    Ok(settled.unwrap_or(Err(Errno::AGAIN))?)
}

fn is_below_kernel_directory(path: &Path) -> bool {
    KERNEL_DIRECTORIES.iter().any(|directory| path.starts_with(directory))
}

/// The treatment of a missing mount point for a mount that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingPoint {
    /// Create the mount point.
    Create,
    /// Return an error that names the mount point.
    Refuse,
}

/// Makes `directory` the root of the calling thread and of a program that it executes, for `farfork run --root`. The thread
/// gets its own mount namespace, whose mounts are private. `/proc`, `/sys` and `/dev` stay at their paths.
///
/// # Errors
/// `NotFound` or `NotADirectory` with the missing path; as unshare(2), mount(2) and pivot_root(2).
pub fn enter_own_root(directory: &Path) -> io::Result<()> {
    let directory = fs::canonicalize(directory)?;
    namespace::unshare_mounts()?;
    mount::make_private(Path::new("/"))?;
    enter_directory(&directory, &KERNEL_DIRECTORIES, MissingPoint::Refuse)
}

/// Makes `directory` the root of a container with the root `spec`. The path of `directory` has no symbolic links. A
/// temporary thread enters the mount namespace of the container's init, whose pidfd is `init`. The container's private
/// directory stays at its path.
pub(crate) fn change_root(init: &OwnedFd, directory: &Path, spec: RootSpec) -> io::Result<()> {
    let kept = [&KERNEL_DIRECTORIES[..], &[PRIVATE_DIR]].concat();
    namespace::run_in_mounts_of(init.as_fd(), || {
        if fs::canonicalize(directory)? != directory {
            return Err(io::Error::other("its path was replaced during the fork (fork again)"));
        }
        let on_missing = match spec {
            // The directory is created in the layer of the overlay.
            RootSpec::Overlay if mount::is_on_overlay(directory)? => MissingPoint::Create,
            // The mount point would be created in the node's file system, or on a volume.
            RootSpec::Overlay | RootSpec::Shared => MissingPoint::Refuse,
        };
        enter_directory(directory, &kept, on_missing)
    })
}

/// Makes `directory` the root of the calling thread's mount namespace, which must be its own and private. Copies the mounts
/// of the `kept` paths, and all mounts below them, to the same paths of the new root.
fn enter_directory(directory: &Path, kept: &[&str], on_missing: MissingPoint) -> io::Result<()> {
    let root = mount::clone_mount(directory, MountDepth::Recursive)?;
    let mounts = kept.iter().map(|path| Ok((*path, mount::clone_mount(Path::new(path), MountDepth::Recursive)?)));
    let mounts = mounts.collect::<io::Result<Vec<_>>>()?;
    mount::attach(root.as_fd(), directory)?;
    for (path, kept_mount) in &mounts {
        require_point(directory, path, on_missing)?;
        mount::attach(kept_mount.as_fd(), &path_below(directory, path))?;
    }
    namespace::pivot_to(directory)
}

fn path_below(directory: &Path, path: &str) -> PathBuf {
    directory.join(path.trim_start_matches('/'))
}

/// Checks that the mount point `path` below `directory` and its parents are directories. A symbolic link could lead out of
/// the new root.
fn require_point(directory: &Path, path: &str, on_missing: MissingPoint) -> io::Result<()> {
    let mut point = directory.to_owned();
    for name in Path::new(path).components().filter(|component| *component != Component::RootDir) {
        point.push(name);
        let shown = || Path::new("/").join(point.strip_prefix(directory).unwrap_or(&point)).display().to_string();
        match fs::symlink_metadata(&point) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => {
                let text = format!("its {} is not a directory; replace it by an empty directory", shown());
                return Err(io::Error::new(io::ErrorKind::NotADirectory, text));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) if on_missing == MissingPoint::Create => fs::create_dir(&point)
                .map_err(|error| io::Error::new(error.kind(), format!("it has no directory {}: {error}", shown())))?,
            Err(_) => {
                let text = format!("it has no directory {path}; create an empty one");
                return Err(io::Error::new(io::ErrorKind::NotFound, text));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A directory with mount points, and what a thread finds in its new root.
    fn entered(points: &[&str], on_missing: MissingPoint) -> io::Result<Vec<String>> {
        let directory = tempfile::tempdir().unwrap();
        points.iter().for_each(|point| fs::create_dir_all(directory.path().join(point)).unwrap());
        fs::write(directory.path().join("file"), "").unwrap();
        let body = || {
            namespace::unshare_mounts()?;
            mount::make_private(Path::new("/"))?;
            enter_directory(&fs::canonicalize(directory.path())?, &KERNEL_DIRECTORIES, on_missing)?;
            assert!(Path::new("/proc/thread-self").exists() && Path::new("/dev/null").exists());
            let mut names: Vec<String> =
                fs::read_dir("/")?.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            Ok(names)
        };
        std::thread::scope(|scope| scope.spawn(body).join().unwrap())
    }

    #[test]
    fn a_directory_becomes_the_root() {
        let names = entered(&["proc", "sys", "dev"], MissingPoint::Refuse).unwrap();
        assert_eq!(names, ["dev", "file", "proc", "sys"]);
        assert_eq!(entered(&[], MissingPoint::Create).unwrap(), names);
    }

    #[test]
    fn kernel_file_systems_are_outside_of_the_root() {
        let on_node = |path: &str| path_on_node(Path::new("/srv/image"), Path::new(path));
        assert_eq!(on_node("/usr/bin/true"), Path::new("/srv/image/usr/bin/true"));
        assert_eq!(on_node("/dev/null"), Path::new("/dev/null"));
        assert_eq!(on_node("/devices"), Path::new("/srv/image/devices"));
        assert_eq!(path_on_node(Path::new("/"), Path::new("/etc/passwd")), Path::new("/etc/passwd"));
    }

    #[test]
    fn symbolic_links_start_at_the_root() {
        let directory = tempfile::tempdir().unwrap();
        let (root, outside) = (directory.path().join("root"), directory.path().join("outside"));
        for parent in [&root.join("real"), &outside] {
            fs::create_dir_all(parent).unwrap();
            fs::write(parent.join("file"), "").unwrap();
        }
        symlink("/real", root.join("absolute")).unwrap();
        symlink(&outside, root.join("leads-out")).unwrap();
        symlink("real/file", root.join("link")).unwrap();
        let resolve = |path: &str| resolve_on_node(&root, Path::new(path), OFlags::empty());
        for path in ["/real/file", "/absolute/file", "/../absolute/../link", "/link"] {
            assert_eq!(resolve(path).unwrap(), root.join("real/file"), "{path}");
        }
        assert_eq!(resolve("/leads-out/file").unwrap_err().kind(), io::ErrorKind::NotFound);
        let link = resolve_on_node(&root, Path::new("/absolute/../link"), OFlags::NOFOLLOW);
        assert_eq!(link.unwrap(), root.join("link"));
        let of_node = resolve_on_node(Path::new("/"), &root.join("link"), OFlags::empty());
        assert_eq!(of_node.unwrap(), root.join("link"));
    }

    #[test]
    fn a_link_above_a_mount_point_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        symlink("/tmp", directory.path().join("run")).unwrap();
        let refused = require_point(directory.path(), PRIVATE_DIR, MissingPoint::Create).unwrap_err();
        assert!(refused.to_string().contains("its /run is not a directory"), "{refused}");
        fs::remove_file(directory.path().join("run")).unwrap();
        require_point(directory.path(), PRIVATE_DIR, MissingPoint::Create).unwrap();
        require_point(directory.path(), PRIVATE_DIR, MissingPoint::Refuse).unwrap();
    }

    #[test]
    fn a_missing_mount_point_is_named() {
        let error = entered(&["proc", "sys"], MissingPoint::Refuse).unwrap_err();
        assert!(error.to_string().contains("it has no directory /dev"), "{error}");
    }
}
