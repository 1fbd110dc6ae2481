//! Read-only kernel queries about a descriptor or a thread: fcntl(2) and ioctl(2) commands, the I/O priority, and the
//! scheduling attributes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::sched_attr::sched_getattr;

/// Size of the longest result, in bytes.
const RESULT_BYTES_MAX: usize = 64;

/// A command that writes its result to memory, or returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FdQuery {
    /// Its name in the kernel's headers.
    pub name: &'static str,
    command: u64,
    /// Number of bytes that the command writes; 0 if its result is the return value.
    bytes: usize,
}

const fn fd_query(name: &'static str, command: u64, bytes: usize) -> FdQuery {
    assert!(bytes <= RESULT_BYTES_MAX);
    FdQuery { name, command, bytes }
}

/// The fcntl(2) commands that only read. F_GETFD is missing because it reads a flag of our copy of the descriptor. F_GETLK
/// and F_OFD_GETLK are missing because they need a lock to compare with.
pub const FCNTL_QUERIES: [FdQuery; 10] = [
    fd_query("F_GETFL", 3, 0),
    fd_query("F_GETSIG", 11, 0),
    fd_query("F_GETOWN_EX", 16, 8),
    fd_query("F_GETOWNER_UIDS", 17, 8),
    fd_query("F_GETLEASE", 1025, 0),
    fd_query("F_CREATED_QUERY", 1028, 0),
    fd_query("F_GETPIPE_SZ", 1032, 0),
    fd_query("F_GET_SEALS", 1034, 0),
    fd_query("F_GET_RW_HINT", 1035, 8),
    fd_query("F_GETDELEG", 1039, 16),
];

/// The ioctl(2) commands that only read, for files, pipes, sockets and terminals.
pub const IOCTL_QUERIES: [FdQuery; 17] = [
    fd_query("TCGETS2", 0x802c_542a, 44),
    fd_query("TIOCGWINSZ", 0x5413, 8),
    fd_query("TIOCGPGRP", 0x540f, 4),
    fd_query("TIOCGSID", 0x5429, 4),
    fd_query("TIOCGETD", 0x5424, 4),
    fd_query("TIOCGEXCL", 0x8004_5440, 4),
    fd_query("TIOCGPKT", 0x8004_5438, 4),
    fd_query("TIOCGPTLCK", 0x8004_5439, 4),
    fd_query("TIOCGPTN", 0x8004_5430, 4),
    fd_query("TIOCGSOFTCAR", 0x5419, 4),
    fd_query("FIONREAD", 0x541b, 4),
    fd_query("SIOCOUTQ", 0x5411, 4),
    fd_query("SIOCATMARK", 0x8905, 4),
    fd_query("FIOQSIZE", 0x5460, 8),
    fd_query("FS_IOC_GETFLAGS", 0x8008_6601, 8),
    fd_query("FS_IOC_FSGETXATTR", 0x801c_581f, 28),
    fd_query("FS_IOC_GETVERSION", 0x8008_7601, 8),
];

/// Runs an fcntl(2) query; returns the bytes of the result.
///
/// # Errors
/// EINVAL if the file does not support the command.
pub fn query_fcntl(fd: BorrowedFd<'_>, query: FdQuery) -> io::Result<Vec<u8>> {
    debug_assert!(FCNTL_QUERIES.contains(&query));
    let mut answer = [0_u8; RESULT_BYTES_MAX];
    let command = query.command as libc::c_int;
    // SAFETY: each command of `FCNTL_QUERIES` reads, and writes at most `bytes` to `answer`, which is longer and outlives
    // the call.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), command, answer.as_mut_ptr()) };
    query_result(result, &answer, query)
}

/// Runs an ioctl(2) query; returns the bytes of the result.
///
/// # Errors
/// ENOTTY if the file does not support the command.
pub fn query_ioctl(fd: BorrowedFd<'_>, query: FdQuery) -> io::Result<Vec<u8>> {
    debug_assert!(IOCTL_QUERIES.contains(&query));
    let mut answer = [0_u8; RESULT_BYTES_MAX];
    // SAFETY: each command of `IOCTL_QUERIES` reads, and writes at most `bytes` to `answer`, which is longer and outlives
    // the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), query.command, answer.as_mut_ptr()) };
    query_result(result, &answer, query)
}

fn query_result(result: libc::c_int, answer: &[u8; RESULT_BYTES_MAX], query: FdQuery) -> io::Result<Vec<u8>> {
    match (result, query.bytes) {
        (..0, _) => Err(io::Error::last_os_error()),
        (_, 0) => Ok(result.to_ne_bytes().to_vec()),
        (_, bytes) => Ok(answer[..bytes].to_vec()),
    }
}

/// Reads the I/O priority of a thread (ioprio_get(2)). The class begins at bit 13.
///
/// # Errors
/// ESRCH when the thread has ended.
pub fn io_priority(tid: i32) -> io::Result<u32> {
    const IOPRIO_WHO_PROCESS: libc::c_int = 1;
    // SAFETY: ioprio_get takes numbers only.
    let priority = unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, tid) };
    u32::try_from(priority).map_err(|_| io::Error::last_os_error())
}

/// Reads the `struct sched_attr` of a thread (sched_getattr(2)), with its SCHED_FLAG_* flags and utilization clamps.
///
/// # Errors
/// ESRCH when the thread has ended.
pub fn scheduling_attributes(tid: i32) -> io::Result<Vec<u8>> {
    Ok(sched_getattr(tid)?.to_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_fill_level_of_a_pipe_is_read() {
        let (reader, mut writer) = io::pipe().unwrap();
        io::Write::write_all(&mut writer, b"abc").unwrap();
        let find = |list: &[FdQuery], name: &str| *list.iter().find(|query| query.name == name).unwrap();
        assert_eq!(query_ioctl(reader.as_fd(), find(&IOCTL_QUERIES, "FIONREAD")).unwrap(), 3_i32.to_ne_bytes());
        assert_eq!(query_fcntl(reader.as_fd(), find(&FCNTL_QUERIES, "F_GETPIPE_SZ")).unwrap(), 65536_i32.to_ne_bytes());
        assert!(query_ioctl(reader.as_fd(), find(&IOCTL_QUERIES, "TIOCGWINSZ")).is_err());
    }

    #[test]
    fn scheduling_attributes_of_this_process_are_read() {
        let own = std::process::id().cast_signed();
        io_priority(own).unwrap();
        assert_eq!(scheduling_attributes(own).unwrap()[..4], [56, 0, 0, 0]);
    }
}
