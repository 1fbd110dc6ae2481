//! The address space of a template: its mappings, and which of their pages are populated.
//!
//! Mappings, and the pages of a small template, are read before the answer. Other pages are scanned after it.
//! So are mapping flags: `smaps` shows them only after a walk over all pages.

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

/// From this size on, in bytes, an area without a file is scanned by itself: below, one more system call costs more than
/// to look at the records of its pages.
const OWN_SCAN_BYTES_MIN: u64 = 256 << 10;

/// From this much on, in bytes, an area's pages are worth a call that keeps them out of a twin.
const LARGE_BYTES_MIN: u64 = 1 << 20;

/// From this much on, in bytes, `smaps` of the memory itself takes longer than a twin.
const FLAG_PROBE_BYTES_MIN: u64 = 24 << 20;

/// What was read of a template that stands still (or of a parent that does).
#[derive(Debug)]
pub(crate) struct TemplateMemory {
    /// For messages.
    pub(super) pid: i32,
    pub(super) template_pid: i32,
    /// Ascending.
    pub(super) mappings: Vec<MapEntry>,
    /// Pages that hold something, ascending; empty until they were looked for.
    pub(super) regions: Vec<PageRegion>,
    is_scanned: bool,
}

impl TemplateMemory {
    /// That of `subject`, a template of `pid` or itself, without the pages of `injection_range`.
    pub(crate) fn read(
        (pid, subject): (i32, i32),
        injection_range: Range<u64>,
        (shared, file_systems): (&SharedCopies, &mut FileSystemCache),
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
        // A clone has none, but where one was mapped when nobody looked.
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

    /// The process, for messages.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Its areas, ascending.
    pub(crate) fn mappings(&self) -> &[MapEntry] {
        &self.mappings
    }

    /// How much its pages hold that are its own, in bytes, if they were looked for.
    pub(crate) fn populated_bytes(&self) -> Option<u64> {
        let bytes = self
            .regions
            .iter()
            .filter(|region| !region.is_file() && !region.is_guard())
            .map(|region| region.end - region.start)
            .sum();
        self.is_scanned.then_some(bytes)
    }

    /// The areas without a file that hold most of the memory, at most `count`; none where all together hold little.
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

    /// Whether `flagged` has each of the areas.
    pub(crate) fn is_covered_by(&self, flagged: &[MapEntry]) -> bool {
        self.mappings.iter().all(|entry| covering_mapping(flagged, entry).is_some())
    }

    /// Takes the kernel's flags of each area from `flagged`, the areas of a twin in which those at `marked` addresses were
    /// marked to be wiped on fork. Some flags are refused; an area of which nothing is told may have any.
    pub(crate) fn apply_flags(&mut self, flagged: &[MapEntry], marked: &[u64]) -> Result<(), CaptureError> {
        for entry in &mut self.mappings {
            let Some(same) = covering_mapping(flagged, entry) else {
                let what = format!("its area {}, of which the kernel tells no flags", entry.range_name());
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

    /// Areas that are attached segments of System V shared memory.
    pub(crate) fn sysv_ranges(&self) -> Vec<Range<u64>> {
        let is_attached = |entry: &&MapEntry| entry.is_shared && entry.path.starts_with(SEGMENT_PREFIX);
        let segments = self.mappings.iter().filter(is_attached);
        segments.map(|entry| entry.start..entry.end).collect()
    }

    /// Marks areas as locked: a clone's never are.
    pub(crate) fn mark_locked(&mut self, locked: &[Range<u64>]) {
        let is_locked = |entry: &MapEntry| locked.iter().any(|area| area.start <= entry.start && entry.end <= area.end);
        self.mappings
            .iter_mut()
            .filter(|entry| !entry.has_flag("lo") && is_locked(entry))
            .for_each(|entry| entry.add_flag("lo"));
    }

    /// Marks areas that a template has although no fork hands them down, ascending. Without their marks they may have become one
    /// with their neighbours: those are parted again.
    pub(crate) fn mark_dontfork(&mut self, areas: &[Range<u64>]) {
        let entries = std::mem::take(&mut self.mappings);
        self.mappings = entries.into_iter().flat_map(|entry| split_at_ranges(entry, areas)).collect();
    }

    /// Areas that children lack.
    pub(crate) fn dontfork_ranges(&self) -> Vec<Range<u64>> {
        self.mappings.iter().filter(|entry| is_dontfork(entry)).map(|entry| entry.start..entry.end).collect()
    }

    /// The pages that hold something, ascending.
    pub(crate) fn populated_ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.regions.iter().map(|region| region.start..region.end)
    }

    /// The populated pages of an area.
    pub(super) fn populated_ranges_in(&self, entry: &MapEntry) -> impl Iterator<Item = Range<u64>> {
        let from = self.regions.partition_point(|region| region.end <= entry.start);
        let (start, end) = (entry.start, entry.end);
        let inside = self.regions[from..].iter().take_while(move |region| region.start < end);
        inside.filter(|region| !region.is_guard()).map(move |region| region.start.max(start)..region.end.min(end))
    }

    /// Whether the shared object of an area was copied in the pause.
    fn is_copied(&self, entry: &MapEntry, shared: &SharedCopies) -> bool {
        let path = format!("/proc/{}/map_files/{}", self.template_pid, entry.range_name());
        let by_link = || std::fs::metadata(path).is_ok_and(|file| shared.index_of(file.dev(), file.ino()).is_some());
        shared.index_of(entry.device, entry.inode).is_some() || by_link()
    }

    /// Finds the pages that hold something, unless they are known.
    pub(crate) fn ensure_scanned(&mut self) -> Result<(), CaptureError> {
        if !self.is_scanned {
            self.set_regions(self.scan_pages()?);
        }
        Ok(())
    }

    /// Looks for the pages that hold something, in as few walks as can be.
    pub(crate) fn scan_pages(&self) -> Result<Vec<PageRegion>, CaptureError> {
        let unread = |pid| CaptureError::reading(pid, "the page map");
        let (mut tables, mut found) = (PageTables::open(self.template_pid).map_err(unread(self.pid))?, Vec::new());
        for (range, detail) in plan_scans(&self.mappings) {
            tables.scan_populated(range.start, range.end, detail, &mut found).map_err(unread(self.pid))?;
        }
        Ok(found)
    }

    /// Takes note of what was found.
    pub(crate) fn set_regions(&mut self, found: Vec<PageRegion>) {
        (self.regions, self.is_scanned) = (found, true);
    }
}

/// The parts of an area that lie in one of these, which are ascending, with the mark MADV_DONTFORK, and those between them.
/// None of them has a file.
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

/// The area among `others`, ascending, that has all of `entry`.
fn covering_mapping<'a>(others: &'a [MapEntry], entry: &MapEntry) -> Option<&'a MapEntry> {
    let at = others.partition_point(|other| other.end <= entry.start);
    others.get(at).filter(|other| other.start <= entry.start && entry.end <= other.end)
}

/// The walks over the areas whose pages matter. Only for private mappings of files it does whose the pages are.
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
            // Nothing is asked about their pages.
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
