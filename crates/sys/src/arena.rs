//! A large private mapping. Only written parts use memory, and parts can be freed. Core dumps and forked processes do not
//! contain the mapping.

use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::slice;

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Private memory of a fixed size; unwritten parts are zero. Dropping it unmaps everything.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and exists until the drop. It is accessed only through
// `&self` and `&mut self`, like any owned memory.
unsafe impl Send for Arena {}
// SAFETY: as above; `&self` only reads.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves addresses. The kernel allocates memory when a part is written, in huge pages if it can.
    ///
    /// # Errors
    /// As mmap(2); `InvalidInput` for 0 bytes.
    pub fn reserve(bytes: usize) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address that the kernel chooses changes no memory in use.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, flags)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let arena = Self { base, bytes };
        arena.advise(0..bytes, Advice::LinuxDontDump)?;
        arena.advise(0..bytes, Advice::LinuxDontFork)?;
        // Kernels without huge pages refuse this advice.
        let _ = arena.advise(0..bytes, Advice::LinuxHugepage);
        Ok(arena)
    }

    /// The number of reserved bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes of a range.
    ///
    /// # Panics
    /// If the range is not inside the arena.
    pub fn slice(&self, range: Range<usize>) -> &[u8] {
        let from = self.pointer_to(&range);
        // SAFETY: `pointer_to` checked that the range is mapped, for as long as `self` lives. It is initialised (the kernel
        // gives zeroes), and nothing writes while `self` is borrowed.
        unsafe { slice::from_raw_parts(from.as_ptr(), range.len()) }
    }

    /// Writes bytes at `offset`.
    ///
    /// # Panics
    /// If the range is not inside the arena.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        let range = offset..offset + bytes.len();
        let to = self.pointer_to(&range);
        // SAFETY: as in `slice`; `self` is borrowed exclusively, so this is the only reference into the mapping.
        unsafe { slice::from_raw_parts_mut(to.as_ptr(), range.len()) }.copy_from_slice(bytes);
    }

    /// Frees the memory of a range. The range then reads as zero. Both ends must be multiples of the page size.
    ///
    /// # Errors
    /// As madvise(2).
    ///
    /// # Panics
    /// If the range is not inside the arena.
    pub fn release(&mut self, range: Range<usize>) -> io::Result<()> {
        self.advise(range, Advice::LinuxDontNeed)
    }

    fn advise(&self, range: Range<usize>, advice: Advice) -> io::Result<()> {
        let from = self.pointer_to(&range);
        // SAFETY: the range is in our own mapping (`pointer_to`). Of the kinds of advice used here only DONTNEED changes
        // contents, and `release` gives it under an exclusive borrow.
        unsafe { rustix::mm::madvise(from.as_ptr().cast(), range.len(), advice)? };
        Ok(())
    }

    fn pointer_to(&self, range: &Range<usize>) -> NonNull<u8> {
        let inside = range.start <= range.end && range.end <= self.bytes;
        assert!(inside, "{range:?} is outside of an arena of {} bytes", self.bytes);
        // SAFETY: inside the one mapping, as just checked.
        unsafe { self.base.add(range.start) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `reserve` mapped; no reference into it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_kept_until_they_are_released() {
        let mut arena = Arena::reserve(1 << 20).unwrap();
        assert!(arena.slice(0..1 << 20).iter().all(|byte| *byte == 0));
        arena.write(8192, &[7; 4096]);
        assert_eq!(arena.slice(8191..8194), [0, 7, 7]);
        arena.release(8192..12288).unwrap();
        assert_eq!(arena.slice(8191..8194), [0, 0, 0]);
        assert!(Arena::reserve(0).is_err());
    }

    #[test]
    #[should_panic(expected = "of an arena of 4096 bytes")]
    fn a_write_outside_the_arena_panics() {
        Arena::reserve(4096).unwrap().write(4090, b"too long");
    }
}
