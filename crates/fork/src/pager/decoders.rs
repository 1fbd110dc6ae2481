//! What the pager and its clients make of bytes that another process wrote, or an earlier pager left: for those who try
//! it with any bytes (`fuzz/`). The pager itself reads where the bytes arrive.

use std::path::Path;

use super::journal::Journal;
use super::page_map::PageMap;
use super::plan::MemoryPlan;
use super::protocol::{Reply, Request};
use super::replay::spaces_of;

/// Whether bytes are a request of the control socket.
pub fn is_request(bytes: &[u8]) -> bool {
    postcard::from_bytes::<Request>(bytes).is_ok()
}

/// Whether bytes are a reply of the control socket.
pub fn is_reply(bytes: &[u8]) -> bool {
    postcard::from_bytes::<Reply>(bytes).is_ok()
}

/// How many address spaces a pager would go on with that finds this plan beside the journal in `child_dir`; `None` where
/// that is no journal.
pub fn count_spaces(child_dir: &Path, plan: MemoryPlan) -> Option<usize> {
    let (_, replay) = Journal::open(child_dir).ok()?;
    Some(spaces_of(replay, PageMap::of(plan.segments)).spaces.len())
}
