//! Written pages of private mappings of files and shared objects, laid out in one file. A restoring node fetches the pages
//! into that file, and each process reads its own pages from it. Node and processes use this list.

use super::{Descriptor, ExtentId, Mapping, Protection};
use crate::PAGE_SIZE;

/// Adjacent pages that a process has written in a private mapping of a file or shared object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenRun {
    /// Number of the process in the seed.
    pub process: u32,
    /// The mapping: first address, and address after the last byte.
    pub mapping: (u64, u64),
    /// Protection of the mapping.
    pub protection: Protection,
    /// First address of the pages.
    pub address: u64,
    /// Length, in bytes.
    pub bytes: u64,
    /// The extent in which the owner serves the pages.
    pub extent: ExtentId,
    /// Offset in the extent, in bytes.
    pub extent_offset: u64,
    /// Offset in the file of all written pages, in bytes.
    pub file_offset: u64,
}

impl Descriptor {
    /// Returns all runs, in ascending order of process.
    pub fn written_runs(&self) -> Vec<WrittenRun> {
        let members = self.descendants.iter().map(|member| &member.mappings);
        let maps = std::iter::once(&self.mappings).chain(members);
        let mut runs: Vec<WrittenRun> = Vec::new();
        for (process, mappings) in (0..).zip(maps) {
            for mapping in mappings {
                self.push_written_runs(process, mapping, &mut runs);
            }
        }
        runs
    }

    fn push_written_runs(&self, process: u32, mapping: &Mapping, runs: &mut Vec<WrittenRun>) {
        let Some(extent) = mapping.backing.written_extent() else { return };
        for run in &self.extents[extent.0 as usize].populated {
            let (extent_offset, bytes) = (run.first * PAGE_SIZE, run.count * PAGE_SIZE);
            let file_offset = runs.last().map_or(0, |last| last.file_offset + last.bytes);
            let address = mapping.start + extent_offset;
            let (protection, mapping) = (mapping.protection, (mapping.start, mapping.end));
            runs.push(WrittenRun { process, mapping, protection, address, bytes, extent, extent_offset, file_offset });
        }
    }
}
