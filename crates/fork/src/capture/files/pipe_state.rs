//! The state of a pipe, read in the pause: its size, its contents, and whether it has writers and readers.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use farfork_sys::poll::poll_at_once;
use rustix::event::PollFlags;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, tee};

/// The state of a pipe in the pause.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PipeState {
    pub(crate) capacity: u32,
    pub(crate) content: Vec<u8>,
    /// Sizes of the packets in the content. Without packet mode (O_DIRECT), all content is one packet.
    pub(crate) packets: Vec<u32>,
    /// Lengths of the buffers of a full pipe, if they are not full, too. Empty for other pipes.
    pub(crate) buffers: Vec<u32>,
    /// Of a named pipe that the process reads: its writers.
    pub(super) writers: PipeWriters,
}

/// The writers of a pipe, as a read end shows them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum PipeWriters {
    /// A process has the pipe open for writing. Unknown writers of a pipe with content count as open.
    #[default]
    Open,
    /// All writers have closed it: POLLHUP.
    Closed,
    /// None has opened the named pipe since the read end was opened (O_NONBLOCK).
    NeverOpened,
}

impl PipeState {
    /// A pipe as pipe(2) makes it: 16 pages.
    pub(crate) const EMPTY: Self = Self {
        capacity: 65_536,
        content: Vec::new(),
        packets: Vec::new(),
        buffers: Vec::new(),
        writers: PipeWriters::Open,
    };
}

/// Copies the contents of a pipe and leaves them there: tee(2) into a new pipe of the same size. `source` must share
/// the process's open file description: closing another one would signal watchers of the pipe (O_ASYNC).
pub(super) fn read_pipe(source: &OwnedFd) -> io::Result<PipeState> {
    let capacity = fcntl_getpipe_size(source)?;
    if rustix::io::ioctl_fionread(source)? == 0 {
        return Ok(PipeState { capacity: capacity as u32, ..PipeState::default() });
    }
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    if fcntl_getpipe_size(&writer)? < capacity {
        fcntl_setpipe_size(&writer, capacity)?;
    }
    let (mut content, mut packets, mut buffers) = (Vec::new(), Vec::new(), Vec::new());
    match tee(source, &writer, capacity, SpliceFlags::NONBLOCK) {
        Ok(bytes) => {
            if bytes < capacity && is_full(&writer)? {
                buffers = buffer_lengths(source)?;
            }
            drop(writer);
            let (mut reader, mut piece) = (File::from(reader), vec![0; capacity]);
            while let length @ 1.. = reader.read(&mut piece)? {
                content.extend_from_slice(&piece[..length]);
                packets.push(length as u32);
            }
        }
        // The pipe is empty.
        Err(rustix::io::Errno::AGAIN) => {}
        Err(errno) => return Err(errno.into()),
    }
    // In packet mode, each packet has buffers of its own.
    if packets.len() > 1 {
        buffers.clear();
    }
    Ok(PipeState { capacity: capacity as u32, content, packets, buffers, ..PipeState::EMPTY })
}

