//! PAGEMAP_SCAN (Linux 6.7): finds the pages of a process that hold data.

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt as _;
use std::ptr;

/// Number of regions requested per call: as many as the kernel collects before it copies them to user space. Clearing a
/// larger buffer in [`PageTables::open`] would take longer than the scan of a small process.
const REGIONS_PER_CALL: usize = 512;

const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
const PAGE_IS_HUGE: u64 = 1 << 6;
/// Since Linux 6.15. Earlier kernels refuse this category with EINVAL.
const PAGE_IS_GUARD: u64 = 1 << 8;

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;

/// Neighbouring pages of one kind; addresses in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageRegion {
    /// First address.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    categories: u64,
}

impl PageRegion {
    /// Whether the pages belong to a file (page cache, shared memory). Private copies that the process has written do not.
    pub fn is_file(&self) -> bool {
        self.categories & PAGE_IS_FILE != 0
    }

    /// Whether the pages are guard pages (MADV_GUARD_INSTALL), which have no data.
    pub fn is_guard(&self) -> bool {
        self.categories & PAGE_IS_GUARD != 0
    }

    /// Whether each page is a huge page that is mapped as a whole.
    pub fn is_huge(&self) -> bool {
        self.categories & PAGE_IS_HUGE != 0
    }
}

#[repr(C)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_length: u64,
    pages_max: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof: u64,
    category_returned: u64,
}

const _: () = assert!(size_of::<ScanArguments>() == 96);

/// Size of a page, and of its entry in a pagemap, in bytes.
const PAGE_BYTES: u64 = 4096;
const ENTRY_BYTES: u64 = 8;
/// Bits of an entry: the page is present; no other process has mapped it.
const ENTRY_IS_PRESENT: u64 = 1 << 63;
const ENTRY_IS_EXCLUSIVE: u64 = 1 << 56;

/// The amount of detail that a scan reports about the pages that it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanDetail {
    /// Reports only that the pages have data. The kernel reads only the page tables.
    Populated,
    /// Also reports [`PageRegion::is_file`]. For this the kernel reads each page's `struct page`, which takes five times as
    /// long.
    Owner,
}

/// The page tables of a process.
#[derive(Debug)]
pub struct PageTables {
    pagemap: File,
    batch: Vec<PageRegion>,
    supports_guards: bool,
}

impl PageTables {
    /// Opens the page tables of a process.
    ///
    /// # Errors
    /// `NotFound` if the process has ended; otherwise as open(2) of `/proc/PID/pagemap`.
    pub fn open(pid: i32) -> io::Result<Self> {
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
        Ok(Self { pagemap, batch: vec![PageRegion::default(); REGIONS_PER_CALL], supports_guards: true })
    }

    /// Adds to `found` all pages in `start..end` that are present or swapped out and are not the zero page, in ascending
    /// order.
    ///
    /// # Errors
    /// ENOTTY before Linux 6.7; ESRCH if the process has ended.
    pub fn scan_populated(
        &mut self,
        start: u64,
        end: u64,
        detail: ScanDetail,
        found: &mut Vec<PageRegion>,
    ) -> io::Result<()> {
        let mut from = start;
        while from < end {
            let guards = if self.supports_guards { PAGE_IS_GUARD } else { 0 };
            let owner = if detail == ScanDetail::Owner { PAGE_IS_FILE } else { 0 };
            let reported = PAGE_IS_HUGE | guards | owner;
            let (count, walked_to) = match scan(&self.pagemap, from..end, reported, &mut self.batch) {
                // This kernel does not support guard pages: scan without that category.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) && self.supports_guards => {
                    self.supports_guards = false;
                    continue;
                }
                scanned => scanned?,
            };
            found.extend_from_slice(&self.batch[..count]);
            if walked_to <= from {
                return Err(io::Error::other("PAGEMAP_SCAN does not advance"));
            }
            from = walked_to;
        }
        Ok(())
    }

    /// Whether another process also maps a page in `start..end`. After a fork, parent and child share each page until one of
    /// them writes to it. The zero page counts as shared.
    ///
    /// # Errors
    /// ESRCH if the process has ended.
    pub fn is_any_shared(&self, start: u64, end: u64) -> io::Result<bool> {
        const ENTRY_MASK: u64 = ENTRY_IS_PRESENT | ENTRY_IS_EXCLUSIVE;
        let mut entries = vec![0; ((end - start) / PAGE_BYTES * ENTRY_BYTES) as usize];
        self.pagemap.read_exact_at(&mut entries, start / PAGE_BYTES * ENTRY_BYTES)?;
        let (entries, _) = entries.as_chunks();
        Ok(entries.iter().any(|entry| u64::from_ne_bytes(*entry) & ENTRY_MASK == ENTRY_IS_PRESENT))
    }
}

