//! A region in which each byte is computed from its offset.

use std::io;
use std::sync::Arc;

use farfork_fabric::{Region, SeedKey};
use farfork_wire::descriptor::ExtentId;

use crate::seed::key;

/// Length of the one extent, in bytes.
pub(crate) const PATTERN_BYTES: u64 = 100_000;

/// The region.
pub(crate) struct Pattern;

impl Pattern {
    pub(crate) fn key() -> Arc<SeedKey> {
        key(1)
    }

    /// Returns the expected `bytes` at `offset`.
    pub(crate) fn expected(offset: u64, bytes: u64) -> Vec<u8> {
        (offset..offset + bytes).map(|at| (at * 31 % 251) as u8 ^ (at >> 8) as u8).collect()
    }
}

impl Region for Pattern {
    fn extent_bytes(&self, extent: ExtentId) -> Option<u64> {
        (extent == ExtentId(0)).then_some(PATTERN_BYTES)
    }

    fn read(&self, _: ExtentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        into.copy_from_slice(&Self::expected(offset, into.len() as u64));
        Ok(())
    }
}
