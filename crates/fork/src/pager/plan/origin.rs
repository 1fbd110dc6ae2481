//! The origins of a child's pages: its own seed, and the seeds from which that seed inherits pages. A seed of a child
//! inherits the pages that the child never touched. The origin of a page is the seed that owns it, also after many
//! generations.

use farfork_fabric::{Address, SeedKey};
use farfork_wire::descriptor::{ExtentId, LAYERS_MAX, PageRun, USER_SPACE_END};
use farfork_wire::{PAGE_SIZE, SeedId, Token};
use serde::{Deserialize, Serialize};

/// Maximum number of sources of a child: its own seed, and the seeds from which it inherits.
pub(in crate::pager) const SOURCES_MAX: usize = LAYERS_MAX + 1;

/// A seed that owns pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageSource {
    /// The seed.
    pub seed: SeedId,
    /// The seed's token.
    pub token: Token,
    /// The address of the seed's owner.
    #[serde(with = "address_text")]
    pub owner: Address,
}

impl PageSource {
    /// Creates the source with this key and owner.
    pub fn new(key: &SeedKey, owner: Address) -> Self {
        Self { seed: key.seed.clone(), token: key.token, owner }
    }
}

/// A page of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageOrigin {
    /// Index of the source in [`MemoryPlan::sources`](super::MemoryPlan::sources).
    pub source: u32,
    /// The extent of that source's seed.
    pub extent: ExtentId,
    /// Number of the page in that extent.
    pub page: u64,
}

impl PageOrigin {
    /// Returns the page that is `pages` pages after this one.
    pub(in crate::pager) fn offset_by(self, pages: u64) -> Self {
        Self { page: self.page + pages, ..self }
    }
}

/// Consecutive pages of an extent that hold data. They are also consecutive at their origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PopulatedRun {
    /// Number of the first page in the extent.
    pub first: u64,
    /// Number of pages; at least one.
    pub count: u64,
    /// The origin of the first page.
    pub origin: PageOrigin,
}

/// The pages of an extent that hold data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PopulatedExtent {
    /// The extent.
    pub id: ExtentId,
    /// Its pages, ascending.
    pub populated: Vec<PopulatedRun>,
}

impl PopulatedExtent {
    /// Creates an extent whose pages are all from the same extent of the child's own seed.
    pub fn from_own_seed(id: ExtentId, populated: &[PageRun]) -> Self {
        Self { id, populated: populated.iter().map(|run| PopulatedRun::from_own_seed(id, run)).collect() }
    }

    /// Checks the runs, and returns their number of pages. `sources` is the number of sources of the plan.
    pub(in crate::pager) fn validate(&self, sources: usize) -> Result<u64, String> {
        const PAGES_END: u64 = USER_SPACE_END / PAGE_SIZE;
        let (mut lowest, mut pages) = (0, 0);
        for run in &self.populated {
            let end = run.first.checked_add(run.count).filter(|end| *end <= PAGES_END);
            let origin_end = run.origin.page.checked_add(run.count).filter(|end| *end <= PAGES_END);
            if origin_end.is_none() || run.origin.source as usize >= sources {
                return Err(format!("the pages of extent {} have an invalid origin", self.id.0));
            }
            match end {
                Some(end) if run.first >= lowest && run.count > 0 => lowest = end,
                _ => return Err(format!("the pages of extent {} are not in ascending order", self.id.0)),
            }
            pages += run.count;
        }
        Ok(pages)
    }
}

impl PopulatedRun {
    /// Converts a run of pages of the child's own seed.
    pub(in crate::pager) fn from_own_seed(id: ExtentId, run: &PageRun) -> Self {
        let origin = PageOrigin { source: 0, extent: id, page: run.first };
        Self { first: run.first, count: run.count, origin }
    }
}

/// Serializes an address as text.
mod address_text {
    use farfork_fabric::Address;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::pager) fn serialize<S: Serializer>(address: &Address, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(address)
    }

    pub(in crate::pager) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Address, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
