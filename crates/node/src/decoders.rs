//! Whether what another node, or a client, sent can be worked with: for those who try it with any message (`fuzz/`). The
//! services themselves check where messages arrive.

use farfork_cluster::membership::Member;

use crate::api::v1;
use crate::engine::{SeedAccess, StartOptions};

/// Whether children can be started so.
pub fn is_start(options: v1::ChildOptions) -> bool {
    StartOptions::try_from(options).is_ok()
}

/// Whether this opens a seed.
pub fn is_access(access: v1::SeedAccess) -> bool {
    SeedAccess::try_from(access).is_ok()
}

/// The member that is described, as it is told to others; `None` where none is.
pub fn member(member: v1::Member) -> Option<v1::Member> {
    Member::try_from(member).ok().map(v1::Member::from)
}
