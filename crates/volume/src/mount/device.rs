//! Mounts a FUSE file system without fusermount(1): the caller is root in its mount namespace.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use farfork_sys::mount::probe::{VOLUME_FILESYSTEM, VOLUME_SOURCE_PREFIX};
use farfork_sys::mount::table::{Attributes, read_thread_mounts};
use farfork_sys::mount::{attach, attach_beneath, create_filesystem};
use rustix::fs::{CWD, Mode, OFlags, openat, statvfs};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

/// A mount that ends when this value is dropped.
#[derive(Debug)]
pub struct MountPoint {
    path: PathBuf,
}

impl MountPoint {
    /// `major:minor` of the file system, by which the mount tables of all processes identify it.
    ///
    /// # Errors
    /// As reading the mounts in proc(5); `NotFound` if it was unmounted.
    pub fn device(&self) -> io::Result<String> {
        let mounts = read_thread_mounts()?;
        let mount = mounts.into_iter().rfind(|mount| mount.point == self.path && mount.is_volume());
        mount.map(|mount| mount.device).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Leaves the mount in place. Another process unmounts it. To unmount the path later could end a newer mount.
    pub fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        // An error means that it is unmounted already.
        let _ = unmount(&self.path, UnmountFlags::DETACH);
    }
}

/// Detaches the mounts of clients that died, and no others. statfs(2) finds them: it always needs the client, while the
/// kernel answers stat(2) from its cache.
pub fn detach_dead_mounts(path: &Path) {
    while is_dead(path) {
        if unmount(path, UnmountFlags::DETACH).is_err() {
            return;
        }
    }
}

/// Ends the connection between the kernel and the client of the mount at a path: calls of programs fail from now on, and
/// threads of the client no longer wait in the kernel. The mount stays.
///
/// # Errors
/// `NotFound` if no volume is mounted at the path; otherwise as open(2).
pub fn abort_mount(path: &Path) -> io::Result<()> {
    let mounts = read_thread_mounts()?;
    let top = mounts.iter().rfind(|mount| mount.point == path);
    if top.is_none_or(|mount| !mount.is_volume()) {
        return Err(io::ErrorKind::NotFound.into());
    }
    // MNT_FORCE aborts the connection first, and then finds the mount in use.
    let _in_use = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    match unmount(path, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The effect of an unmount on programs that use the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmountMode {
    /// The volume stays mounted, and the call fails with EBUSY.
    RefuseBusy,
    /// Their calls fail. This includes waiting calls that no signal ends.
    AbortCalls,
}

/// Unmounts the volume at a path, and dead mounts below it.
///
/// # Errors
/// As umount2(2).
pub fn unmount_volume(path: &Path, mode: UnmountMode) -> io::Result<()> {
    while has_volume_mount(path)? {
        let flags = match mode {
            UnmountMode::RefuseBusy => UnmountFlags::NOFOLLOW,
            UnmountMode::AbortCalls => {
                abort_mount(path)?;
                UnmountFlags::DETACH | UnmountFlags::NOFOLLOW
            }
        };
        match unmount(path, flags) {
            // The supervisor has detached the aborted mount.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Whether a volume is mounted at a path, even if its client has died.
///
/// # Errors
/// As reading the mounts in proc(5).
pub fn has_volume_mount(path: &Path) -> io::Result<bool> {
    let mounts = read_thread_mounts()?;
    Ok(mounts.iter().any(|mount| mount.point == path && mount.is_volume()))
}

/// A volume that is mounted at a path.
#[derive(Debug)]
pub struct MountPointVolume {
    /// The name of the volume.
    pub name: String,
    /// The client of the mount has ended, so all calls on it fail.
    pub is_dead: bool,
}

/// Finds the volume that is mounted at a path: the topmost one of several.
///
/// # Errors
/// As reading the mounts in proc(5).
pub fn find_mounted_volume(path: &Path) -> io::Result<Option<MountPointVolume>> {
    let mounts = read_thread_mounts()?;
    let mount = mounts.iter().rfind(|mount| mount.point == path && mount.is_volume());
    Ok(mount.map(|mount| {
        let name = mount.source.strip_prefix(VOLUME_SOURCE_PREFIX).unwrap_or(&mount.source);
        MountPointVolume { name: name.to_owned(), is_dead: is_dead(path) }
    }))
}

fn is_dead(path: &Path) -> bool {
    statvfs(path).is_err_and(|error| matches!(error, Errno::NOTCONN | Errno::CONNABORTED))
}

/// Mounts a volume, and returns the device that the session reads. The kernel checks permissions. The mount replaces a dead
/// one at the path, and programs never see the directory below.
///
/// # Errors
/// As open(2) of `/dev/fuse` and mount(2).
pub fn mount_volume(name: &str, path: &Path) -> io::Result<(OwnedFd, MountPoint)> {
    let has_dead_mount = is_dead(path);
    let path = if has_dead_mount { path.to_owned() } else { path.canonicalize()? };
    let device: File = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let mount = create_mount(name, &device)?;
    match has_dead_mount {
        true => replace_dead_mount(mount.as_fd(), &path)?,
        false => attach(mount.as_fd(), &path)?,
    }
    Ok((device.into(), MountPoint { path }))
}

fn create_mount(name: &str, device: &File) -> io::Result<OwnedFd> {
    let (device, source) = (device.as_raw_fd().to_string(), format!("{VOLUME_SOURCE_PREFIX}{name}"));
    let (kernel_type, subtype) = VOLUME_FILESYSTEM.split_once('.').unwrap_or((VOLUME_FILESYSTEM, "farfork"));
    let options = [
        ("source", source.as_str()),
        ("subtype", subtype),
        ("fd", &device),
        ("rootmode", "40000"),
        ("user_id", "0"),
        ("group_id", "0"),
        ("default_permissions", ""),
        ("allow_other", ""),
    ];
    let attributes = Attributes::MOUNT_ATTR_NODEV | Attributes::MOUNT_ATTR_NOSUID | Attributes::MOUNT_ATTR_NOATIME;
    create_filesystem(kernel_type, &options, attributes)
}

/// Attaches the new mount beneath the dead one, then detaches the dead one: programs get ENOTCONN until they see the new
/// mount. In the other order, programs would briefly see the directory below, and could write to it. A mount on top would
/// leave the dead one in the mount table, because umount(2) reaches only the topmost mount of a path.
fn replace_dead_mount(mount: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    if attach_beneath(mount, path).is_err() {
        // The dead mount stays below until the supervisor ends.
        return attach(mount, path);
    }
    // Does not call `detach_dead_mounts`: its statfs(2) of the new mount would wait for this process.
    Ok(unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?)
}
