//! Loss of a child's memory: the owner of a seed cannot be reached or no longer has the seed, or a page cannot be
//! installed. Missing pages then raise SIGBUS, and `LOST_FILE` in the child's directory gives the reason.

use std::fs;

use farfork_wire::SeedId;

use super::{Child, LOST_FILE};
use crate::pager::address_space::AddressSpace;
use crate::pager::control::protocol::PagerReply;
use crate::pager::server::PagerServer;

impl Child {
    /// Marks all of the child's memory as lost: from now on, pages that were not fetched raise SIGBUS.
    pub(in crate::pager) fn mark_lost(&mut self, reason: &str) {
        if self.sources.iter().all(|source| source.is_lost) {
            return;
        }
        self.sources.iter_mut().for_each(|source| source.is_lost = true);
        self.write_lost_file(reason);
    }

    /// Marks the pages of one source as lost.
    pub(in crate::pager) fn mark_source_lost(&mut self, source: usize, reason: &str) {
        let Some(lost) = self.sources.get_mut(source).filter(|source| !source.is_lost) else { return };
        lost.is_lost = true;
        let seed = lost.key.seed.clone();
        if self.sources.len() == 1 {
            self.write_lost_file(reason);
        } else {
            self.write_lost_file(&format!("pages of seed {seed} cannot be fetched: {reason}"));
        }
    }

    fn write_lost_file(&mut self, reason: &str) {
        let id = &self.id;
        let text =
            format!("child {id} lost its memory: {reason}; missing pages now raise SIGBUS: end it and fork again");
        tracing::error!("{text}");
        let all =
            self.loss_reason.take().map_or_else(|| text.clone(), |before| format!("{}\n{text}", before.trim_end()));
        if let Err(error) = fs::write(self.dir.join(LOST_FILE), format!("{all}\n")) {
            tracing::error!("the reason cannot be written to {}: {error}", self.dir.display());
        }
        self.loss_reason = Some(all);
        self.spaces.values().for_each(AddressSpace::wake_all);
    }
}

impl PagerServer<'_> {
    /// Marks the pages of a seed as lost for each child that may still need them.
    pub(in crate::pager) fn handle_lose_seed(&mut self, seed: &SeedId, reason: &str) -> PagerReply {
        let children = self.children.values_mut().map(|served| &mut served.child);
        for child in children.filter(|child| !child.settling.is_settled()) {
            if let Some(source) = child.sources.iter().position(|source| source.key.seed == *seed) {
                child.mark_source_lost(source, reason);
            }
        }
        PagerReply::Done
    }
}
