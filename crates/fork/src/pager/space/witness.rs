//! What a space knows of its last changes and of its fork, and its kernel as the witness of that (`fork_order`).

use farfork_sys::userfaultfd::{Cause, Stopped};
use farfork_wire::PAGE_SIZE;

use super::Space;
use crate::pager::journal::SpaceNumber;
use crate::pager::page_map::fork_order::{self, Change, Doubt, Witness};
use crate::pager::page_map::{PageMap, Segment};
use crate::pager::plan::populated::Populated;
use crate::pager::space::install::Installed;
use crate::pager::space::page_set::PageSet;

impl Space {
    /// Doubts what it has of its parent's last changes.
    pub(in crate::pager) fn doubt(&mut self, parent: SpaceNumber, parents_recent: &[Change]) {
        self.doubt = Some(Box::new(Doubt::new(parent, parents_recent.to_vec())));
    }

    /// What is to be found out of it, if anything is.
    pub(in crate::pager) fn doubted(&mut self) -> Option<&mut Doubt> {
        self.doubt.as_deref_mut()
    }

    /// Whether its map is known. If not, nothing is installed.
    pub(in crate::pager) fn is_known(&self) -> bool {
        self.doubt.is_none() && !self.map.is_overtaken()
    }

    /// The same; looks whether there is anything to be heard, where that is the question.
    pub(in crate::pager) fn knows(&mut self) -> bool {
        if !self.is_known() {
            self.forget_what_is_settled();
        }
        self.is_known()
    }

    /// Changes of its map that a fork of its may not have.
    pub(in crate::pager) fn recent(&self) -> &[Change] {
        &self.recent
    }

    /// Where nothing is to be heard of it, forgets its last changes: all forks have them that are still to be heard of.
    pub(in crate::pager) fn forget_what_is_settled(&mut self) {
        let is_any = !self.recent.is_empty() || self.map.awaits();
        if is_any && self.doubt.is_none() && self.uffd.is_quiet() {
            self.all_was_heard();
        }
    }

    fn all_was_heard(&mut self) {
        self.recent.clear();
        self.lent.clear();
        self.map.all_was_heard();
    }

    /// The same, where a page could be installed: no change was to be heard of then. What was discarded may be there once more, so
    /// that a fork which has it says nothing of the discard.
    pub(super) fn was_quiet(&mut self, outcome: &Installed) {
        if matches!(outcome, Installed::All) && self.is_known() {
            self.all_was_heard();
        }
    }

    /// Asks the kernel what it has of its parent's changes, all of which were heard. Its map at the fork, where that is another than was
    /// thought; its own changes are to be made to that again.
    ///
    /// # Errors
    /// [`Cause::Changing`] where a change of its own is to be heard first; [`Cause::Gone`].
    pub(in crate::pager) fn ask_what_it_has(&self, populated: &Populated) -> Result<Option<PageMap>, Cause> {
        let Some(doubt) = self.doubt.as_ref().filter(|doubt| doubt.has_changes()) else { return Ok(None) };
        let mut map = self.map.clone();
        Change::unmake_all(&self.recent, &mut map);
        doubt.resolve(&map, Asked { space: self, populated })
    }

    /// Is in no doubt any more. What its parent was still to tell is told to nobody else.
    pub(in crate::pager) fn believe(&mut self) {
        self.doubt = None;
        let mut map = std::mem::take(&mut self.map);
        Change::unmake_all(&self.recent, &mut map);
        self.was_forked_with(map);
    }

    /// Had this map when it was forked.
    pub(in crate::pager) fn was_forked_with(&mut self, mut map: PageMap) {
        map.all_was_heard();
        self.map = map;
        Change::make_all(&mut self.recent, &mut self.map);
    }
}

/// A forked process's kernel.
struct Asked<'a> {
    space: &'a Space,
    populated: &'a Populated,
}

impl Asked<'_> {
    /// Where the first page of a segment is that has come.
    fn first_installed(&self, segment: &Segment) -> Option<u64> {
        let pages = segment.first_page..segment.first_page + segment.pages();
        let slots = self.populated.slots_of(segment.extent, pages);
        let first = self.space.installed.without(&PageSet::default(), slots).next()?.start;
        let run = self.populated.runs_of(first..first + 1).next()?;
        Some(segment.start + (run.first_page - segment.first_page) * PAGE_SIZE)
    }
}

impl Witness for Asked<'_> {
    type Error = Cause;

    fn is_registered(&mut self, address: u64) -> Result<Option<bool>, Cause> {
        let now = fork_order::now_at(address, &self.space.recent);
        now.map(|address| self.space.uffd.is_registered(address)).transpose()
    }

    fn is_area_start(&mut self, address: u64) -> Result<Option<bool>, Cause> {
        let Some(now) = fork_order::now_at(address, &self.space.recent) else { return Ok(None) };
        let reaches_there = self.space.uffd.is_in_one_area(now - PAGE_SIZE, 2 * PAGE_SIZE)?;
        Ok(Some(!reaches_there))
    }

    fn first_come(&self, segments: &[Segment]) -> Option<u64> {
        segments.iter().find_map(|segment| self.first_installed(segment))
    }

    fn is_present(&mut self, address: u64) -> Result<Option<bool>, Cause> {
        let Some(now) = fork_order::now_kept_at(address, &self.space.recent) else { return Ok(None) };
        // Where it is not there it was discarded, or moved away, and is zero.
        match self.space.uffd.zero(now, PAGE_SIZE) {
            Ok(()) => Ok(Some(false)),
            Err(Stopped { cause: Cause::Present, .. }) => Ok(Some(true)),
            Err(Stopped { cause: cause @ (Cause::Changing | Cause::Gone), .. }) => Err(cause),
            Err(_) => Ok(None),
        }
    }
}
