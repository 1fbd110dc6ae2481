//! Mounts: creates file systems and clones mount trees, both detached, then attaches them in the calling thread's mount
//! namespace. The caller decides which mounts a container needs.

pub mod point;
pub mod probe;
pub mod table;
pub mod watch;

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, statfs};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags, fsconfig_create, fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
    fspick, mount_change, mount_remount, move_mount, open_tree, unmount,
};

use self::table::Attributes;

/// The maximal length of the kernel's message about a file system that it could not create.
const MESSAGE_BYTES_MAX: usize = 4096;

/// Whether an operation on a mount includes the mounts on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountDepth {
    /// One mount, without the mounts on it.
    Single,
    /// A mount and all mounts on it.
    Recursive,
}

/// Creates a file system of type `name` with these options, and a mount of it that is not attached. If the mount is never
/// attached, it ends when the descriptor is closed. An option with an empty value is a flag.
///
/// # Errors
/// As fsopen(2), fsconfig(2), fsmount(2), with the kernel's own message if there is one.
pub fn create_filesystem(name: &str, options: &[(&str, &str)], attributes: Attributes) -> io::Result<OwnedFd> {
    let context = fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC)?;
    configure(context.as_fd(), options).map_err(|errno| with_message(errno, context.as_fd()))?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(|errno| with_message(errno, context.as_fd()))
}

fn configure(context: BorrowedFd<'_>, options: &[(&str, &str)]) -> rustix::io::Result<()> {
    for (key, value) in options {
        match value.is_empty() {
            true => fsconfig_set_flag(context, *key)?,
            false => fsconfig_set_string(context, *key, *value)?,
        }
    }
    fsconfig_create(context)
}

/// Adds the kernel's message from the file system's context (`e overlay: ...`) to an error.
fn with_message(errno: rustix::io::Errno, context: BorrowedFd<'_>) -> io::Error {
    let mut message = [0; MESSAGE_BYTES_MAX];
    let error = io::Error::from(errno);
    match rustix::io::read(context, &mut message) {
        Ok(length) if length > 0 => {
            let text = String::from_utf8_lossy(&message[..length]);
            io::Error::new(error.kind(), format!("{error}: {}", text.trim()))
        }
        _ => error,
    }
}

/// The mount source of all file systems that are created for containers. It identifies them in mount tables.
pub const SOURCE: &str = "farfork";

/// Creates an overlay of `upper` over `lower`; `work` is an empty directory on the file system of `upper`. All three
/// directories must be reachable in the calling thread's mount namespace.
///
/// # Errors
/// As [`create_filesystem`]; `InvalidInput` if a path is not UTF-8, as [`create_filesystem`] requires of options.
pub fn overlay(lower: &Path, upper: &Path, work: &Path, attributes: Attributes) -> io::Result<OwnedFd> {
    let text = |path: &Path| Ok::<_, io::Error>(path.to_str().ok_or(io::ErrorKind::InvalidInput)?.to_owned());
    // `lowerdir` is a colon-separated list, so its path is escaped. The other paths are not lists.
    let lower = text(lower)?.replace('\\', "\\\\").replace(':', "\\:");
    let (upper, work) = (text(upper)?, text(work)?);
    let options = [("source", SOURCE), ("lowerdir", &lower), ("upperdir", &upper), ("workdir", &work)];
    create_filesystem("overlay", &options, attributes)
}

/// Whether a file or directory is on an overlay.
///
/// # Errors
/// As statfs(2).
pub fn is_on_overlay(path: &Path) -> io::Result<bool> {
    /// OVERLAYFS_SUPER_MAGIC of linux/magic.h.
    const OVERLAY_TYPE: u64 = 0x794c_7630;
    Ok(u64::try_from(statfs(path)?.f_type).is_ok_and(|found| found == OVERLAY_TYPE))
}

/// Clones the mount at `path`. The clone is not attached.
///
/// # Errors
/// As open_tree(2).
pub fn clone_mount(path: &Path, depth: MountDepth) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if depth == MountDepth::Recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    Ok(open_tree(CWD, path, flags)?)
}

/// Attaches a mount from [`create_filesystem`] or [`clone_mount`] at `point`.
///
/// # Errors
/// As move_mount(2).
pub fn attach(mount: BorrowedFd<'_>, point: &Path) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS;
    Ok(move_mount(mount, "", CWD, point, flags)?)
}

