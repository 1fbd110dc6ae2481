//! The address space of a template: its mappings, and which of their pages are populated.
//!
//! Mappings, and the pages of a small template, are read before the reply. Other pages and mapping flags are read after the
//! reply, because `smaps` walks over all pages to show the flags.

use std::ops::Range;
use std::os::unix::fs::MetadataExt;

use farfork_sys::pagemap::{PageRegion, PageTables, ScanDetail};
use farfork_sys::process::{self, MapEntry};

use super::builder::has_file;
use super::file_systems::OWN_FILE_FLAG;
use super::{FileSystemCache, MappingKind, classify_mapping, is_dontfork, is_private_hugetlb, refuse_mappings};
use crate::capture::error::CaptureError;
use crate::capture::shared::{SEGMENT_PREFIX, SharedCopies};
use crate::phase;

/// From this size on, in bytes, a mapping without a file is scanned by itself. Below this size, one more system call costs
/// more than reading the records of the mapping's pages.
const OWN_SCAN_BYTES_MIN: u64 = 256 << 10;

/// From this size on, in bytes, a mapping is worth a call that keeps its pages out of a flag probe.
const LARGE_BYTES_MIN: u64 = 1 << 20;

/// From this size on, in bytes, `smaps` of the template itself takes longer than a flag probe.
const FLAG_PROBE_BYTES_MIN: u64 = 24 << 20;

/// The memory of a template, or of a stopped parent.
#[derive(Debug)]
pub(crate) struct TemplateMemory {
    /// The captured process, for error messages.
    pub(super) pid: i32,
    pub(super) template_pid: i32,
    /// By ascending address.
    pub(super) mappings: Vec<MapEntry>,
    /// Pages that hold data, ascending; empty before the scan.
    pub(super) regions: Vec<PageRegion>,
    is_scanned: bool,
}

impl TemplateMemory {
    /// Reads the memory map of `subject`, which is a template of `pid` or `pid` itself. Omits `injection_range`.
    pub(crate) fn read(
        pid: i32,
        subject: i32,
        injection_range: Range<u64>,
        shared: &SharedCopies,
        file_systems: &mut FileSystemCache,
    ) -> Result<Self, CaptureError> {
        let map =
            phase!("prepare.map", process::read_maps(subject)).map_err(CaptureError::reading(pid, "the memory map"));
        let mut map = map?;
        file_systems.mark_mappings(subject, &mut map);
        let entries: Vec<MapEntry> = map.into_iter().flat_map(|entry| entry.subtract(&injection_range)).collect();
        let found = refuse_mappings(pid, &entries);
        if !found.is_empty() {
            return Err(CaptureError::refused(pid, found));
        }
        // A clone has no such mapping, unless it was mapped after the survey.
        if subject != pid && entries.iter().any(is_private_hugetlb) {
            return Err(CaptureError::Unstable { pid, what: "its memory in huge pages of hugetlbfs".to_owned() });
        }
        let space = Self { pid, template_pid: subject, mappings: entries, regions: Vec::new(), is_scanned: false };
        if space
            .mappings
            .iter()
            .any(|entry| classify_mapping(entry) == Ok(MappingKind::SharedObject) && !space.is_copied(entry, shared))
        {
            return Err(CaptureError::Unstable { pid, what: "its shared memory".to_owned() });
        }
        Ok(space)
    }

    /// The captured process, for error messages.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// The mappings, by ascending address.
    pub(crate) fn mappings(&self) -> &[MapEntry] {
        &self.mappings
    }

    /// Size in bytes of the populated pages that are not a file's; `None` before the scan.
    pub(crate) fn populated_bytes(&self) -> Option<u64> {
        let bytes = self
            .regions
            .iter()
            .filter(|region| !region.is_file() && !region.is_guard())
            .map(|region| region.end - region.start)
            .sum();
        self.is_scanned.then_some(bytes)
    }

