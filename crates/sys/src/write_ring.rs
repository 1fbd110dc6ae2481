//! Writes from shared mappings to files by io_uring(7): many with one system call. The volume's publisher copies with it, if
//! one of the `CopyMethod`s with io_uring is selected.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::thread;

use io_uring::{IoUring, opcode, types};
use rustix::event::{EventfdFlags, eventfd};

use crate::shared_mapping::SharedMapping;

/// Number of polls without a system call, before the thread yields its CPU at each poll.
const POLLS_MAX: u32 = 1000;

/// How a thread waits for the end of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionWait {
    /// It polls the completion queue.
    Poll,
    /// It sleeps in read(2) of an eventfd.
    Event,
}

/// A range of a mapping, and the place in a file to which it is written.
#[derive(Clone, Copy, Debug)]
pub struct MappedWrite<'a> {
    /// The mapping.
    pub mapping: &'a SharedMapping,
    /// Offset of the first byte in the mapping.
    pub offset: usize,
    /// Number of bytes.
    pub bytes: usize,
    /// The file.
    pub file: BorrowedFd<'a>,
    /// Offset of the first byte in the file.
    pub file_offset: u64,
}

/// An io_uring instance for writes.
pub struct WriteRing {
    ring: IoUring,
    /// The eventfd that counts completions; only with `CompletionWait::Event`.
    event: Option<OwnedFd>,
    entries: usize,
}

impl WriteRing {
    /// Creates an instance that executes up to `entries` writes at once.
    ///
    /// # Errors
    /// As io_uring_setup(2): EPERM if the machine forbids io_uring (kernel.io_uring_disabled), ENOSYS if the kernel has
    /// none.
    pub fn new(entries: u32, wait: CompletionWait) -> io::Result<Self> {
        let ring = IoUring::new(entries)?;
        let event = match wait {
            CompletionWait::Poll => None,
            CompletionWait::Event => {
                let event = eventfd(0, EventfdFlags::CLOEXEC)?;
                ring.submitter().register_eventfd(event.as_raw_fd())?;
                Some(event)
            }
        };
        Ok(Self { ring, event, entries: entries as usize })
    }

    /// Executes writes in any order, and returns when all have ended. A write that ended early is continued.
    ///
    /// # Errors
    /// The first error of a write, as of pwrite(2), or an error of io_uring_enter(2). Some of the writes may have been
    /// executed. The ring must not be used again.
    ///
    /// # Panics
    /// With more writes than entries, or a range outside its mapping.
    pub fn write(&mut self, writes: &[MappedWrite<'_>]) -> io::Result<()> {
        assert!(
            writes.len() <= self.entries,
            "{} writes do not fit in a ring of {} entries",
            writes.len(),
            self.entries
        );
        let mut done = vec![0; writes.len()];
        let mut first_error = None;
        loop {
            let is_unfinished = |index: &usize| done[*index] < writes[*index].bytes;
            let unfinished: Vec<usize> = (0..writes.len()).filter(is_unfinished).collect();
            if unfinished.is_empty() || first_error.is_some() {
                return first_error.map_or(Ok(()), Err);
            }
            for index in &unfinished {
                self.queue(&writes[*index], done[*index], *index as u64);
            }
            self.submit(unfinished.len())?;
            let mut ended = 0;
            while ended < unfinished.len() {
                self.wait()?;
                for completion in self.ring.completion() {
                    ended += 1;
                    match completion.result() {
                        0 => first_error = first_error.or(Some(io::ErrorKind::WriteZero.into())),
                        bytes if bytes > 0 => done[completion.user_data() as usize] += bytes as usize,
                        errno if -errno == libc::EINTR || -errno == libc::EAGAIN => {}
                        errno => first_error = first_error.or(Some(io::Error::from_raw_os_error(-errno))),
                    }
                }
            }
        }
    }

    fn queue(&mut self, write: &MappedWrite<'_>, done: usize, index: u64) {
        let from = write.mapping.pointer_to(write.offset + done, write.bytes - done);
        // One write transfers less than 2 GiB.
        let bytes = u32::try_from(write.bytes - done).unwrap_or(1 << 30);
        let entry = opcode::Write::new(types::Fd(write.file.as_raw_fd()), from.as_ptr(), bytes)
            .offset(write.file_offset + done as u64)
            .build()
            .user_data(index);
        // SAFETY: `write` returns after the completion of each entry that it has queued, and borrows mappings and files
        // until then. It returns earlier only if io_uring_enter(2) or the read of the eventfd fails permanently. The kernel
        // only reads the mapping. At worst, the kernel later writes other bytes to a file whose copy has failed, and the
        // caller repeats such a copy.
        unsafe { self.ring.submission().push(&entry) }.expect("the queue has room for all writes");
    }

    /// Passes all queued writes to the kernel.
    fn submit(&self, count: usize) -> io::Result<()> {
        let mut submitted = 0;
        while submitted < count {
            match self.ring.submit() {
                Ok(entries) => submitted += entries,
                // EAGAIN and EBUSY: the kernel is short of memory, or of room for completions.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {
                    thread::yield_now();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until there is a completion.
    fn wait(&mut self) -> io::Result<()> {
        let mut polls = 0;
        while self.ring.completion().is_empty() {
            match &self.event {
                // The count may include completions that were already collected, so the loop checks the queue again.
                Some(event) => {
                    rustix::io::retry_on_intr(|| rustix::io::read(event.as_fd(), &mut [0; 8]))?;
                }
                None if polls < POLLS_MAX => std::hint::spin_loop(),
                None => thread::yield_now(),
            }
            polls += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsFd as _;

    use super::*;

    const BYTES: usize = 1 << 20;

    /// A mapped file in which each byte depends on its offset.
    fn mapping(directory: &std::path::Path) -> SharedMapping {
        let path = directory.join("source");
        fs::write(&path, (0..BYTES).map(|at| (at / 7) as u8).collect::<Vec<_>>()).unwrap();
        SharedMapping::map_file(&File::options().read(true).write(true).open(&path).unwrap(), BYTES).unwrap()
    }

    #[test]
    fn each_write_puts_its_bytes_into_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let mapping = mapping(directory.path());
        for wait in [CompletionWait::Poll, CompletionWait::Event] {
            let mut ring = WriteRing::new(8, wait).unwrap();
            for round in 0..50 {
                let files: Vec<File> = (0..8)
                    .map(|file| File::create(directory.path().join(format!("{wait:?}-{round}-{file}"))).unwrap())
                    .collect();
                let writes: Vec<MappedWrite<'_>> = (0..8)
                    .map(|index| MappedWrite {
                        mapping: &mapping,
                        offset: index * 1000 + round,
                        bytes: 1 + index * 100_000,
                        file: files[index].as_fd(),
                        file_offset: index as u64 * 10,
                    })
                    .collect();
                ring.write(&writes).unwrap();
                for write in &writes {
                    let path = format!("{wait:?}-{round}-{}", write.file_offset / 10);
                    let written = fs::read(directory.path().join(path)).unwrap();
                    let mut expected = vec![0; write.bytes];
                    mapping.load(write.offset, &mut expected);
                    assert!(written[write.file_offset as usize..] == expected[..], "round {round}");
                }
            }
        }
    }

    #[test]
    fn a_file_that_is_not_open_for_writing_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let mapping = mapping(directory.path());
        let file = File::open(directory.path().join("source")).unwrap();
        let write = MappedWrite { mapping: &mapping, offset: 0, bytes: 10, file: file.as_fd(), file_offset: 0 };
        let error = WriteRing::new(1, CompletionWait::Event).unwrap().write(&[write]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }
}
