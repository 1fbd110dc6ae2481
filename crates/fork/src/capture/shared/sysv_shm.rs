//! System V shared memory segments in the namespace of a process (sysvipc(7)).
//!
//! Attached segments are in the process's memory map. Other segments are carried if the process created them.

use std::fs::File;
use std::os::fd::AsFd;
use std::{fs, io, thread};

use farfork_sys::{namespace, pidfd, system_v};
use farfork_wire::descriptor::{FileStatus, SharedObjectKind};

use crate::capture::error::CaptureError;

/// One segment, as `/proc/sysvipc/shm` lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SysvSegment {
    pub(super) id: u32,
    key: u32,
    /// Has SHM_DEST set if the segment is removed at its last detach.
    mode: u32,
    uid: u32,
    gid: u32,
    /// Pid of the creating process, in this pid namespace.
    creator_pid: i32,
}

impl SysvSegment {
    /// Converts the segment to its entry in the descriptor.
    pub(super) fn to_shared_kind(self) -> SharedObjectKind {
        const SHM_DEST: u32 = 0o1000;
        const PERMISSIONS: u32 = 0o777;
        let status = FileStatus { mode: self.mode & PERMISSIONS, uid: self.uid, gid: self.gid };
        SharedObjectKind::SystemV { key: self.key, id: self.id, status, is_removed: self.mode & SHM_DEST != 0 }
    }
}

/// A segment, with its contents.
pub(super) type OpenedSegment = (SysvSegment, File);

/// Lists all segments in the IPC namespace of a process, and opens those that the process created. Only a thread inside a
/// namespace sees its segments. Opening changes a segment's times, so `attached` segments are not opened here.
pub(super) fn list_segments(
    pid: i32,
    attached: &[u64],
) -> Result<(Vec<SysvSegment>, Vec<OpenedSegment>), CaptureError> {
    let attached = attached.to_vec();
    let read = move || -> io::Result<_> {
        if !system_v::has_shared_memory()? {
            return Ok((Vec::new(), Vec::new()));
        }
        let all = parse_segments(&fs::read_to_string("/proc/sysvipc/shm")?).ok_or(io::ErrorKind::InvalidData)?;
        let is_made = |one: &&SysvSegment| one.creator_pid == pid && !attached.contains(&one.id.into());
        let open = |one: &SysvSegment| Ok((*one, system_v::open_segment(one.id)?));
        let made = all.iter().filter(is_made).map(open).collect::<io::Result<Vec<_>>>()?;
        Ok((all, made))
    };
    has_foreign_ipc_namespace(pid)
        .and_then(|is_elsewhere| run_in_ipc_namespace(pid, is_elsewhere, read))
        .map_err(CaptureError::reading(pid, "System V shared memory"))
}

/// Whether a process is in another IPC namespace than this one.
pub(super) fn has_foreign_ipc_namespace(pid: i32) -> io::Result<bool> {
    let namespace_of = |process: &str| fs::read_link(format!("/proc/{process}/ns/ipc"));
    Ok(namespace_of(&pid.to_string())? != namespace_of("self")?)
}

/// Runs `work` in the IPC namespace of a process. Only a thread inside a namespace sees its objects, so a new thread enters
/// a foreign one.
pub(super) fn run_in_ipc_namespace<T: Send + 'static>(
    pid: i32,
    is_elsewhere: bool,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    if !is_elsewhere {
        return work();
    }
    let there = move || {
        namespace::enter_ipc(pidfd::open(pid)?.as_fd())?;
        work()
    };
    thread::spawn(there).join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

/// Columns: key, id, mode in octal, size, two pids, count, uid, gid, and more.
fn parse_segments(text: &str) -> Option<Vec<SysvSegment>> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let number = |at: usize| words.get(at)?.parse::<u32>().ok();
        Some(SysvSegment {
            key: words.first()?.parse::<i32>().ok()?.cast_unsigned(),
            id: number(1)?,
            mode: u32::from_str_radix(words.get(2)?, 8).ok()?,
            uid: number(7)?,
            gid: number(8)?,
            creator_pid: words.get(4)?.parse().ok()?,
        })
    };
    text.lines().skip(1).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_segments_is_parsed() {
        let text = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime                   rss                  swap\n\
                    -559038737          3  1640                 12288  9999  9999      2  1000   100  1000   100 1700000000          0 1700000000                  4096                     0\n";
        let expected = SharedObjectKind::SystemV {
            key: 0xdead_beef,
            id: 3,
            status: FileStatus { mode: 0o640, uid: 1000, gid: 100 },
            is_removed: true,
        };
        let segment = parse_segments(text).unwrap()[0];
        assert_eq!((segment.to_shared_kind(), segment.creator_pid), (expected, 9999));
        assert!(parse_segments("header\n1 2\n").is_none());
    }
}
