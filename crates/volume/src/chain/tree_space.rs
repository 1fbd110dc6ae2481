//! How much the shared trees of a volume can still take.

use serde::{Deserialize, Serialize};

/// What the file system of a shared tree can still take. The least is the first in the order, so `min` is the least of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TreeSpace {
    /// Records are not published because the file system refuses them with ENOSPC or EDQUOT.
    Full,
    /// Free bytes.
    Free(u64),
}

/// Metadata of one record in a shared tree: a block of a directory and one of an inode.
pub const RECORD_BYTES: u64 = 2 * 4096;
/// Kept free for metadata of the shared trees, and for what others write to their file systems meanwhile.
pub const RESERVE_BYTES: u64 = 16 << 20;
/// With so much space, many records fit before the next report.
pub const AMPLE_BYTES: u64 = 256 << 20;

impl TreeSpace {
    /// Of a replica that limits nothing.
    pub const UNLIMITED: Self = Self::Free(u64::MAX);
}
