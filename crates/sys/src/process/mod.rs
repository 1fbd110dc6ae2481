//! The state of another process, parsed from `/proc` and a few system calls.
//!
//! The parsers are pure and separate from the readers. The kernel writes the text, so text that cannot be parsed is an error
//! of kind `InvalidData`, never a guess.

mod fd;
mod kcmp;
mod kernel_stacks;
mod maps;
mod resident_memory;
mod schedstat;
mod stat;
mod status;
mod syscall;

use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::str::FromStr;

use rustix::fs::{Mode, OFlags, RawDir};

pub use fd::{EpollEntry, EventCounter, FdDirectory, FdInfo, LockEntry, LockKind, TimerState, WatchEntry};
pub use kcmp::{
    DeadlineAttributes, EpollSlot, SchedulingAttributes, SharedResource, TaskFd, compare_open_files,
    compare_with_epoll_target, is_same_open_file, is_same_open_file_across, read_robust_list, read_scheduling,
    share_resource,
};
pub use kernel_stacks::KernelStackSummary;
pub use maps::{MapEntry, read_maps, read_smaps};
pub use resident_memory::ResidentMemory;
pub use schedstat::{SchedStat, read_last_run_ns};
pub use stat::{ProcStat, TaskFlags};
pub use status::{ProcStatus, format_cpu_list};
pub use syscall::{SystemCall, is_waiting_in};

/// Reads the ids of the threads of a process, in ascending order.
///
/// # Errors
/// NotFound if the process has ended.
pub fn thread_ids(pid: i32) -> io::Result<Vec<i32>> {
    numeric_entries(&format!("/proc/{pid}/task"))
}

/// Reads the ids of the children that a thread has forked and that have not been waited for. Empty if the thread has ended.
pub fn children_of_thread(pid: i32, tid: i32) -> Vec<i32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Reads the ids of all processes, in ascending order.
///
/// # Errors
/// As open(2), if there is no `/proc`.
pub fn all_pids() -> io::Result<Vec<i32>> {
    numeric_entries("/proc")
}

/// Reads the number of threads of a process; cheaper than [`thread_ids`].
///
/// # Errors
/// NotFound if the process has ended.
pub fn thread_count(pid: i32) -> io::Result<usize> {
    /// Link count of a directory without subdirectories.
    const OWN_LINKS: usize = 2;
    // The kernel counts each thread as a link of the directory.
    let links = rustix::fs::stat(format!("/proc/{pid}/task"))?.st_nlink;
    Ok((links as usize).saturating_sub(OWN_LINKS))
}

/// Reads the entries of a directory of `/proc` that are numbers, in ascending order.
fn numeric_entries<T: FromStr + Ord>(path: &str) -> io::Result<Vec<T>> {
    numeric_entries_of(&open_directory(path)?)
}

