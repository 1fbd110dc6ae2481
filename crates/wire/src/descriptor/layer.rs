//! Layers: other seeds that own pages of a seed. A seed of a child inherits the pages that the child had not touched. Each
//! run of pages names the seed that owns them, not the previous capture. So a reader follows no chain of seeds.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::validate::{InvalidDescriptor, USER_SPACE_END, require};
use super::{Descriptor, Extent, ExtentId};
use crate::{PAGE_SIZE, SeedId, Token};

/// Maximum number of layers of a seed. Each capture of a child of a child adds one. At the limit, the child must be settled
/// before its capture.
pub const LAYERS_MAX: usize = 256;

/// A seed that owns pages of another seed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// The seed.
    pub seed: SeedId,
    /// Its token. A peer that may read this descriptor may read all of that seed.
    pub token: Token,
    /// The address at which its owner serves memory.
    pub owner: SocketAddr,
}

//  extent   |- populated -| zeroes |- inherited: layer 1, extent 4, pages 70 ... -| zeroes |- inherited: layer 0 ... -|
//  layers   0: seed, token, owner      1: seed, token, owner

/// Adjacent pages of an extent that are also adjacent in an extent of the seed that owns them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InheritedRun {
    /// Number of the first page, counted from the extent's start.
    pub first: u64,
    /// Number of pages; at least one.
    pub count: u64,
    /// Index of the layer in `Descriptor::layers`.
    pub layer: u32,
    /// The extent of the layer's seed.
    pub extent: ExtentId,
    /// Number of the first page in that extent.
    pub layer_page: u64,
}

impl Descriptor {
    /// Checks the number of layers, and that each seed occurs once.
    pub(super) fn validate_layers(&self) -> Result<(), InvalidDescriptor> {
        let count = self.layers.len();
        require(count <= LAYERS_MAX, || format!("it inherits from {count} seeds, {LAYERS_MAX} at most"))?;
        let mut seeds: Vec<&SeedId> = self.layers.iter().map(|layer| &layer.seed).collect();
        seeds.sort_unstable();
        require(seeds.windows(2).all(|pair| pair[0] != pair[1]), || "two layers have the same seed".into())
    }

    /// Checks the inherited pages of an extent: they are in order and inside it, their layers exist, and none of them is
    /// also in `populated`.
    pub(super) fn validate_inherited(&self, index: usize, extent: &Extent) -> Result<(), InvalidDescriptor> {
        let wrong =
            || format!("extent {index}: inherited pages are out of order, outside the extent, or also populated");
        let pages = extent.bytes / PAGE_SIZE;
        let (mut lowest, mut own) = (0, extent.populated.iter().peekable());
        for run in &extent.inherited {
            let end = run.first.checked_add(run.count).filter(|end| run.count > 0 && *end <= pages);
            let end = end.filter(|_| run.first >= lowest).ok_or_else(|| InvalidDescriptor { reason: wrong() })?;
            while own.next_if(|own| own.first + own.count <= run.first).is_some() {}
            require(own.peek().is_none_or(|own| own.first >= end), wrong)?;
            lowest = end;
            let origin_end = run.layer_page.checked_add(run.count);
            let is_somewhere = origin_end.is_some_and(|end| end <= USER_SPACE_END / PAGE_SIZE)
                && run.extent < ExtentId::WORKING_SET
                && (run.layer as usize) < self.layers.len();
            require(is_somewhere, || {
                format!("extent {index}: inherited pages refer to an invalid layer, extent or page")
            })?;
        }
        Ok(())
    }
}
