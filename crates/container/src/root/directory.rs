//! Makes a directory the root of a mount namespace, and keeps the kernel's file systems in it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use farfork_sys::mount::{self, MountDepth};
use farfork_sys::namespace;

use super::PRIVATE_DIR;

//  before                    after
//  /                         (detached)
//  /proc  /sys  /dev         /proc  /sys  /dev        with all mounts below them
//  /srv/image                /                        with all mounts below it
//
// Programs need the kernel's file systems. Nothing else of the old root stays visible.

/// The directories of the kernel's file systems.
const KERNEL_DIRECTORIES: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Returns the node's path of a file, for a process whose root is the directory `root` of the node. The kernel's file
/// systems are at the same paths.
pub fn path_on_node(root: &Path, path: &Path) -> PathBuf {
    if KERNEL_DIRECTORIES.iter().any(|directory| path.starts_with(directory)) {
        return path.to_owned();
    }
    root.join(path.strip_prefix("/").unwrap_or(path))
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
    namespace::unshare_mounts()?;
    mount::make_private(Path::new("/"))?;
    enter_directory(directory, &KERNEL_DIRECTORIES, MissingPoint::Refuse)
}

/// Makes `directory` the root of a container. A temporary thread enters the mount namespace of the container's init, whose
/// pidfd is `init`. The container's private directory stays at its path.
pub(crate) fn change_root(init: &OwnedFd, directory: &Path, on_missing: MissingPoint) -> io::Result<()> {
    let kept = [&KERNEL_DIRECTORIES[..], &[PRIVATE_DIR]].concat();
    namespace::run_in_mounts_of(init.as_fd(), || enter_directory(directory, &kept, on_missing))
}

/// Makes `directory` the root of the calling thread's mount namespace, which must be its own and private. Copies the mounts
/// of the `kept` paths, and all mounts below them, to the same paths of the new root.
fn enter_directory(directory: &Path, kept: &[&str], on_missing: MissingPoint) -> io::Result<()> {
    let directory = fs::canonicalize(directory)?;
    let root = mount::clone_mount(&directory, MountDepth::Recursive)?;
    let mounts = kept.iter().map(|path| Ok((*path, mount::clone_mount(Path::new(path), MountDepth::Recursive)?)));
    let mounts = mounts.collect::<io::Result<Vec<_>>>()?;
    mount::attach(root.as_fd(), &directory)?;
    for (path, kept_mount) in &mounts {
        let point = directory.join(path.trim_start_matches('/'));
        require_point(&point, path, on_missing)?;
        mount::attach(kept_mount.as_fd(), &point)?;
    }
    namespace::pivot_to(&directory)
}

/// Checks that a mount point is a directory. A symbolic link could lead out of the new root.
fn require_point(point: &Path, path: &str, on_missing: MissingPoint) -> io::Result<()> {
    match fs::symlink_metadata(point) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => {
            let text = format!("its {path} is not a directory; replace it by an empty directory");
            Err(io::Error::new(io::ErrorKind::NotADirectory, text))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Err(_) if on_missing == MissingPoint::Create => fs::create_dir_all(point),
        Err(_) => {
            let text = format!("it has no directory {path}; create an empty one");
            Err(io::Error::new(io::ErrorKind::NotFound, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with mount points, and what a thread finds in its new root.
    fn entered(points: &[&str], on_missing: MissingPoint) -> io::Result<Vec<String>> {
        let directory = tempfile::tempdir().unwrap();
        points.iter().for_each(|point| fs::create_dir_all(directory.path().join(point)).unwrap());
        fs::write(directory.path().join("file"), "").unwrap();
        let body = || {
            namespace::unshare_mounts()?;
            mount::make_private(Path::new("/"))?;
            enter_directory(directory.path(), &KERNEL_DIRECTORIES, on_missing)?;
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
    fn a_missing_mount_point_is_named() {
        let error = entered(&["proc", "sys"], MissingPoint::Refuse).unwrap_err();
        assert!(error.to_string().contains("it has no directory /dev"), "{error}");
    }
}