/// Makes one PAGEMAP_SCAN call, which reports `reported_categories` for each region. Returns the number of regions found,
/// and the address up to which the kernel scanned.
fn scan(
    pagemap: &File,
    range: std::ops::Range<u64>,
    reported_categories: u64,
    regions: &mut [PageRegion],
) -> io::Result<(usize, u64)> {
    let mut arguments = ScanArguments {
        size: size_of::<ScanArguments>() as u64,
        flags: 0,
        start: range.start,
        end: range.end,
        walk_end: 0,
        regions: regions.as_mut_ptr().expose_provenance() as u64,
        regions_length: regions.len() as u64,
        pages_max: 0,
        category_inverted: PAGE_IS_PFNZERO,
        category_mask: PAGE_IS_PFNZERO,
        category_anyof: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        category_returned: reported_categories,
    };
    // SAFETY: the kernel writes `arguments` and at most `regions_length` elements of `regions`, whose layout is struct
    // page_region; both outlive the call.
    let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, ptr::from_mut(&mut arguments)) };
    if count < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((count as usize, arguments.walk_end))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    /// Maps `pages` new pages. The kernel populates only those that are written: some machines are set to populate more than
    /// one page of 4 KiB per fault (`/sys/kernel/mm/transparent_hugepage/hugepages-16kB/enabled`).
    fn map_small_pages(pages: usize) -> *mut u8 {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        // SAFETY: a new mapping, which only the calling test uses. It stays until the process ends.
        unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let start = mmap_anonymous(ptr::null_mut(), pages * PAGE, access, MapFlags::PRIVATE).unwrap();
            // EINVAL: this kernel has no huge pages.
            let _ = madvise(start, pages * PAGE, Advice::LinuxNoHugepage);
            start.cast()
        }
    }

    #[test]
    fn guard_pages_are_distinguished() {
        const MADV_GUARD_INSTALL: libc::c_int = 102;
        let memory = map_small_pages(8);
        // SAFETY: pages of this mapping.
        let guarded = unsafe { libc::madvise(memory.cast(), 2 * PAGE, MADV_GUARD_INSTALL) } == 0;
        // SAFETY: page 4 is writable, and not guarded.
        unsafe { memory.add(4 * PAGE).write(1) };
        let (mut regions, base) = (Vec::new(), memory.addr() as u64);
        let mut tables = PageTables::open(std::process::id() as i32).unwrap();
        tables.scan_populated(base, base + 8 * PAGE as u64, ScanDetail::Populated, &mut regions).unwrap();
        let found: Vec<_> =
            regions.iter().map(|r| ((r.start - base) / 4096, (r.end - base) / 4096, r.is_guard())).collect();
        // Linux before 6.13 has no guard pages.
        let expected = if guarded { vec![(0, 2, true), (4, 5, false)] } else { vec![(4, 5, false)] };
        assert_eq!(found, expected);
    }

    #[test]
    fn only_written_pages_are_found() {
        let memory = map_small_pages(32);
        for page in [10, 11] {
            // SAFETY: the page is in this mapping.
            unsafe { memory.add(page * PAGE).write(1) };
        }
        let base = memory.addr() as u64;
        let mut tables = PageTables::open(std::process::id() as i32).unwrap();
        for detail in [ScanDetail::Populated, ScanDetail::Owner] {
            let mut regions = Vec::new();
            tables.scan_populated(base, base + 32 * PAGE as u64, detail, &mut regions).unwrap();
            let found: Vec<_> =
                regions.iter().map(|r| ((r.start - base) / 4096, (r.end - base) / 4096, r.is_file())).collect();
            assert_eq!(found, [(10, 12, false)]);
        }
    }
}
