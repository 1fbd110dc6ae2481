//! mount(2) of a FUSE file system without the program fusermount: the caller is root in its mount namespace.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::statvfs;
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
    mount(format!("farfork:{name}"), &path, "fuse.farfork", flags, options.as_c_str())?;
    Ok((device.into(), MountPoint { path }))
}
