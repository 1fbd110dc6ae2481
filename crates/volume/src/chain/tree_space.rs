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

impl TreeSpace {
    /// Of a replica that limits nothing.
    pub const UNLIMITED: Self = Self::Free(u64::MAX);
}
