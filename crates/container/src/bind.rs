//! Binds files of the node into an existing container.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use farfork_sys::mount::{self, MountDepth};
use farfork_sys::namespace;

use crate::config::RootSpec;
use crate::root::{self, PRIVATE_DIR};

/// Copies the node's mounts at `host_path` and attaches them at `inside_path` in the mount namespace of a container. A
/// temporary thread enters that namespace. `init` is the pidfd of the container's init. `users` is the container's user
/// namespace, if it has its own; the bound files get its id mappings.
pub(crate) fn bind(
    init: &OwnedFd,
    users: Option<BorrowedFd<'_>>,
    spec: RootSpec,
    host_path: &Path,
    inside_path: &Path,
    masked: &[PathBuf],
) -> io::Result<()> {
    check_inside_path(inside_path)?;
    let host_path = host_path.canonicalize()?;
    if masked.iter().any(|path| host_path.starts_with(path)) {
        return Err(invalid_path("the path on the node belongs to the daemon"));
    }
    if let Ok(below) = Path::new(PRIVATE_DIR).strip_prefix(inside_path)
        && !host_path.join(below).is_dir()
    {
        return Err(invalid_path(
            "it would cover /run/farfork, which does not exist there; create the directory on the node first",
        ));
    }
    let tree = mount::clone_mount(&host_path, MountDepth::Recursive)?;
    if let Some(users) = users {
        root::set_idmap(tree.as_fd(), users)?;
    }
    let kind = fs::metadata(&host_path)?.file_type();
    let hidden: Vec<PathBuf> =
        masked.iter().filter_map(|path| Some(inside_path.join(path.strip_prefix(&host_path).ok()?))).collect();
    let attach = || attach_inside(tree.as_fd(), kind.is_dir(), spec, inside_path, &hidden);
    namespace::run_in_mounts_of(init.as_fd(), attach)
}

/// Attaches `tree` at `point` in the calling thread's mount namespace, which is the container's. Masks the paths in
/// `hidden`.
fn attach_inside(
    tree: BorrowedFd<'_>,
    is_directory: bool,
    spec: RootSpec,
    point: &Path,
    hidden: &[PathBuf],
) -> io::Result<()> {
    make_mount_target(point, is_directory, spec)?;
    // The new mount may cover the private directory. The container keeps that directory, so attach a copy of it afterwards.
    let private = Path::new(PRIVATE_DIR);
    let private_mount =
        private.starts_with(point).then(|| mount::clone_mount(private, MountDepth::Single)).transpose()?;
    mount::attach(tree, point)?;
    // The copy is still in the peer group of the node's mount: mounts below one of the two would propagate to the
    // other.
    mount::make_private(point)?;
    for path in hidden {
        root::mask_path(path, RootSpec::Shared).map_err(io::Error::other)?;
    }
    match private_mount {
        Some(private_mount) => mount::attach(private_mount.as_fd(), private),
        None => Ok(()),
    }
}

/// Creates the directory or file that the mount will cover. In the node's own root nothing is created.
fn make_mount_target(point: &Path, is_directory: bool, spec: RootSpec) -> io::Result<()> {
    if let Ok(existing) = fs::metadata(point) {
        return match existing.is_dir() == is_directory {
            true => Ok(()),
            false => Err(invalid_path(
                "a directory can cover only a directory, and a file only a file; name a path that the child does not have",
            )),
        };
    }
    if spec == RootSpec::Shared {
        return Err(invalid_path("the path does not exist in the shared root; make it on the node first"));
    }
    let directory = if is_directory { Some(point) } else { point.parent() };
    directory.map_or(Ok(()), fs::create_dir_all).map_err(|cause| match cause.kind() {
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            invalid_path("a part of the path in the container is a file; name another path")
        }
        _ => cause,
    })?;
    if is_directory { Ok(()) } else { File::create_new(point).map(drop) }
}

fn check_inside_path(path: &Path) -> io::Result<()> {
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if !path.is_absolute() || !path.components().all(plain) {
        return Err(invalid_path("the path in the container must be absolute and without `..`"));
    }
    match path.to_str() {
        Some("/") => Err(invalid_path("the whole root cannot be covered; share it instead")),
        Some("/proc") => Err(invalid_path("/proc belongs to the container and cannot be covered")),
        _ => Ok(()),
    }
}

fn invalid_path(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
