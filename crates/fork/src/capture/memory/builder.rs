//! Builds the memory map of a descriptor from the map and the page tables of a template.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use farfork_sys::hugetlbfs;
use farfork_sys::pagemap::PageRegion;
use farfork_sys::process::MapEntry;
use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::{
    Backing, Extent, ExtentId, ExtentSource, FileIdentity, MappedFile, MappedRange, Mapping, MappingFlags, PageRun,
};

use super::template_memory::TemplateMemory;
use super::writable_files::{WrittenMapping, WrittenMappings};
use super::{
    MappingKind, check_path, check_segment_size, classify_mapping, is_dontfork, is_private_hugetlb, mapped_range_of,
    mapping_error, merge_runs,
};
use crate::capture::error::{CaptureError, Refusal};
use crate::capture::inheritance::InheritedPages;
use crate::capture::shared::{SEGMENT_PREFIX, SharedCopies};
use crate::file_identity::read_identity;

/// The memory of a descriptor.
#[derive(Debug, Default)]
pub(crate) struct MemoryMap {
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) extents: Vec<Extent>,
    pub(crate) files: Vec<MappedFile>,
    /// Pages that were written in private file mappings, by the address of the mapping.
    pub(crate) written_mappings: WrittenMappings,
}

struct MemoryMapBuilder<'a> {
    pid: i32,
    template_pid: i32,
    shared: &'a SharedCopies,
    /// Index of the executable, if it is a shared object. No process can write to it.
    exe_object: Option<u32>,
    inherited: &'a InheritedPages,
    regions: Vec<PageRegion>,
    file_indices: BTreeMap<(u64, u64), u32>,
    memory: MemoryMap,
}

impl MemoryMap {
    /// Builds the memory of an address space.
    pub(crate) fn build(
        space: TemplateMemory,
        shared: &SharedCopies,
        inheritance: &InheritedPages,
    ) -> Result<Self, CaptureError> {
        let TemplateMemory { pid, template_pid: subject, mappings: entries, regions, .. } = space;
        let (file_indices, memory) = (BTreeMap::new(), Self::default());
        let executed = shared.executable_index(subject).map_err(CaptureError::reading(pid, "its executable"))?;
        let mut builder = MemoryMapBuilder {
            pid,
            template_pid: subject,
            shared,
            exe_object: executed,
            inherited: inheritance,
            regions,
            file_indices,
            memory,
        };
        for entry in entries.iter().filter(|entry| !is_dontfork(entry)) {
            builder.add_mapping(entry)?;
        }
        Ok(builder.memory)
    }
}

