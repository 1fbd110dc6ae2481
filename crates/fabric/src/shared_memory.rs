//! A region in the owner's own memory that requesters may read and write: a memfd that processes can share.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use farfork_wire::descriptor::ExtentId;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use crate::Region;

/// A region with one extent, number 0, in shared memory. A read that is concurrent with a write may return old bytes,
/// new bytes or a mixture; a caller that must not get a mixture must order the accesses.
#[derive(Debug)]
pub struct SharedMemory {
    file: File,
    bytes: u64,
}

impl SharedMemory {
    /// Creates a region of `bytes` zeroes.
    ///
    /// # Errors
    /// There is not enough memory, or no file descriptor.
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
        // A process that shares the file may have shortened it. A write must not extend it.
        if offset.checked_add(from.len() as u64).is_none_or(|end| end > self.bytes) {
            return Err(Errno::FAULT.into());
        }
        self.file.write_all_at(from, offset)
    }
}

impl AsFd for SharedMemory {
    /// Returns the file, for mmap(2).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
