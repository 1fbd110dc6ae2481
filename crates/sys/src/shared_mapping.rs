//! A shared file mapping for records that outlive the process that writes them. The next process finds everything that was
//! stored before a SIGKILL, and storing a record needs no system call.
//!
//! Other processes may write the file at any time, so its bytes are only copied, never borrowed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

/// A shared mapping of a file's first bytes. Dropping it unmaps it; the file keeps the stored bytes.
#[derive(Debug)]
pub struct SharedMapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and exists until the drop.
unsafe impl Send for SharedMapping {}

impl SharedMapping {
    /// Maps the first `bytes` of `file`, which must be at least that long and be open for reading and writing. If the file
    /// is truncated later, access raises SIGBUS. So map only files that no other program may truncate.
    ///
    /// # Errors
    /// As mmap(2); `InvalidInput` if the file is shorter or `bytes` is 0.
    pub fn map_file(file: &File, bytes: usize) -> io::Result<Self> {
        if bytes == 0 || file.metadata()?.len() < bytes as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses changes no memory in use.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, file.as_fd(), 0)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes })
    }

    /// The number of mapped bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Calls msync(2) with MS_SYNC. Returns when all stored bytes are in the file.
    ///
    /// # Errors
    /// As msync(2).
    pub fn synchronize(&self) -> io::Result<()> {
        // SAFETY: the whole range is mapped as long as `self` lives, and msync changes no memory.
        let synchronized = unsafe { rustix::mm::msync(self.base.as_ptr().cast(), self.bytes, MsyncFlags::SYNC) };
        synchronized.map_err(io::Error::from)
    }

    /// Copies bytes out of the mapping, starting at `offset`.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub fn load(&self, offset: usize, into: &mut [u8]) {
        let from = self.pointer_to(offset, into.len());
        for (index, byte) in into.iter_mut().enumerate() {
            // SAFETY: `pointer_to` checked that the whole range is mapped. A volatile read of a byte is valid for any value,
            // also while another process writes.
            *byte = unsafe { from.as_ptr().add(index).read_volatile() };
        }
    }

    /// Stores bytes from `offset` on, in ascending order. A process that is killed during the call has stored a prefix of
    /// them.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub fn store(&self, offset: usize, bytes: &[u8]) {
        let to = self.pointer_to(offset, bytes.len());
        for (index, byte) in bytes.iter().enumerate() {
            // SAFETY: `pointer_to` checked that the whole range is mapped; it is writable for as long as `self` lives.
            unsafe { to.as_ptr().add(index).write_volatile(*byte) };
        }
    }

    /// Copies many bytes out of the mapping, as fast as memory allows. If another process stores bytes at the same time,
    /// each copied byte may be old or new. So callers verify a checksum.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        let from = self.pointer_to(offset, into.len());
        // SAFETY: `pointer_to` checked that the whole range is mapped. `into` is a Rust reference, so it does not overlap
        // the mapping, to which no reference exists.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) };
    }

    /// Like [`Self::copy_out`], but appends to a buffer, without filling it with zeroes first.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub fn append_to(&self, buffer: &mut Vec<u8>, offset: usize, bytes: usize) {
        let from = self.pointer_to(offset, bytes);
        buffer.reserve(bytes);
        let used = buffer.len();
        // SAFETY: as in `copy_out`. The spare capacity has room for `bytes` bytes, and they are written before `set_len`
        // includes them.
        unsafe {
            ptr::copy_nonoverlapping(from.as_ptr(), buffer.as_mut_ptr().add(used), bytes);
            buffer.set_len(used + bytes);
        }
    }

    /// Copies many bytes into the mapping, in any order. A process that is killed during the call may have stored any part
    /// of them.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let to = self.pointer_to(offset, bytes.len());
        // SAFETY: as in `copy_out`, with the mapping as the target, which is writable for as long as `self` lives.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
    }

    /// Loads a number in the machine's byte order.
    ///
    /// # Panics
    /// If the number is not inside the mapping, or `offset` is not a multiple of 8.
    pub fn load_u64(&self, offset: usize) -> u64 {
        self.atomic_at(offset).load(Ordering::Acquire)
    }

    /// Stores a number atomically: no reader sees a part of it.
    ///
    /// # Panics
    /// If the number is not inside the mapping, or `offset` is not a multiple of 8.
    pub fn store_u64(&self, offset: usize, number: u64) {
        self.atomic_at(offset).store(number, Ordering::Release);
    }

    /// Calls read(2) directly into the mapping. The kernel stores the bytes even if this process is killed before it sees
    /// the result.
    ///
    /// # Errors
    /// As read(2).
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub fn read_from(&self, from: impl AsFd, offset: usize, bytes: usize) -> io::Result<usize> {
        let to = self.pointer_to(offset, bytes);
        // SAFETY: `pointer_to` checked that `bytes` bytes are mapped from `to` on; no reference into them ever exists.
        let read = unsafe { libc::read(from.as_fd().as_raw_fd(), to.as_ptr().cast(), bytes) };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }

    /// Calls pwrite(2) directly from the mapping. The bytes are copied only once, by the kernel.
    ///
    /// # Errors
    /// As pwrite(2).
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub fn write_to(&self, offset: usize, bytes: usize, file: impl AsFd, file_offset: u64) -> io::Result<usize> {
        let from = self.pointer_to(offset, bytes);
        let file_offset = file_offset.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: `pointer_to` checked that `bytes` bytes are mapped from `from` on. The kernel only reads them.
        let written = unsafe { libc::pwrite(file.as_fd().as_raw_fd(), from.as_ptr().cast(), bytes, file_offset) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    /// The address of a range, for a system call that stores a number in it.
    ///
    /// # Panics
    /// If the range is not inside the mapping, or `offset` is not a multiple of 8.
    pub(crate) fn address(&self, offset: usize, bytes: usize) -> u64 {
        assert!(offset.is_multiple_of(8), "the offset of a number must be a multiple of 8");
        self.pointer_to(offset, bytes).as_ptr() as u64
    }

    fn atomic_at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "the offset of a number must be a multiple of 8");
        // SAFETY: inside the mapping (`pointer_to`), aligned (the base is page-aligned), and accessed only as an atomic or
        // by volatile copies of bytes.
        unsafe { AtomicU64::from_ptr(self.pointer_to(offset, 8).as_ptr().cast()) }
    }

    pub(crate) fn pointer_to(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(inside, "{bytes} bytes at offset {offset} are outside of a mapping of {} bytes", self.bytes);
        // SAFETY: inside the one mapping, as just checked.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `map_file` mapped; no reference into it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_bytes_are_in_the_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let one = SharedMapping::map_file(&file, 4096).unwrap();
        one.store(9, b"record");
        one.store_u64(16, 7);
        drop(one);
        let other = SharedMapping::map_file(&file, 4096).unwrap();
        let mut bytes = [0; 6];
        other.load(9, &mut bytes);
        assert_eq!((&bytes, other.load_u64(16)), (b"record", 7));
    }

    #[test]
    fn a_range_is_appended_to_a_buffer() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let mapping = SharedMapping::map_file(&file, 4096).unwrap();
        mapping.store(4090, b"record");
        let mut buffer = b"a ".to_vec();
        mapping.append_to(&mut buffer, 4090, 6);
        mapping.append_to(&mut buffer, 4096, 0);
        assert_eq!(buffer, b"a record");
    }

    #[test]
    fn a_range_is_written_to_another_file() {
        use std::os::unix::fs::FileExt as _;
        let [file, copy] = [(); 2].map(|()| tempfile::tempfile().unwrap());
        file.set_len(4096).unwrap();
        let mapping = SharedMapping::map_file(&file, 4096).unwrap();
        mapping.store(100, b"record");
        assert_eq!(mapping.write_to(100, 6, &copy, 3).unwrap(), 6);
        let mut bytes = [1; 9];
        copy.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"\0\0\0record");
        let error = mapping.write_to(0, 1, &copy, u64::MAX).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    #[should_panic(expected = "of a mapping of 4096")]
    fn a_store_outside_the_mapping_panics() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        SharedMapping::map_file(&file, 4096).unwrap().store(4090, b"too long");
    }
}
