//! Loss of a child's memory: of a seed whose owner cannot be reached or does not have it any more. What is missing then raises
//! SIGBUS, and the child's directory says why.

use std::fs;

use super::{Child, LOST_FILE};
use crate::pager::space::Space;

impl Child {
    /// Notes that all of its memory is lost: what was not fetched raises SIGBUS from now on.
    pub(in crate::pager) fn lose(&mut self, reason: &str) {
        if self.sources.iter().all(|source| source.is_lost) {
            return;
        }
        self.sources.iter_mut().for_each(|source| source.is_lost = true);
        self.tell_lost(reason);
    }

    /// Notes that what comes from one source is lost.
    pub(in crate::pager) fn lose_source(&mut self, source: usize, reason: &str) {
        let Some(lost) = self.sources.get_mut(source).filter(|source| !source.is_lost) else { return };
        lost.is_lost = true;
        let seed = lost.key.seed.clone();
        if self.sources.len() == 1 {
            self.tell_lost(reason);
        } else {
            self.tell_lost(&format!("pages of seed {seed} cannot be had: {reason}"));
        }
    }

    fn tell_lost(&mut self, reason: &str) {
        let id = &self.id;
        let text =
            format!("child {id} lost its memory: {reason}; missing pages now raise SIGBUS: end it and fork again");
        tracing::error!("{text}");
        let all = self.lost.take().map_or_else(|| text.clone(), |before| format!("{}\n{text}", before.trim_end()));
        if let Err(error) = fs::write(self.dir.join(LOST_FILE), format!("{all}\n")) {
            tracing::error!("the reason cannot be written to {}: {error}", self.dir.display());
        }
        self.lost = Some(all);
        self.spaces.values().for_each(Space::wake_all);
    }
}
