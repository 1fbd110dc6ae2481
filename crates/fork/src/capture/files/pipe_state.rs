//! The state of a pipe, read in the pause: its size, its contents, and whether it has writers and readers.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use farfork_sys::poll::poll_at_once;
use farfork_wire::descriptor::PipeBuffer;
use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, tee};

use super::FdKind;
use super::states::O_ASYNC;

/// Bytes of a buffer of a pipe, at most: a page.
const PAGE_BYTES: usize = 4096;

/// The state of a pipe in the pause.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PipeState {
    pub(crate) capacity: u32,
    pub(crate) content: Vec<u8>,
    /// The buffers of the content. Empty if one write(2) of the content makes the same buffers.
    pub(crate) buffers: Vec<PipeBuffer>,
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
    pub(crate) const EMPTY: Self =
        Self { capacity: 65_536, content: Vec::new(), buffers: Vec::new(), writers: PipeWriters::Open };

    /// Whether no buffer is free, although some have room for more bytes. A write(2) then waits.
    pub(super) fn is_full_of_parts(&self) -> bool {
        self.buffers.len() * PAGE_BYTES >= self.capacity as usize
    }

    /// Whether a writer in packet mode (O_DIRECT) has written some of the content.
    pub(super) fn has_packets(&self) -> bool {
        self.buffers.iter().any(|buffer| buffer.is_packet)
    }
}

/// Reads a pipe from a read end, and leaves its contents there. `source` must share the process's open file description:
/// closing another one would signal watchers of the pipe (O_ASYNC).
pub(super) fn read_pipe(source: &OwnedFd) -> io::Result<PipeState> {
    let capacity = fcntl_getpipe_size(source)?;
    let unread = rustix::io::ioctl_fionread(source)? as usize;
    let mut state = PipeState { capacity: capacity as u32, ..PipeState::default() };
    if unread == 0 {
        return Ok(state);
    }
    match read_one_write(source, unread, capacity)? {
        Some(content) => state.content = content,
        None => (state.content, state.buffers) = read_buffers(source, capacity)?,
    }
    Ok(state)
}

/// Whether a process would notice another read end of a pipe: an open(2) of a named pipe that waits for a reader would
/// return, and a signal would be sent (O_ASYNC). `flags` are the O_* flags of the write end.
pub(super) fn is_reader_noticed(kind: &FdKind, flags: u32) -> bool {
    *kind == FdKind::NamedPipe || flags & O_ASYNC != 0
}

/// Reads a pipe from a write end, and leaves its contents there. The pipe has another reader for a moment.
pub(super) fn read_unread_pipe(writer: &OwnedFd) -> io::Result<PipeState> {
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let reader = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    read_pipe(&reader)
}

/// Reads the contents of a pipe if one write(2) would make the same buffers: full pages, and no packets. Otherwise `None`.
/// It needs few calls, unlike `read_buffers`.
fn read_one_write(source: &OwnedFd, unread: usize, capacity: usize) -> io::Result<Option<Vec<u8>>> {
    if unread > PAGE_BYTES && unread != capacity {
        return Ok(None);
    }
    let (reader, writer) = copy_pipe(source, capacity)?;
    // A pipe cannot be made smaller than its buffers in use. The new size has room for one more byte.
    let pages = unread.div_ceil(PAGE_BYTES).next_power_of_two();
    let resized = fcntl_setpipe_size(&writer, pages * PAGE_BYTES)
        .and_then(|_| fcntl_setpipe_size(&writer, 2 * pages * PAGE_BYTES));
    if resized.is_err() || rustix::io::write(&writer, &[0])? != 1 {
        return Ok(None);
    }
    // A read(2) ends at the end of a packet.
    let mut content = vec![0; unread + 1];
    let length = rustix::io::read(&reader, &mut content)?;
    content.truncate(unread);
    Ok((length == unread + 1).then_some(content))
}