impl PipeWriters {
    /// Reads the writers of a pipe from a read end, and leaves its content there.
    pub(super) fn read(reader: &OwnedFd) -> io::Result<Self> {
        if poll_at_once(reader.as_fd(), PollFlags::IN)?.contains(PollFlags::HUP) {
            return Ok(Self::Closed);
        }
        let (_reader, copy) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // tee(2) of an empty pipe with writers fails with EAGAIN.
        match tee(reader, &copy, 1, SpliceFlags::NONBLOCK) {
            Ok(0) => Ok(Self::NeverOpened),
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(Self::Open),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Whether a process has the pipe of a write end open for reading.
pub(super) fn has_readers(writer: &OwnedFd) -> io::Result<bool> {
    Ok(!poll_at_once(writer.as_fd(), PollFlags::OUT)?.contains(PollFlags::ERR))
}

/// Whether no buffer of a pipe is free. A write(2) then waits, even if buffers hold less than a page.
fn is_full(writer: &OwnedFd) -> io::Result<bool> {
    Ok(!poll_at_once(writer.as_fd(), PollFlags::OUT)?.contains(PollFlags::OUT))
}

/// Reads the length of each buffer of a pipe, and leaves its contents there. tee(2) into a pipe of one buffer shows the length of
/// the first buffer of a copy, which is then read from the copy.
fn buffer_lengths(source: &OwnedFd) -> io::Result<Vec<u32>> {
    const PAGE_BYTES: usize = 4096;
    let capacity = fcntl_getpipe_size(source)?;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    fcntl_setpipe_size(&writer, capacity)?;
    tee(source, &writer, capacity, SpliceFlags::NONBLOCK)?;
    drop(writer);
    let (first_reader, first_writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    fcntl_setpipe_size(&first_writer, PAGE_BYTES)?;
    let (mut lengths, mut piece) = (Vec::new(), [0; PAGE_BYTES]);
    while rustix::io::ioctl_fionread(&reader)? > 0 {
        let length = tee(&reader, &first_writer, PAGE_BYTES, SpliceFlags::NONBLOCK)?;
        for pipe in [&reader, &first_reader] {
            File::from(pipe.try_clone()?).read_exact(&mut piece[..length])?;
        }
        lengths.push(length as u32);
    }
    Ok(lengths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_pipe_is_copied_and_keeps_its_content() {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"one").unwrap();
        writer.write_all(&[7; 9000]).unwrap();
        let state = read_pipe(&reader.try_clone().unwrap().into()).unwrap();
        assert_eq!((state.capacity, state.content.len(), &state.content[..4]), (65536, 9003, &b"one\x07"[..]));
        let mut again = [0; 3];
        reader.read_exact(&mut again).unwrap();
        assert_eq!(&again, b"one");
    }

    #[test]
    fn the_buffers_of_a_full_pipe_are_read() {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let state_of = |reader: &std::io::PipeReader| read_pipe(&reader.try_clone().unwrap().into()).unwrap();
        (0..15).for_each(|byte| writer.write_all(&[byte; 3000]).unwrap());
        assert!(state_of(&reader).buffers.is_empty(), "one buffer is free");
        writer.write_all(&[15; 3000]).unwrap();
        assert_eq!(writer.write(&[0; 3000]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(state_of(&reader).buffers, [3000; 16]);
        let mut content = [0; 48_000];
        reader.read_exact(&mut content).unwrap();
        assert!(content.iter().zip(0..).all(|(byte, at)| usize::from(*byte) == at / 3000));
        writer.write_all(&[9; 65_536]).unwrap();
        assert!(state_of(&reader).buffers.is_empty(), "the buffers are full");
    }

    #[test]
    fn the_writers_of_a_named_pipe_are_found() {
        use rustix::fs::{CWD, Mode, OFlags, mkfifoat, open};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fifo");
        mkfifoat(CWD, &path, Mode::RWXU).unwrap();
        let open_for = |mode: OFlags| open(&path, mode | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let reader = open_for(OFlags::RDONLY);
        assert_eq!(PipeWriters::read(&reader).unwrap(), PipeWriters::NeverOpened);
        let writer = open_for(OFlags::WRONLY);
        assert_eq!(PipeWriters::read(&reader).unwrap(), PipeWriters::Open);
        rustix::io::write(&writer, b"x").unwrap();
        assert_eq!(PipeWriters::read(&reader).unwrap(), PipeWriters::Open);
        assert!(has_readers(&writer).unwrap());
        drop(writer);
        assert_eq!(PipeWriters::read(&reader).unwrap(), PipeWriters::Closed);
        assert_eq!(read_pipe(&reader).unwrap().content, b"x");
        let writer = open_for(OFlags::WRONLY);
        drop(reader);
        assert!(!has_readers(&writer).unwrap());
    }

    #[test]
    fn an_empty_pipe_is_empty() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let state = read_pipe(&reader.into()).unwrap();
        assert_eq!(state.content, b"");
    }
}