impl MemoryMapBuilder<'_> {
    fn add_mapping(&mut self, entry: &MapEntry) -> Result<(), CaptureError> {
        let kind = classify_mapping(entry).map_err(|reason| self.refusal_of(entry, reason))?;
        let backing = match kind {
            MappingKind::Vsyscall => return Ok(()),
            MappingKind::Special(special) => Backing::Special(special),
            MappingKind::Anonymous if is_wiped_on_fork(entry) => Backing::Anonymous { extent: None },
            MappingKind::Anonymous if is_private_hugetlb(entry) => self.build_hugetlb_file(entry)?,
            // A mapping of a deleted file, or of /dev/zero, has both the file's pages and written ones.
            MappingKind::Anonymous if has_file(entry) => match self.shared_object_of(entry) {
                Some(object) => self.build_private_object(entry, object),
                None => self.build_written_file(entry)?,
            },
            MappingKind::Anonymous => Backing::Anonymous { extent: self.build_anonymous(entry) },
            MappingKind::PrivateFile => self.build_private_file(entry)?,
            MappingKind::SharedFile => {
                let (file, file_bytes) = self.file_index(entry)?;
                let writable = entry.has_flag("mw");
                let runs = || merge_runs(pages_within_file(entry, file_bytes));
                let extent = (!writable).then(|| self.push_extent(entry, runs()));
                Backing::SharedFile { file, offset: entry.offset, writable, extent }
            }
            MappingKind::SharedObject => self.build_shared_object(entry)?,
        };
        self.memory.mappings.push(Mapping {
            start: entry.start,
            end: entry.end,
            protection: entry.protection,
            flags: mapping_flags(entry, self.has_huge_pages(entry)),
            backing,
            guards: self.populated_and_guard_runs(entry, PageRegion::is_guard),
        });
        Ok(())
    }

    /// Adds an extent for memory without a file: pages of the template and inherited pages.
    fn build_anonymous(&mut self, entry: &MapEntry) -> Option<ExtentId> {
        let (populated, inherited) =
            (self.populated_runs(entry, |_| true), self.inherited.runs_between(entry.start, entry.end));
        if populated.is_empty() && inherited.is_empty() {
            return None;
        }
        let id = self.push_extent(entry, populated);
        self.memory.extents[id.0 as usize].inherited = inherited;
        Some(id)
    }

    /// Builds a private file mapping. If the process has written to it, the owner serves all its pages; otherwise children
    /// can map the file.
    fn build_private_file(&mut self, entry: &MapEntry) -> Result<Backing, CaptureError> {
        if let Some(object) = self.shared_object_of(entry) {
            return Ok(self.build_private_object(entry, object));
        }
        let is_written = !self.populated_runs(entry, |region| !region.is_file()).is_empty();
        if is_written || str::from_utf8(&entry.path).is_err() {
            return self.build_written_file(entry);
        }
        let (file, file_bytes) = self.file_index(entry)?;
        let runs = merge_runs(pages_within_file(entry, file_bytes));
        let extent = self.push_extent(entry, runs);
        Ok(Backing::PrivateFile { file, offset: entry.offset, extent })
    }

    /// Builds a private file mapping that the owner serves completely: written pages, and the file's own, which the owner
    /// reads through the same mapping.
    fn build_written_file(&mut self, entry: &MapEntry) -> Result<Backing, CaptureError> {
        let file_bytes = match std::fs::metadata(self.map_files_link(entry)) {
            // Pages that were not written show the file, which may be changed in place.
            Ok(metadata) if metadata.is_file() && has_path(entry) => {
                let (file, bytes) = self.file_index(entry)?;
                self.memory.files[file as usize].has_written_pages = true;
                let pages = self.populated_runs(entry, |region| !region.is_file());
                self.memory.written_mappings.insert(entry.start, WrittenMapping { file, offset: entry.offset, pages });
                bytes
            }
            Ok(metadata) => metadata.len(),
            Err(source) => return Err(self.refusal_of(entry, &mapping_error(entry, &source))),
        };
        let mut runs: Vec<PageRun> = pages_within_file(entry, file_bytes).into_iter().collect();
        runs.extend(self.populated_runs(entry, |_| true));
        runs.sort_unstable_by_key(|run| run.first);
        Ok(Backing::Anonymous { extent: self.add_extent(entry, merge_runs(runs)) })
    }

    /// Returns the shared object of a private mapping. `None` for the executable: its pages never change, and are fetched
    /// when they are touched.
    fn shared_object_of(&self, entry: &MapEntry) -> Option<u32> {
        use std::os::unix::fs::MetadataExt;
        if self.shared.is_empty() {
            return None;
        }
        let found = std::fs::metadata(self.map_files_link(entry)).ok()?;
        let object = self.shared.index_of(found.dev(), found.ino())?;
        (self.exe_object != Some(object)).then_some(object)
    }

    fn build_private_object(&mut self, entry: &MapEntry, object: u32) -> Backing {
        let pages = self.populated_runs(entry, |region| !region.is_file());
        Backing::PrivateObject { object, offset: entry.offset, written: self.add_extent(entry, pages) }
    }

    /// Builds private hugetlbfs memory of a stopped parent: pages of the process, and data of its file. Omits pages that
    /// neither has, because reading them would allocate them.
    fn build_hugetlb_file(&mut self, entry: &MapEntry) -> Result<Backing, CaptureError> {
        let data = File::open(self.map_files_link(entry)).and_then(|file| hugetlbfs::find_present_ranges(&file));
        let data = data.map_err(|source| self.refusal_of(entry, &mapping_error(entry, &source)))?;
        let pages = |range: Range<u64>| PageRun {
            first: (range.start - entry.start) / PAGE_SIZE,
            count: (range.end - range.start) / PAGE_SIZE,
        };
        let mut runs: Vec<PageRun> = data.iter().filter_map(|data| mapped_range_of(entry, data)).map(pages).collect();
        runs.extend(self.populated_runs(entry, |_| true));
        runs.sort_unstable_by_key(|run| run.first);
        Ok(Backing::Anonymous { extent: self.add_extent(entry, merge_runs(runs)) })
    }

    fn build_shared_object(&mut self, entry: &MapEntry) -> Result<Backing, CaptureError> {
        use std::os::unix::fs::MetadataExt;
        let unstable = || CaptureError::Unstable { pid: self.pid, what: "its shared memory".to_owned() };
        let metadata = std::fs::metadata(self.map_files_link(entry)).map_err(|_| unstable())?;
        let object = self.shared.index_of(metadata.dev(), metadata.ino()).ok_or_else(unstable)?;
        if entry.path.starts_with(SEGMENT_PREFIX) {
            check_segment_size(entry, metadata.len()).map_err(|reason| self.refusal_of(entry, reason))?;
        }
        Ok(Backing::SharedMemory { object, offset: entry.offset })
    }

    /// Returns the index of a mapping's file, and the file's size in bytes. Adds the file if it is new.
    fn file_index(&mut self, entry: &MapEntry) -> Result<(u32, u64), CaptureError> {
        let key = (entry.device, entry.inode);
        if let Some(index) = self.file_indices.get(&key) {
            return Ok((*index, self.memory.files[*index as usize].identity.bytes));
        }
        let path = check_path(entry).map_err(|reason| self.refusal_of(entry, reason))?;
        let identity = identify_regular(&self.map_files_link(entry));
        let identity = identity.map_err(|source| self.refusal_of(entry, &mapping_error(entry, &source)))?;
        let (index, bytes) = (self.memory.files.len() as u32, identity.bytes);
        let owner_range = MappedRange { process: 0, start: entry.start, end: entry.end };
        let path = path.to_owned();
        self.memory.files.push(MappedFile { path, identity, owner_range, has_written_pages: false });
        self.file_indices.insert(key, index);
        Ok((index, bytes))
    }

    /// A link to the mapped file itself, wherever its path leads now.
    fn map_files_link(&self, entry: &MapEntry) -> String {
        format!("/proc/{}/map_files/{}", self.template_pid, entry.range_name())
    }

    fn refusal_of(&self, entry: &MapEntry, reason: &str) -> CaptureError {
        let object = format!("pid {}, mapping {:#x}-{:#x}", self.pid, entry.start, entry.end);
        CaptureError::refused(self.pid, vec![Refusal::new(object, reason)])
    }

    /// Returns the populated pages of a mapping that `wanted` selects. Page numbers count from its start.
    fn populated_runs(&self, entry: &MapEntry, wanted: impl Fn(&PageRegion) -> bool) -> Vec<PageRun> {
        self.populated_and_guard_runs(entry, |region| !region.is_guard() && wanted(region))
    }

    /// Like `populated_runs`, but also passes guard pages to `wanted`.
    fn populated_and_guard_runs(&self, entry: &MapEntry, wanted: impl Fn(&PageRegion) -> bool) -> Vec<PageRun> {
        let from = self.regions.partition_point(|region| region.end <= entry.start);
        let inside = self.regions[from..].iter().take_while(|region| region.start < entry.end);
        let run = |region: &PageRegion| {
            let (start, end) = (region.start.max(entry.start), region.end.min(entry.end));
            PageRun { first: (start - entry.start) / PAGE_SIZE, count: (end - start) / PAGE_SIZE }
        };
        merge_runs(inside.filter(|region| wanted(region)).map(run))
    }

    /// Whether the kernel gave a mapping huge pages, requested or not. A child's node must then request them.
    fn has_huge_pages(&self, entry: &MapEntry) -> bool {
        let from = self.regions.partition_point(|region| region.end <= entry.start);
        let mut inside = self.regions[from..].iter().take_while(|region| region.start < entry.end);
        inside.any(|region| region.is_huge() && !region.is_file()) && !entry.is_shared
    }

    /// Adds an extent for the pages of a mapping. Returns `None` if there is nothing to fetch.
    fn add_extent(&mut self, entry: &MapEntry, populated: Vec<PageRun>) -> Option<ExtentId> {
        (!populated.is_empty()).then(|| self.push_extent(entry, populated))
    }

    fn push_extent(&mut self, entry: &MapEntry, populated: Vec<PageRun>) -> ExtentId {
        let id = ExtentId(self.memory.extents.len() as u32);
        let source = ExtentSource::Template { process: 0, address: entry.start };
        self.memory.extents.push(Extent { source, bytes: entry.bytes(), populated, inherited: Vec::new() });
        id
    }
}

