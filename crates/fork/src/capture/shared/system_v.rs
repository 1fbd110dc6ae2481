//! Segments of System V shared memory: which there are in the namespace of a process (sysvipc(7)).

use std::os::fd::AsFd;
use std::{io, thread};

use farfork_sys::{namespace, pidfd};
use farfork_wire::descriptor::{FileStatus, SharedKind};

use crate::capture::error::CaptureError;

/// One segment, as `/proc/sysvipc/shm` lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) id: u32,
    key: u32,
    /// With SHM_DEST where it goes with the last who has it attached.
    mode: u32,
    uid: u32,
    gid: u32,
}

impl Segment {
    /// What a descriptor says of it.
    pub(super) fn kind(self) -> SharedKind {
        const REMOVED: u32 = 0o1000;
        const PERMISSIONS: u32 = 0o777;
        let status = FileStatus { mode: self.mode & PERMISSIONS, uid: self.uid, gid: self.gid };
        SharedKind::SystemV { key: self.key, id: self.id, status, is_removed: self.mode & REMOVED != 0 }
    }
}

/// All segments in the namespace of a process. Only who is in a namespace is told: a thread of its own goes there.
pub(super) fn segments(pid: i32) -> Result<Vec<Segment>, CaptureError> {
    let read = move || -> io::Result<String> {
        namespace::enter_ipc(pidfd::open(pid)?.as_fd())?;
        std::fs::read_to_string("/proc/sysvipc/shm")
    };
    let text = thread::spawn(read).join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
    let segments = text.and_then(|text| parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into()));
    segments.map_err(CaptureError::read(pid, "System V shared memory"))
}

/// Columns: key, id, mode in octal, size, two pids, count, uid, gid, and more.
fn parse(text: &str) -> Option<Vec<Segment>> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let number = |at: usize| words.get(at)?.parse::<u32>().ok();
        Some(Segment {
            key: words.first()?.parse::<i32>().ok()?.cast_unsigned(),
            id: number(1)?,
            mode: u32::from_str_radix(words.get(2)?, 8).ok()?,
            uid: number(7)?,
            gid: number(8)?,
        })
    };
    text.lines().skip(1).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read() {
        let text = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime                   rss                  swap\n\
                    -559038737          3  1640                 12288  9999  9999      2  1000   100  1000   100 1700000000          0 1700000000                  4096                     0\n";
        let expected = SharedKind::SystemV {
            key: 0xdead_beef,
            id: 3,
            status: FileStatus { mode: 0o640, uid: 1000, gid: 100 },
            is_removed: true,
        };
        assert_eq!(parse(text).unwrap()[0].kind(), expected);
        assert!(parse("header\n1 2\n").is_none());
    }
}
