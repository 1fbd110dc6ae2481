//! Free space of the shared trees of a volume.

use serde::{Deserialize, Serialize};

/// Free space of the file system of a shared tree. The order is from less to more.
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