/// Reads the contents of a pipe, buffer by buffer. A pipe of one page holds one buffer, so tee(2) into it shows the first
/// buffer of a copy, which is then read from the copy.
fn read_buffers(source: &OwnedFd, capacity: usize) -> io::Result<(Vec<u8>, Vec<PipeBuffer>)> {
    let (copy, writer) = copy_pipe(source, capacity)?;
    drop(writer);
    let (first, first_writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let next = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    fcntl_setpipe_size(&first_writer, PAGE_BYTES)?;
    let (mut content, mut buffers, mut page) = (Vec::new(), Vec::new(), [0; PAGE_BYTES]);
    while rustix::io::ioctl_fionread(&copy)? > 0 {
        let length = tee(&copy, &first_writer, PAGE_BYTES, SpliceFlags::NONBLOCK)?;
        let is_packet = begins_with_packet(&copy, length, &next)?;
        for pipe in [&first, &copy] {
            File::from(pipe.try_clone()?).read_exact(&mut page[..length])?;
        }
        content.extend_from_slice(&page[..length]);
        buffers.push(PipeBuffer { length: length as u32, is_packet });
    }
    Ok((content, buffers))
}

/// Whether the first buffer of a pipe, of `length` bytes, is a packet: a read(2) of one more byte then ends with it. `next` is
/// an empty pipe, and is empty again afterwards.
fn begins_with_packet(pipe: &OwnedFd, length: usize, next: &(OwnedFd, OwnedFd)) -> io::Result<bool> {
    let (reader, writer) = next;
    if tee(pipe, writer, length + 1, SpliceFlags::NONBLOCK)? == length {
        rustix::io::write(writer, &[0])?;
    }
    let mut bytes = [0; PAGE_BYTES + 1];
    let is_packet = rustix::io::read(reader, &mut bytes[..=length])? == length;
    if is_packet {
        rustix::io::read(reader, &mut bytes)?;
    }
    Ok(is_packet)
}

/// Copies the buffers of a pipe into a new pipe of the same size (tee(2)). Returns its ends.
fn copy_pipe(source: &OwnedFd, capacity: usize) -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    if fcntl_getpipe_size(&writer)? < capacity {
        fcntl_setpipe_size(&writer, capacity)?;
    }
    tee(source, &writer, capacity, SpliceFlags::NONBLOCK)?;
    Ok((reader, writer))
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
    fn the_buffers_of_a_pipe_are_read() {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let state_of = |reader: &std::io::PipeReader| read_pipe(&reader.try_clone().unwrap().into()).unwrap();
        let parts = |count: usize| vec![PipeBuffer { length: 3000, is_packet: false }; count];
        (0..15).for_each(|byte| writer.write_all(&[byte; 3000]).unwrap());
        assert!(state_of(&reader).buffers == parts(15) && !state_of(&reader).is_full_of_parts());
        writer.write_all(&[15; 3000]).unwrap();
        assert_eq!(writer.write(&[0; 3000]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(state_of(&reader).buffers == parts(16) && state_of(&reader).is_full_of_parts());
        let mut content = [0; 48_000];
        reader.read_exact(&mut content).unwrap();
        assert!(content.iter().zip(0..).all(|(byte, at)| usize::from(*byte) == at / 3000));
        writer.write_all(&[9; 65_536]).unwrap();
        assert!(state_of(&reader).buffers.is_empty(), "the buffers are full");
    }

    #[test]
    fn packets_are_told_from_other_bytes() {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let state_of = |reader: &std::io::PipeReader| read_pipe(&reader.try_clone().unwrap().into()).unwrap();
        let set_packets = |writer: &std::io::PipeWriter, flags| rustix::fs::fcntl_setfl(writer, flags).unwrap();
        writer.write_all(b"x").unwrap();
        assert!(state_of(&reader).buffers.is_empty(), "one byte is no packet");
        reader.read_exact(&mut [0]).unwrap();
        set_packets(&writer, OFlags::DIRECT);
        writer.write_all(b"1").unwrap();
        // The kernel adds the last packet to the buffer of the bytes before it.
        let wanted = [(1, true), (2, true), (4096, true), (6, false)];
        let buffers = wanted.map(|(length, is_packet)| PipeBuffer { length, is_packet });
        assert_eq!(state_of(&reader).buffers, buffers[..1]);
        writer.write_all(b"22").unwrap();
        writer.write_all(&[3; 4096]).unwrap();
        set_packets(&writer, OFlags::empty());
        writer.write_all(b"bytes").unwrap();
        set_packets(&writer, OFlags::DIRECT);
        writer.write_all(b"4").unwrap();
        drop(writer);
        let state = state_of(&reader);
        assert_eq!((&state.buffers[..], state.content.len()), (&buffers[..], 4105));
    }

    #[test]
    fn a_full_pipe_of_packets_is_read() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        rustix::fs::fcntl_setfl(&writer, OFlags::DIRECT).unwrap();
        (0..16).for_each(|byte| writer.write_all(&[byte; 4096]).unwrap());
        let state = read_pipe(&reader.into()).unwrap();
        assert_eq!(state.buffers, [PipeBuffer { length: 4096, is_packet: true }; 16]);
    }

    #[test]
    fn a_pipe_without_readers_is_read() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"left").unwrap();
        drop(reader);
        let end: OwnedFd = writer.into();
        for _ in 0..2 {
            assert_eq!(read_unread_pipe(&end).unwrap().content, b"left");
            assert!(!has_readers(&end).unwrap());
        }
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
