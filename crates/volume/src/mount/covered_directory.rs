//! The directory that a mount covers. It can be immutable while a volume is mounted on it. After `umount -l`, or when the
//! mount has ended, programs that open their files again then get errors. Otherwise, they would write to the local file
//! system.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use farfork_sys::mount::{MountDepth, clone_mount};
use rustix::fs::{
    CWD, IFlags, Mode, OFlags, XattrFlags, fgetxattr, fremovexattr, fsetxattr, ioctl_getflags, ioctl_setflags, openat,
};
use rustix::io::Errno;

use super::device::has_volume_mount;

/// Extended attribute of a directory that [`protect_covered_directory`] has made immutable. It distinguishes this flag from one
/// of the administrator, also after the supervisor was killed.
const PROTECTION_MARK: &CStr = c"trusted.farfork.protected";

/// Makes the directory immutable that a mount at a path covers, or will cover.
///
/// # Errors
/// ENOTTY or EOPNOTSUPP if the file system has no such flag, or no trusted extended attributes.
pub fn protect_covered_directory(mount_point: &Path) -> io::Result<()> {
    let directory = open_covered(mount_point)?;
    let flags = ioctl_getflags(&directory)?;
    if flags.contains(IFlags::IMMUTABLE) {
        return Ok(());
    }
    // The mark is set first: an immutable directory gets no attributes. A mark without the flag is harmless.
    fsetxattr(&directory, PROTECTION_MARK, b"", XattrFlags::empty())?;
    if let Err(error) = ioctl_setflags(&directory, flags | IFlags::IMMUTABLE) {
        let _ = fremovexattr(&directory, PROTECTION_MARK);
        return Err(error.into());
    }
    Ok(())
}

/// Ends the protection of a directory, if no volume is mounted on it. Returns whether it was protected.
///
/// # Errors
/// As open(2), and ioctl(2) with FS_IOC_SETFLAGS.
pub fn release_covered_directory(mount_point: &Path) -> io::Result<bool> {
    if has_volume_mount(mount_point)? {
        return Ok(false);
    }
    let directory = open_covered(mount_point)?;
    match fgetxattr(&directory, PROTECTION_MARK, &mut [0; 0][..]) {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(false),
        other => _ = other?,
    }
    let flags = ioctl_getflags(&directory)?;
    ioctl_setflags(&directory, flags - IFlags::IMMUTABLE)?;
    match fremovexattr(&directory, PROTECTION_MARK) {
        // The supervisor and `farfork volume umount` may do this at the same time.
        Ok(()) | Err(Errno::NODATA) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Opens the directory at a path, or the one below the volume that is mounted there: a copy of the parent's mount has no other
/// mounts on it.
fn open_covered(mount_point: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let names = mount_point.parent().zip(mount_point.file_name());
    if let Some((parent, name)) = names.filter(|_| has_volume_mount(mount_point).unwrap_or(false)) {
        let parent = clone_mount(parent, MountDepth::Single)?;
        return Ok(openat(parent, name, flags, Mode::empty())?);
    }
    Ok(openat(CWD, mount_point, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn a_protected_directory_gets_no_files() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        for _ in 0..2 {
            // Both are idempotent.
            protect_covered_directory(directory.path()).unwrap();
            protect_covered_directory(directory.path()).unwrap();
            assert_eq!(fs::write(&file, b"").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            assert!(release_covered_directory(directory.path()).unwrap());
            assert!(!release_covered_directory(directory.path()).unwrap());
            fs::write(&file, b"").unwrap();
            fs::remove_file(&file).unwrap();
        }
    }

    #[test]
    fn the_flag_of_an_administrator_stays() {
        let directory = tempfile::tempdir().unwrap();
        let opened = File::open(directory.path()).unwrap();
        let flags = ioctl_getflags(&opened).unwrap();
        ioctl_setflags(&opened, flags | IFlags::IMMUTABLE).unwrap();
        protect_covered_directory(directory.path()).unwrap();
        let was_released = release_covered_directory(directory.path());
        let is_immutable = ioctl_getflags(&opened).unwrap().contains(IFlags::IMMUTABLE);
        ioctl_setflags(&opened, flags).unwrap();
        assert!(!was_released.unwrap() && is_immutable);
    }
}
