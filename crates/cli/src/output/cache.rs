//! `CacheView`: the page cache of a node in JSON output.

use farfork_api::v1::CacheUse;
use serde::Serialize;

/// The API documents the fields.
#[derive(Debug, Serialize)]
pub(crate) struct CacheView {
    pub(crate) bytes_max: u64,
    pub(crate) bytes: u64,
    pub(crate) pages: u64,
    pub(crate) seeds: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) evictions: u64,
}

impl From<CacheUse> for CacheView {
    fn from(cache: CacheUse) -> Self {
        let CacheUse { bytes_max, bytes, pages, seeds, hits, misses, evictions } = cache;
        Self { bytes_max, bytes, pages, seeds, hits, misses, evictions }
    }
}
