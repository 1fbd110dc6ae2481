//! User namespaces: mappings of user and group ids, and ranges of ids that nothing else on the machine uses.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use crate::process::read_text;

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

/// Whether a user id of this process's user namespace has a mapping in the user namespace of a thread. Capabilities of the
/// thread apply only to files whose owner has a mapping (user_namespaces(7)).
///
/// # Errors
/// As open(2): the thread has ended.
pub fn maps_user(tid: i32, user: u32) -> io::Result<bool> {
    maps_id(tid, "uid_map", user)
}

/// As `maps_user`, for a group id.
///
/// # Errors
/// As `maps_user`.
pub fn maps_group(tid: i32, group: u32) -> io::Result<bool> {
    maps_id(tid, "gid_map", group)
}

fn maps_id(tid: i32, map: &str, id: u32) -> io::Result<bool> {
    // In its own namespace, each id has a mapping. The file would have ids of the parent of this namespace.
    if is_own_namespace(tid) {
        return Ok(true);
    }
    Ok(id_inside(tid, map, id)?.is_some())
}

/// Returns the user id in the user namespace of a thread, which is not this process's, for a user id of this process's
/// namespace.
///
/// # Errors
/// As open(2): the thread has ended. `NotFound` if the id has no mapping.
pub fn user_inside(tid: i32, user: u32) -> io::Result<u32> {
    id_inside(tid, "uid_map", user)?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// As `user_inside`, for a group id.
///
/// # Errors
/// As `user_inside`.
pub fn group_inside(tid: i32, group: u32) -> io::Result<u32> {
    id_inside(tid, "gid_map", group)?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn id_inside(tid: i32, map: &str, id: u32) -> io::Result<Option<u32>> {
    let ranges = read_text(&format!("/proc/{tid}/{map}"))?;
    let inside = |line: &str| {
        // The second number of a range is the first id in the namespace of the reader.
        let numbers: Vec<u32> = line.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect();
        let [inside, first, count] = numbers[..] else { return None };
        let offset = id.checked_sub(first).filter(|offset| *offset < count)?;
        Some(inside + offset)
    };
    Ok(ranges.lines().find_map(inside))
}

/// Whether a thread is in the user namespace of this process. False if the namespace of the thread cannot be read.
pub fn is_own_namespace(tid: i32) -> bool {
    let identity = |process: &str| {
        let namespace = fs::metadata(format!("/proc/{process}/ns/user")).ok()?;
        Some((namespace.dev(), namespace.ino()))
    };
    let theirs = identity(&tid.to_string());
    theirs.is_some() && theirs == identity("self")
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
    use std::process::{Command, Stdio};

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
    fn ids_of_the_range_are_mapped_and_no_others() {
        let own = std::process::id().cast_signed();
        assert!(maps_user(own, 0).unwrap() && maps_group(own, 4_000_000_000).unwrap(), "this namespace");
        let mut process = Command::new("unshare").args(["--user", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = process.id().cast_signed();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while is_own_namespace(pid) {
            assert!(std::time::Instant::now() < deadline, "unshare(1) has not made a namespace");
            std::thread::yield_now();
        }
        assert!(!maps_user(pid, 0).unwrap(), "there is no mapping yet");
        write_id_maps(pid, IdRange { first: 100_000, count: 10 }).unwrap();
        for (id, is_mapped) in
            [(0, false), (9, false), (99_999, false), (100_000, true), (100_009, true), (100_010, false)]
        {
            assert_eq!((maps_user(pid, id).unwrap(), maps_group(pid, id).unwrap()), (is_mapped, is_mapped), "{id}");
        }
        drop(process.stdin.take());
        process.wait().unwrap();
    }

    #[test]
    fn ids_inside_are_mapped_to_ids_of_the_host() {
        let numbers = IdRange { first: 1000, count: 10 };
        assert_eq!([0, 9, 10].map(|inside| numbers.to_host(inside)), [Some(1000), Some(1009), None]);
    }
}