fn open_directory(path: &str) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Like [`numeric_entries`], for a directory that was just opened.
fn numeric_entries_of<T: FromStr + Ord>(directory: &OwnedFd) -> io::Result<Vec<T>> {
    const BUFFER_BYTES: usize = 4 << 10;
    let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
    let mut entries = RawDir::new(directory, &mut buffer);
    let mut numbers = Vec::new();
    while let Some(entry) = entries.next() {
        numbers.extend(entry?.file_name().to_str().ok().and_then(|name| name.parse::<T>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Reads the soft and hard limits by RLIMIT number, `u64::MAX` for unlimited. The source is `/proc/PID/limits`, which needs
/// no privilege, unlike prlimit(2).
///
/// # Errors
/// NotFound if the process has ended.
pub fn read_limits(pid: i32) -> io::Result<Vec<(u64, u64)>> {
    let text = read_text(&format!("/proc/{pid}/limits"))?;
    parse_limits(&text).ok_or_else(|| malformed("limits"))
}

/// Parses `/proc/PID/limits`: a header, then a line for each limit in the order of the RLIMIT numbers. A name is 25 columns
/// wide.
fn parse_limits(text: &str) -> Option<Vec<(u64, u64)>> {
    const NAME_COLUMNS: usize = 25;
    let number = |word: &str| {
        if word == "unlimited" { Some(u64::MAX) } else { word.parse().ok() }
    };
    let line = |line: &str| {
        let mut words = line.get(NAME_COLUMNS..)?.split_whitespace();
        Some((number(words.next()?)?, number(words.next()?)?))
    };
    text.lines().skip(1).map(line).collect()
}

/// Reads a file of `/proc` that the kernel generates in one piece, by one read(2). The standard library would make several
/// calls, because it takes st_size for the real size.
fn read_once(path: &str) -> io::Result<Vec<u8>> {
    read_once_from(File::open(path)?)
}

fn read_once_from(mut file: File) -> io::Result<Vec<u8>> {
    /// Most files have a few hundred bytes. Clearing a larger buffer would cost more than the call itself.
    const PIECE_BYTES: usize = 4 << 10;
    let mut bytes = vec![0; PIECE_BYTES];
    let read = file.read(&mut bytes)?;
    bytes.truncate(read);
    if read == PIECE_BYTES {
        file.read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Reads a file of `/proc` that may contain any bytes, such as `cmdline`.
///
/// # Errors
/// NotFound or ESRCH if the process has ended.
pub fn read_bytes(path: &str) -> io::Result<Vec<u8>> {
    read_once(path)
}

/// Reads a file of `/proc` that the kernel generates in one piece, such as `cgroup`. A list whose entries the kernel
/// generates one by one, such as `timers`, would be cut after some entries.
///
/// # Errors
/// NotFound or ESRCH if the process has ended; InvalidData if the file is not UTF-8.
pub fn read_text(path: &str) -> io::Result<String> {
    String::from_utf8(read_once(path)?).map_err(|_| malformed(path))
}

/// Reads a file of `/proc` of one or two lines, by one read(2) into a small buffer.
///
/// # Errors
/// NotFound or ESRCH if the process has ended; InvalidData if the file is not UTF-8, or has 512 bytes or more.
pub fn read_line(path: &str) -> io::Result<String> {
    const LINE_BYTES: usize = 512;
    let mut bytes = [0; LINE_BYTES];
    let read = File::open(path)?.read(&mut bytes)?;
    let text = str::from_utf8(&bytes[..read]).ok().filter(|_| read < LINE_BYTES);
    text.map(|text| text.trim_ascii_end().to_owned()).ok_or_else(|| malformed(path))
}

/// Reads the name (comm) of a thread of a process.
///
/// # Errors
/// NotFound or ESRCH if the thread has ended.
pub fn thread_name(pid: i32, tid: i32) -> io::Result<Vec<u8>> {
    // Room for the longest name and a newline. A name may contain any bytes.
    let mut bytes = [0; 64];
    let read = File::open(format!("/proc/{pid}/task/{tid}/comm"))?.read(&mut bytes)?;
    let name = &bytes[..read];
    Ok(name.strip_suffix(b"\n").unwrap_or(name).to_vec())
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("`{what}` of /proc does not have the expected form"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_this_process_agree_with_the_system_call() {
        let limits = read_limits(std::process::id() as i32).unwrap();
        assert_eq!(limits.len(), 16);
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        assert_eq!(limits[7], (files.current.unwrap_or(u64::MAX), files.maximum.unwrap_or(u64::MAX)));
    }

    #[test]
    fn the_thread_name_equals_the_name_in_the_stat_file() {
        let pid = std::process::id() as i32;
        assert_eq!(thread_name(pid, pid).unwrap(), ProcStat::read(pid).unwrap().name);
        assert!(read_line("/proc/self/oom_score_adj").unwrap().parse::<i32>().is_ok());
    }

    #[test]
    fn threads_are_listed_and_counted() {
        let pid = std::process::id() as i32;
        // Other tests start and end threads at the same time.
        let is_stable = || thread_ids(pid).unwrap().len() == thread_count(pid).unwrap();
        assert!(!thread_ids(pid).unwrap().is_empty() && (0..1000).any(|_| is_stable()));
        assert!(thread_count(i32::MAX).is_err());
    }
}
