//! A region in memory of the owner's own, which others may read and write: an anonymous file that processes can share.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use farfork_wire::descriptor::ExtentId;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use crate::Region;

/// A region of one extent, number 0, in shared memory. Reads and writes of one byte range at once give either's bytes,
/// or a mixture: who needs more orders them.
#[derive(Debug)]
pub struct SharedMemory {
    file: File,
    bytes: u64,
}

impl SharedMemory {
    /// So many zeroes.
    ///
    /// # Errors
    /// Where there is no memory or file descriptor.
    pub fn new(bytes: u64) -> io::Result<Self> {
        let file = File::from(memfd_create("farfork-memory", MemfdFlags::CLOEXEC)?);
        file.set_len(bytes)?;
        Ok(Self { file, bytes })
    }
}

impl Region for SharedMemory {
    fn extent_bytes(&self, extent: ExtentId) -> Option<u64> {
        (extent == ExtentId(0)).then_some(self.bytes)
    }

    fn read(&self, _: ExtentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }

    fn write(&self, _: ExtentId, offset: u64, from: &[u8]) -> io::Result<()> {
        // Who shares the file could have made it shorter; a write must not lengthen it.
        if offset.checked_add(from.len() as u64).is_none_or(|end| end > self.bytes) {
            return Err(Errno::FAULT.into());
        }
        self.file.write_all_at(from, offset)
    }
}

impl AsFd for SharedMemory {
    /// The file, for mmap(2).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