    /// The mappings without a file that hold most of the memory, at most `count`. Empty if together they hold little.
    pub(crate) fn large_mappings(&self, count: usize) -> Vec<&MapEntry> {
        let populated =
            |entry: &MapEntry| -> u64 { self.populated_ranges_in(entry).map(|pages| pages.end - pages.start).sum() };
        let is_plain = |entry: &&MapEntry| classify_mapping(entry) == Ok(MappingKind::Anonymous) && entry.inode == 0;
        let sized = self.mappings.iter().filter(is_plain).map(|entry| (populated(entry), entry));
        let mut large: Vec<(u64, &MapEntry)> = sized.filter(|(bytes, _)| *bytes >= LARGE_BYTES_MIN).collect();
        large.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        large.truncate(count);
        let total: u64 = large.iter().map(|(bytes, _)| bytes).sum();
        if total < FLAG_PROBE_BYTES_MIN { Vec::new() } else { large.into_iter().map(|(_, entry)| entry).collect() }
    }

    /// Whether `flagged` covers each mapping.
    pub(crate) fn is_covered_by(&self, flagged: &[MapEntry]) -> bool {
        self.mappings.iter().all(|entry| covering_mapping(flagged, entry).is_some())
    }

    /// Copies mapping flags from `flagged`: the mappings of `smaps` or of a flag probe. The probe itself has marked the
    /// mappings at the `marked` addresses MADV_WIPEONFORK. Refuses mappings with certain flags. A mapping without known
    /// flags is an error, because it could have any flag.
    pub(crate) fn apply_flags(&mut self, flagged: &[MapEntry], marked: &[u64]) -> Result<(), CaptureError> {
        for entry in &mut self.mappings {
            let Some(same) = covering_mapping(flagged, entry) else {
                let what = format!("its mapping {}, for which no flags were found", entry.range_name());
                return Err(CaptureError::Unstable { pid: self.pid, what });
            };
            let is_its_own = entry.has_flag(OWN_FILE_FLAG);
            entry.copy_flags(same);
            if is_its_own {
                entry.add_flag(OWN_FILE_FLAG);
            }
            if marked.contains(&entry.start) {
                entry.clear_flag("wf");
            }
        }
        let found = refuse_mappings(self.pid, &self.mappings);
        if found.is_empty() { Ok(()) } else { Err(CaptureError::refused(self.pid, found)) }
    }

    /// Ranges of attached System V shared memory segments.
    pub(crate) fn sysv_ranges(&self) -> Vec<Range<u64>> {
        let is_attached = |entry: &&MapEntry| entry.is_shared && entry.path.starts_with(SEGMENT_PREFIX);
        let segments = self.mappings.iter().filter(is_attached);
        segments.map(|entry| entry.start..entry.end).collect()
    }

    /// Marks the mappings of the parent's locked ranges. A clone's memory is never locked.
    pub(crate) fn mark_locked(&mut self, locked: &[Range<u64>]) {
        let is_locked = |entry: &MapEntry| locked.iter().any(|area| area.start <= entry.start && entry.end <= area.end);
        self.mappings
            .iter_mut()
            .filter(|entry| !entry.has_flag("lo") && is_locked(entry))
            .for_each(|entry| entry.add_flag("lo"));
    }

    /// Marks ranges that the template has although fork(2) omits such ranges. The kernel may have merged them with adjacent
    /// mappings, so splits these again. `areas` are ascending.
    pub(crate) fn mark_dontfork(&mut self, areas: &[Range<u64>]) {
        let entries = std::mem::take(&mut self.mappings);
        self.mappings = entries.into_iter().flat_map(|entry| split_at_ranges(entry, areas)).collect();
    }

    /// Mappings that children lack.
    pub(crate) fn dontfork_ranges(&self) -> Vec<Range<u64>> {
        self.mappings.iter().filter(|entry| is_dontfork(entry)).map(|entry| entry.start..entry.end).collect()
    }

