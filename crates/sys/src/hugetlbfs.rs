//! Finds the present pages of hugetlbfs files. lseek(2) with SEEK_DATA does not help: it reports the whole file as data.
//! Reading a missing page through a mapping would take a page from the pool.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::ptr;

use rustix::fs::fstatfs;
use rustix::mm::{MapFlags, ProtFlags};

use crate::userfaultfd::{RangeError, RangeErrorCause, UffdFeatures, Userfaultfd};

/// The type that statfs(2) reports for hugetlbfs.
pub const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Size of the blocks that stat(2) counts, in bytes.
const BLOCK_BYTES: u64 = 512;

/// Whether a file is on hugetlbfs.
///
/// # Errors
/// As fstatfs(2).
pub fn is_on_hugetlbfs(file: impl AsFd) -> io::Result<bool> {
    Ok(fstatfs(file)?.f_type as u64 == HUGETLBFS_MAGIC)
}

/// Finds the ranges in which a hugetlbfs file has pages, in ascending order. The file must be open for reading. Takes no
/// page from the pool.
///
/// # Errors
/// As fstat(2), mmap(2) and userfaultfd(2). For a file that has all of its pages, or none, only fstat(2) is called.
pub fn find_present_ranges(file: &File) -> io::Result<Vec<Range<u64>>> {
    let status = file.metadata()?;
    let (bytes, page_bytes) = (status.len(), status.blksize());
    let present_bytes = (status.blocks() * BLOCK_BYTES).min(bytes.next_multiple_of(page_bytes));
    if present_bytes == 0 {
        return Ok(Vec::new());
    }
    if present_bytes >= bytes {
        return Ok(std::iter::once(0..bytes).collect());
    }
    let mut found = PresenceProbe::map(file, bytes.next_multiple_of(page_bytes))?.find(page_bytes, present_bytes)?;
    if let Some(last) = found.last_mut() {
        last.end = last.end.min(bytes);
    }
    Ok(found)
}

/// A mapping of a file, registered with a userfaultfd. UFFDIO_CONTINUE maps pages that the file has, and returns EFAULT for
/// missing ones.
struct PresenceProbe {
    start: u64,
    bytes: u64,
    faults: Userfaultfd,
}

impl PresenceProbe {
    fn map(file: &File, bytes: u64) -> io::Result<Self> {
        let faults = Userfaultfd::create()?;
        faults.enable(UffdFeatures::MINOR_HUGETLBFS)?;
        // Private, because a shared mapping could be registered only if it were writable. NORESERVE, so that the mapping
        // takes no page.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses changes no memory in use.
        let at = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes as usize, ProtFlags::READ, flags, file.as_fd(), 0)? };
        let probe = Self { start: at.expose_provenance() as u64, bytes, faults };
        probe.faults.register_minor(probe.start, probe.bytes)?;
        Ok(probe)
    }

    /// Searches until it has found `present_bytes` bytes.
    fn find(&self, page_bytes: u64, present_bytes: u64) -> io::Result<Vec<Range<u64>>> {
        let (mut runs, mut found, mut at) = (Vec::<Range<u64>>::new(), 0, 0);
        while at < self.bytes && found < present_bytes {
            let done = match self.faults.continue_range(self.start + at, self.bytes - at) {
                Ok(()) => self.bytes - at,
                Err(RangeError { done: 0, cause: RangeErrorCause::Other(error) })
                    if error.raw_os_error() == Some(libc::EFAULT) =>
                {
                    at += page_bytes;
                    continue;
                }
                Err(RangeError { done: 0, cause }) => {
                    return Err(io::Error::other(format!("UFFDIO_CONTINUE failed: {cause:?}")));
                }
                Err(RangeError { done, .. }) => done,
            };
            match runs.last_mut() {
                Some(last) if last.end == at => last.end += done,
                _ => runs.push(at..at + done),
            }
            found += done;
            at += done;
        }
        Ok(runs)
    }
}

impl Drop for PresenceProbe {
    fn drop(&mut self) {
        // SAFETY: `map` mapped this range, with this length, and nothing refers to its memory.
        let unmapped =
            unsafe { rustix::mm::munmap(ptr::with_exposed_provenance_mut(self.start as usize), self.bytes as usize) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    /// The end-to-end test `hugetlbfs_files` covers files with pages: it reserves huge pages on the machine.
    #[test]
    fn a_hugetlbfs_file_without_pages_has_no_data() {
        let file = File::from(memfd_create("huge", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB).unwrap());
        assert!(is_on_hugetlbfs(&file).unwrap() && !is_on_hugetlbfs(tempfile::tempfile().unwrap()).unwrap());
        file.set_len(64 << 20).unwrap();
        assert_eq!(find_present_ranges(&file).unwrap(), []);
        assert_eq!(PresenceProbe::map(&file, 64 << 20).unwrap().find(2 << 20, 2 << 20).unwrap(), []);
    }
}