/// Like [`attach`], but beneath the mount that is at `point` now. Programs see no change until that mount is unmounted.
///
/// # Errors
/// As move_mount(2): EINVAL before Linux 6.5, and if no mount is at `point`.
pub fn attach_beneath(mount: BorrowedFd<'_>, point: &Path) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_BENEATH;
    Ok(move_mount(mount, "", CWD, point, flags)?)
}

/// Maps the owners of the files of a mount from [`clone_mount`], and of all mounts on it, by the id mappings of the user
/// namespace `users`. A file that id 0 owns on the file system then belongs to the user with id 0 in that namespace.
///
/// # Errors
/// As mount_setattr(2): EINVAL if a file system does not support it.
pub fn set_idmap(mount: BorrowedFd<'_>, users: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid mount_attr, a plain C struct of numbers.
    let mut wanted: libc::mount_attr = unsafe { std::mem::zeroed() };
    wanted.attr_set = libc::MOUNT_ATTR_IDMAP;
    wanted.userns_fd = users.as_raw_fd() as u64;
    set_attributes(mount, &wanted)
}

/// Makes a mount from [`clone_mount`], and all mounts on it, read-only.
///
/// # Errors
/// As mount_setattr(2).
pub fn make_read_only(mount: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid mount_attr, a plain C struct of numbers.
    let mut wanted: libc::mount_attr = unsafe { std::mem::zeroed() };
    wanted.attr_set = libc::MOUNT_ATTR_RDONLY;
    set_attributes(mount, &wanted)
}

fn set_attributes(mount: BorrowedFd<'_>, wanted: &libc::mount_attr) -> io::Result<()> {
    let (path, flags) = (c"".as_ptr(), libc::AT_EMPTY_PATH | libc::AT_RECURSIVE);
    // SAFETY: both descriptors are open; the kernel reads an empty text, and one mount_attr of this frame.
    let done = unsafe {
        libc::syscall(libc::SYS_mount_setattr, mount.as_raw_fd(), path, flags, wanted, size_of::<libc::mount_attr>())
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes the mount at `point`, and all mounts on it, private: mounts no longer propagate from or to other namespaces.
///
/// # Errors
/// As mount(2).
pub fn make_private(point: &Path) -> io::Result<()> {
    Ok(mount_change(point, MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?)
}

/// Replaces the restrictions of the mount at `point` by `attributes` (read-only, nosuid, nodev, noexec).
///
/// # Errors
/// As mount(2): EBUSY for read-only if a file is open for writing.
pub fn restrict(point: &Path, attributes: Attributes) -> io::Result<()> {
    let mut flags = MountFlags::BIND;
    for (attribute, flag) in [
        (Attributes::MOUNT_ATTR_RDONLY, MountFlags::RDONLY),
        (Attributes::MOUNT_ATTR_NOSUID, MountFlags::NOSUID),
        (Attributes::MOUNT_ATTR_NODEV, MountFlags::NODEV),
        (Attributes::MOUNT_ATTR_NOEXEC, MountFlags::NOEXEC),
    ] {
        flags.set(flag, attributes.contains(attribute));
    }
    Ok(mount_remount(point, flags, "")?)
}

/// Drops the cached directory entries of the file system mounted at `point`, including negative ones. Entries in use stay
/// cached. The options of the file system do not change.
///
/// # Errors
/// As fspick(2), fsconfig(2).
pub fn drop_dentry_cache(point: &Path) -> io::Result<()> {
    // A reconfiguration drops the cached entries. Without new options it changes nothing else.
    let context = fspick(CWD, point, FsPickFlags::FSPICK_CLOEXEC)?;
    fsconfig_reconfigure(context.as_fd()).map_err(|errno| with_message(errno, context.as_fd()))
}

/// Unmounts the topmost mount at `point`. A `point` that is a symbolic link is not followed.
///
/// # Errors
/// As umount2(2): EBUSY if a process uses it.
pub fn unmount_unused(point: &Path) -> io::Result<()> {
    Ok(unmount(point, UnmountFlags::NOFOLLOW)?)
}

/// Detaches the mount at `point` and all mounts on it. Each mount ends when it has no more users.
///
/// # Errors
/// As umount2(2).
pub fn detach(point: &Path) -> io::Result<()> {
    Ok(unmount(point, UnmountFlags::DETACH)?)
}
