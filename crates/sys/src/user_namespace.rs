//! User namespaces: mappings of user and group ids, and ranges of ids that nothing else on the machine uses.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

/// A range of user ids, and of equal group ids: from 0 on inside, and from `first` on outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// The id outside to which id 0 inside is mapped.
    pub first: u32,
    /// The number of ids.
    pub count: u32,
}

impl IdRange {
    /// Returns the id outside for an id inside; `None` if the id has no mapping.
    pub fn to_host(&self, inside: u32) -> Option<u32> {
        (inside < self.count).then(|| self.first + inside)
    }
}

/// Sets the id mappings of the user namespace of a process. This is possible only once.
///
/// # Errors
/// As write(2) on `/proc/PID/uid_map`: EPERM without CAP_SETUID outside, or a second time.
pub fn write_id_maps(pid: i32, numbers: IdRange) -> io::Result<()> {
    let IdRange { first, count } = numbers;
    let map = format!("0 {first} {count}");
    fs::write(format!("/proc/{pid}/uid_map"), &map)?;
    fs::write(format!("/proc/{pid}/gid_map"), &map)
}

/// Opens the user namespace of a process.
///
/// # Errors
/// As open(2).
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    Ok(File::open(format!("/proc/{pid}/ns/user"))?.into())
}

/// Locks one byte of a file, for the open file description. Processes that share the description share the lock, which ends
/// when the last of them closes it. Returns `false` if another description has it locked.
///
/// # Errors
/// As fcntl(2).
pub fn try_lock_byte(file: &File, at: u32) -> io::Result<bool> {
    // SAFETY: all-zero bytes are a valid flock, a plain C struct of numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = i64::from(at);
    lock.l_len = 1;
    // SAFETY: the descriptor is open, and the kernel reads one flock, which lives on this frame.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) } {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locked_byte_is_released_with_the_last_descriptor() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let open = || File::options().write(true).create(true).truncate(false).open(&path).unwrap();
        let (one, other) = (open(), open());
        assert!(try_lock_byte(&one, 7).unwrap() && try_lock_byte(&one, 7).unwrap());
        assert!(!try_lock_byte(&other, 7).unwrap() && try_lock_byte(&other, 8).unwrap());
        let copy = one.try_clone().unwrap();
        drop(one);
        assert!(!try_lock_byte(&other, 7).unwrap());
        drop(copy);
        assert!(try_lock_byte(&other, 7).unwrap());
    }

    #[test]
    fn ids_inside_are_mapped_to_ids_of_the_host() {
        let numbers = IdRange { first: 1000, count: 10 };
        assert_eq!([0, 9, 10].map(|inside| numbers.to_host(inside)), [Some(1000), Some(1009), None]);
    }
}
