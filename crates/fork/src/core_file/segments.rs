//! The segments of a core file: which mappings it contains, and which part of each. The selection is the kernel's
//! (core(5), coredump_filter 0x33) without shared files. MADV_DONTDUMP mappings are omitted.

use std::ops::Range;

use farfork_sys::pagemap::{PageRegion, PageTables, ScanDetail};
use farfork_sys::process::{self, MapEntry};
use farfork_sys::process_memory::read_process;
use farfork_wire::PAGE_SIZE;

use super::CoreError;

const ELF_MAGIC: &[u8; 4] = b"\x7fELF";

/// The part of a mapping that is in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SegmentContents {
    /// Nothing: the contents are on a disk, or must not be dumped.
    Omitted,
    /// The first page, which identifies the file.
    FirstPage,
    /// Populated pages; the others are zero.
    Populated,
    /// All readable pages.
    All,
}

/// A mapping of the process.
#[derive(Debug)]
pub(super) struct CoreSegment {
    pub(super) start: u64,
    pub(super) end: u64,
    /// PROT_* bits.
    pub(super) protection: u8,
    pub(super) contents: SegmentContents,
    /// Ranges of populated pages, for [`SegmentContents::Populated`].
    populated_ranges: Vec<Range<u64>>,
    /// Path of the mapped file, and the offset in it.
    pub(super) file: Option<(Vec<u8>, u64)>,
}

impl CoreSegment {
    /// Returns the size of the segment in the file in bytes, including holes.
    pub(super) fn file_bytes(&self) -> u64 {
        match self.contents {
            SegmentContents::Omitted => 0,
            SegmentContents::FirstPage => PAGE_SIZE,
            SegmentContents::Populated | SegmentContents::All => self.end - self.start,
        }
    }

    /// Returns the address ranges to read.
    pub(super) fn readable_ranges(&self) -> Vec<Range<u64>> {
        match self.contents {
            SegmentContents::Populated => self.populated_ranges.clone(),
            _ => std::iter::once(self.start..self.start + self.file_bytes()).collect(),
        }
    }
}

/// Reads the mappings of a stopped process.
pub(super) fn read_segments(pid: i32) -> Result<Vec<CoreSegment>, CoreError> {
    let entries = process::read_smaps(pid).map_err(CoreError::read_error("memory map"))?;
    let mut tables = PageTables::open(pid).map_err(CoreError::read_error("page tables"))?;
    let mut areas = Vec::with_capacity(entries.len());
    for entry in entries {
        // Skip pages of the kernel, which only the process itself can read.
        if entry.path.starts_with(b"[vvar") || entry.path == b"[vsyscall]" {
            continue;
        }
        let mut regions = Vec::new();
        let scanned = tables.scan_populated(entry.start, entry.end, ScanDetail::Owner, &mut regions);
        scanned.map_err(CoreError::read_error("page tables"))?;
        areas.push(CoreSegment {
            contents: select_contents(pid, &entry, &regions),
            start: entry.start,
            end: entry.end,
            protection: entry.protection,
            populated_ranges: regions.iter().map(|region| region.start..region.end).collect(),
            file: is_file_mapping(&entry).then(|| (entry.path.clone(), entry.offset)),
        });
    }
    Ok(areas)
}

fn is_file_mapping(entry: &MapEntry) -> bool {
    entry.inode != 0 && entry.path.first() == Some(&b'/')
}

/// Whether a mapping is shown as a file that no path leads to.
fn is_unlinked(entry: &MapEntry) -> bool {
    let starts: [&[u8]; 3] = [b"/memfd:", b"/dev/zero", b"/SYSV"];
    starts.iter().any(|start| entry.path.starts_with(start)) || entry.path.ends_with(b" (deleted)")
}

fn select_contents(pid: i32, entry: &MapEntry, regions: &[PageRegion]) -> SegmentContents {
    let is_dumpable = !["dd", "io", "pf"].iter().any(|flag| entry.has_flag(flag));
    let is_written = regions.iter().any(|region| !region.is_file());
    match (is_dumpable, is_file_mapping(entry)) {
        (false, _) => SegmentContents::Omitted,
        (true, false) if entry.path == b"[vdso]" => SegmentContents::All,
        (true, false) => SegmentContents::Populated,
        (true, true) if entry.is_shared && !is_unlinked(entry) => SegmentContents::Omitted,
        (true, true) if entry.is_shared || is_written || is_unlinked(entry) => SegmentContents::All,
        (true, true) if starts_with_elf_header(pid, entry) => SegmentContents::FirstPage,
        (true, true) => SegmentContents::Omitted,
    }
}

/// Whether the mapping begins with an ELF header. Debuggers find the build id of the program or library through this
/// page.
fn starts_with_elf_header(pid: i32, entry: &MapEntry) -> bool {
    let mut magic = [0; ELF_MAGIC.len()];
    entry.offset == 0 && read_process(pid, entry.start, &mut magic).is_ok() && magic == *ELF_MAGIC
}
