//! Free space of the shared trees of a volume.

use serde::{Deserialize, Serialize};

/// Free space of the file system of a shared tree. Ordered from least to most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TreeSpace {
    /// Records are not published because the file system refuses them with ENOSPC or EDQUOT.
    Full,
    /// Free bytes.
    Free(u64),
}

/// Bytes of metadata that one record needs in a shared tree: one directory block and one inode block.
pub const RECORD_BYTES: u64 = 2 * 4096;
/// Bytes to keep free in the file system of each shared tree, for its metadata and for writes of other programs.
pub const RESERVE_BYTES: u64 = 16 << 20;
/// Free bytes above which many records fit before the next report of space.
pub const AMPLE_BYTES: u64 = 256 << 20;

impl TreeSpace {
    /// The space of a replica that does not limit writers.
    pub const UNLIMITED: Self = Self::Free(u64::MAX);
}
