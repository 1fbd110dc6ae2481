//! The order of a seed's pages in its image. The position of a page in that order is its *slot*. Pure.

use farfork_wire::descriptor::{Descriptor, ExtentId, ExtentSource};

/// Adjacent pages of one extent, with the slot of the first page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ImageRun {
    pub(super) extent: ExtentId,
    /// Number of the first page in the extent.
    pub(super) first_page: u64,
    pub(super) count: u64,
    pub(super) first_slot: u64,
    /// Whether the pages are those of a held file, which may be changed until they are copied.
    is_file: bool,
}

/// All pages that the seed itself owns, in ascending order of extent and page.
#[derive(Debug, Clone, Default)]
pub(super) struct PageIndex {
    runs: Vec<ImageRun>,
    slot_count: u64,
}

impl PageIndex {
    /// Creates the index of a valid descriptor's pages.
    pub(super) fn from_descriptor(descriptor: &Descriptor) -> Self {
        let mut all = Self::default();
        for (index, extent) in descriptor.extents.iter().enumerate() {
            let is_file = matches!(extent.source, ExtentSource::File { .. });
            for run in &extent.populated {
                let (first_page, count, first_slot) = (run.first, run.count, all.slot_count);
                all.runs.push(ImageRun { extent: ExtentId(index as u32), first_page, count, first_slot, is_file });
                // The sum of many extents' runs may overflow. `Image::open` checks it against `PAGES_MAX`.
                all.slot_count = all.slot_count.saturating_add(count);
            }
        }
        all
    }

    /// Number of pages.
    pub(super) fn slot_count(&self) -> u64 {
        self.slot_count
    }

    /// The runs in the order in which they are copied: files first, because they may be changed.
    pub(super) fn copy_order(&self) -> impl Iterator<Item = &ImageRun> {
        let (files, memory): (Vec<_>, Vec<_>) = self.runs.iter().partition(|run| run.is_file);
        files.into_iter().chain(memory)
    }

    /// Returns the slot of a page, and the number of pages with consecutive slots from this page on. `None` if the seed
    /// itself has no data in this page.
    pub(super) fn find_slot(&self, extent: ExtentId, page: u64) -> Option<(u64, u64)> {
        let end = self.runs.partition_point(|run| (run.extent, run.first_page) <= (extent, page));
        let run = self.runs[..end].last().filter(|run| run.extent == extent)?;
        let ahead = page - run.first_page;
        (ahead < run.count).then(|| (run.first_slot + ahead, run.count - ahead))
    }
}
