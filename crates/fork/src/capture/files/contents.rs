//! What fork(2) shares of open files, read inside the pause: positions, counters, pipe contents, what epolls watch.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;

use farfork_sys::process::{self, FdInfo};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, tee};

use super::{Kind, O_ACCMODE, O_RDONLY, OpenFd};
use crate::capture::error::CaptureError;

/// A pipe as it was inside the pause.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PipeState {
    pub(crate) capacity: u32,
    pub(crate) content: Vec<u8>,
}

/// The shared state of open files at one moment.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// By descriptor number.
    pub(super) infos: BTreeMap<u32, FdInfo>,
    /// By inode.
    pub(super) pipes: BTreeMap<u64, PipeState>,
}

impl PipeState {
    /// A pipe as pipe(2) makes it: 16 pages.
    pub(crate) const EMPTY: Self = Self { capacity: 65_536, content: Vec::new() };
}

impl Contents {
    /// Reads what is shared. The process stands still; `surveyed` says what its descriptors were shortly before, so
    /// that only new ones must be looked at in full.
    pub(crate) fn read(pid: i32, surveyed: &[OpenFd]) -> Result<Self, CaptureError> {
        let mut contents = Self::default();
        let numbers = process::list_fds(pid).map_err(CaptureError::read(pid, "the open files"))?;
        for number in numbers {
            let known = surveyed.binary_search_by_key(&number, |fd| fd.number).ok().map(|index| &surveyed[index]);
            contents.read_one(pid, number, known).map_err(CaptureError::read(pid, format!("fd {number}")))?;
        }
        Ok(contents)
    }

    fn read_one(&mut self, pid: i32, number: u32, known: Option<&OpenFd>) -> io::Result<()> {
        if known.is_some_and(|fd| !fd.has_contents()) {
            return Ok(());
        }
        let info = FdInfo::read(pid, number)?;
        let is_pipe = match known {
            Some(fd) if fd.kind != Kind::Pipe || fd.inode == info.inode => fd.kind == Kind::Pipe,
            // A number that was reused is found out later: the template has a pipe of which nothing was read.
            _ => OpenFd::read(pid, number)?.kind == Kind::Pipe,
        };
        if is_pipe && info.flags & O_ACCMODE == O_RDONLY && !self.pipes.contains_key(&info.inode) {
            self.pipes.insert(info.inode, read_pipe(pid, number)?);
        }
        self.infos.insert(number, info);
        Ok(())
    }
}

/// Copies what is in a pipe and leaves it there: tee(2) into a pipe of ours that is as large.
fn read_pipe(pid: i32, number: u32) -> io::Result<PipeState> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let source = File::options().read(true).custom_flags(nonblocking).open(format!("/proc/{pid}/fd/{number}"))?;
    let capacity = fcntl_getpipe_size(&source)?;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    if fcntl_getpipe_size(&writer)? < capacity {
        fcntl_setpipe_size(&writer, capacity)?;
    }
    let mut content = Vec::new();
    match tee(&source, &writer, capacity, SpliceFlags::NONBLOCK) {
        Ok(_) => {
            drop(writer);
            File::from(reader).read_to_end(&mut content)?;
        }
        // Empty.
        Err(rustix::io::Errno::AGAIN) => {}
        Err(errno) => return Err(errno.into()),
    }
    Ok(PipeState { capacity: capacity as u32, content })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_pipe_is_copied_and_keeps_its_content() {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"one").unwrap();
        writer.write_all(&[7; 9000]).unwrap();
        let pid = std::process::id() as i32;
        let state = read_pipe(pid, reader.as_raw_fd() as u32).unwrap();
        assert_eq!((state.capacity, state.content.len(), &state.content[..4]), (65536, 9003, &b"one\x07"[..]));
        let mut again = [0; 3];
        reader.read_exact(&mut again).unwrap();
        assert_eq!(&again, b"one");
    }

    #[test]
    fn an_empty_pipe_is_empty() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let state = read_pipe(std::process::id() as i32, reader.as_raw_fd() as u32).unwrap();
        assert_eq!(state.content, b"");
    }
}
