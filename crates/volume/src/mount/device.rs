//! mount(2) of a FUSE file system without the program fusermount: the caller is root in its mount namespace.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use farfork_sys::mount::probe::{VOLUME_FILESYSTEM, VOLUME_SOURCE_PREFIX};
use farfork_sys::mount::table::read_thread_mounts;
use rustix::fs::{CWD, Mode, OFlags, openat, statvfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// A mount that ends when this value is dropped.
#[derive(Debug)]
pub struct MountPoint {
    path: PathBuf,
}

impl MountPoint {
    /// The volume is unmounted already: whatever is mounted at the path now is another mount.
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

/// Detaches the mounts of clients that died, and no other. stat(2) would be answered from the kernel's cache; statfs(2)
/// asks the client.
pub fn detach_dead_mounts(path: &Path) {
    while is_dead(path) {
        if unmount(path, UnmountFlags::DETACH).is_err() {
            return;
        }
    }
}

/// Ends the connection between the kernel and the client of the mount at a path: calls of programs fail from now on, and the
/// kernel lets go of threads of the client. The mount stays.
///
/// # Errors
/// `NotFound` when no volume is mounted there; as open(2).
pub fn abort_mount(path: &Path) -> io::Result<()> {
    let mounts = read_thread_mounts()?;
    let top = mounts.iter().rfind(|mount| mount.point == path);
    if top.is_none_or(|mount| mount.filesystem != VOLUME_FILESYSTEM) {
        return Err(io::ErrorKind::NotFound.into());
    }
    // MNT_FORCE aborts the connection first, and then finds the mount in use.
    let _in_use = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    match unmount(path, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn is_dead(path: &Path) -> bool {
    statvfs(path).is_err_and(|error| matches!(error, Errno::NOTCONN | Errno::CONNABORTED))
}

/// Mounts a volume, and returns the device that the session reads. The kernel checks permissions. A dead mount at the path
/// stays below this one, until the supervisor ends: programs never see the directory below both.
///
/// # Errors
/// As open(2) of `/dev/fuse` and mount(2).
pub fn mount_volume(name: &str, path: &Path) -> io::Result<(OwnedFd, MountPoint)> {
    let path = if is_dead(path) { path.to_owned() } else { path.canonicalize()? };
    let device: File = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let options =
        format!("fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other", device.as_raw_fd());
    let options = CString::new(options).map_err(io::Error::other)?;
    let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME;
    mount(format!("{VOLUME_SOURCE_PREFIX}{name}"), &path, VOLUME_FILESYSTEM, flags, options.as_c_str())?;
    Ok((device.into(), MountPoint { path }))
}