    /// The pages that hold data, ascending.
    pub(crate) fn populated_ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.regions.iter().map(|region| region.start..region.end)
    }

    /// The populated pages of a mapping.
    pub(super) fn populated_ranges_in(&self, entry: &MapEntry) -> impl Iterator<Item = Range<u64>> {
        let from = self.regions.partition_point(|region| region.end <= entry.start);
        let (start, end) = (entry.start, entry.end);
        let inside = self.regions[from..].iter().take_while(move |region| region.start < end);
        inside.filter(|region| !region.is_guard()).map(move |region| region.start.max(start)..region.end.min(end))
    }

    /// Whether the shared object of a mapping was copied in the pause.
    fn is_copied(&self, entry: &MapEntry, shared: &SharedCopies) -> bool {
        let path = format!("/proc/{}/map_files/{}", self.template_pid, entry.range_name());
        let by_link = || std::fs::metadata(path).is_ok_and(|file| shared.index_of(file.dev(), file.ino()).is_some());
        shared.index_of(entry.device, entry.inode).is_some() || by_link()
    }

    /// Scans for pages that hold data, if that was not done yet.
    pub(crate) fn ensure_scanned(&mut self) -> Result<(), CaptureError> {
        if !self.is_scanned {
            self.set_regions(self.scan_pages()?);
        }
        Ok(())
    }

    /// Scans for pages that hold data, in as few walks as possible.
    pub(crate) fn scan_pages(&self) -> Result<Vec<PageRegion>, CaptureError> {
        let unread = |pid| CaptureError::reading(pid, "the page map");
        let (mut tables, mut found) = (PageTables::open(self.template_pid).map_err(unread(self.pid))?, Vec::new());
        for (range, detail) in plan_scans(&self.mappings) {
            tables.scan_populated(range.start, range.end, detail, &mut found).map_err(unread(self.pid))?;
        }
        Ok(found)
    }

    /// Records the result of a scan.
    pub(crate) fn set_regions(&mut self, found: Vec<PageRegion>) {
        (self.regions, self.is_scanned) = (found, true);
    }
}

/// Splits a mapping at the borders of ascending ranges, and marks the parts inside them MADV_DONTFORK. No range has a file.
fn split_at_ranges(entry: MapEntry, areas: &[Range<u64>]) -> Vec<MapEntry> {
    let from = areas.partition_point(|area| area.end <= entry.start);
    let (mut parts, mut at) = (Vec::new(), entry.start);
    let part = |start: u64, end: u64| {
        let mut part = entry.clone();
        (part.start, part.end) = (start, end);
        part
    };
    for area in areas[from..].iter().take_while(|area| area.start < entry.end) {
        let (start, end) = (area.start.max(entry.start), area.end.min(entry.end));
        parts.extend((at < start).then(|| part(at, start)));
        let mut marked = part(start, end);
        marked.add_flag("dc");
        parts.push(marked);
        at = end;
    }
    parts.extend((at < entry.end).then(|| part(at, entry.end)));
    parts
}

/// Returns the mapping among `others`, which are ascending, that covers all of `entry`.
fn covering_mapping<'a>(others: &'a [MapEntry], entry: &MapEntry) -> Option<&'a MapEntry> {
    let at = others.partition_point(|other| other.end <= entry.start);
    others.get(at).filter(|other| other.start <= entry.start && entry.end <= other.end)
}

/// Plans the page table walks over mappings whose pages matter. Adjacent mappings share a walk. Where a mapping may have a
/// file, the walk distinguishes file pages from written ones.
fn plan_scans(entries: &[MapEntry]) -> Vec<(Range<u64>, ScanDetail)> {
    let mut walks: Vec<(Range<u64>, ScanDetail)> = Vec::new();
    let mut goes_on = false;
    for entry in entries {
        let detail = match classify_mapping(entry) {
            Ok(MappingKind::PrivateFile) => ScanDetail::Owner,
            Ok(MappingKind::Anonymous) if !has_file(entry) && entry.bytes() >= OWN_SCAN_BYTES_MIN => {
                ScanDetail::Populated
            }
            Ok(MappingKind::Anonymous) => ScanDetail::Owner,
            // Pages of other mappings are not scanned.
            _ => {
                goes_on = false;
                continue;
            }
        };
        match walks.last_mut() {
            Some((range, last)) if goes_on && *last == detail => range.end = entry.end,
            _ => walks.push((entry.start..entry.end, detail)),
        }
        goes_on = true;
    }
    walks
}