/// Whether a mapping has a file. The id of a System V segment, which is its inode number, may be 0.
pub(super) fn has_file(entry: &MapEntry) -> bool {
    entry.inode != 0 || entry.path.starts_with(SEGMENT_PREFIX)
}

/// Whether a mapping's file has a path that is UTF-8.
fn has_path(entry: &MapEntry) -> bool {
    classify_mapping(entry) == Ok(MappingKind::PrivateFile) && str::from_utf8(&entry.path).is_ok()
}

/// Refuses anything but a regular file without opening it: opening a device can have side effects.
fn identify_regular(link: &str) -> io::Result<FileIdentity> {
    if !std::fs::metadata(link)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    read_identity(Path::new(link))
}

/// Whether the child of a fork(2) sees zeroes in a mapping: after MADV_WIPEONFORK, or with VM_DROPPABLE, whose pages the
/// kernel may drop at any time.
fn is_wiped_on_fork(entry: &MapEntry) -> bool {
    entry.has_flag("wf") || entry.has_flag("dp")
}

/// The pages of a mapping that are within its file.
fn pages_within_file(entry: &MapEntry, file_bytes: u64) -> Option<PageRun> {
    let count = file_bytes.saturating_sub(entry.offset).div_ceil(PAGE_SIZE).min(entry.bytes() / PAGE_SIZE);
    (count > 0).then_some(PageRun { first: 0, count })
}

fn mapping_flags(entry: &MapEntry, has_huge_pages: bool) -> MappingFlags {
    MappingFlags {
        grows_down: entry.has_flag("gd"),
        no_reserve: entry.has_flag("nr"),
        locked: entry.has_flag("lo"),
        huge_page: entry.has_flag("hg") || has_huge_pages,
        no_huge_page: entry.has_flag("nh"),
        wipe_on_fork: entry.has_flag("wf"),
        dont_fork: entry.has_flag("dc"),
        dont_dump: entry.has_flag("dd"),
        sequential: entry.has_flag("sr"),
        random: entry.has_flag("rr"),
        mergeable: entry.has_flag("mg"),
        droppable: entry.has_flag("dp"),
    }
}
