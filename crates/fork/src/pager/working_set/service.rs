//! The pager's use of working sets: a child's is asked for when it is adopted and queued when it came; what is seen of
//! its touches is told to its seed's owner every second, and when it has ended.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use farfork_fabric::{READ_BYTES_MAX, ReadMode, Reply, Span};
use farfork_wire::ChildId;
use farfork_wire::descriptor::ExtentId;

use super::message::{REPORT_RUNS_MAX, Report};
use super::{Pages, SET_PAGES_MAX, TRIAL_PART, decode, share};
use crate::pager::child::Child;
use crate::pager::faults::retries::Fault;
use crate::pager::owners::{Aside, BULK_SLOTS, Lane, OwnerKey, Wish};
use crate::pager::plan::strategy::Paging;
use crate::pager::server::Server;

/// For an owner to answer with a set, and to take a report. A child begins without, and a report that is lost is made up
/// for by the next child's.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Most runs of one report that say what was not wanted: all that may be on trial.
const UNWANTED_RUNS_MAX: usize = SET_PAGES_MAX as usize / TRIAL_PART;

/// Most runs of one report that say what was touched.
const TOUCHED_RUNS_MAX: usize = REPORT_RUNS_MAX - UNWANTED_RUNS_MAX;

impl Child {
    /// Slots as pages of its own seed's extents.
    fn pages_of(&self, slots: &Range<u64>, mark: bool, into: &mut Vec<Pages>) {
        for run in self.populated.runs_of(slots.clone()) {
            let count = u32::try_from(run.count).unwrap_or(u32::MAX);
            into.push(Pages { extent: run.extent, first: run.first_page, count, mark });
        }
    }

    /// The page of a slot.
    fn page_of(&self, slot: u64) -> Option<(ExtentId, u64)> {
        self.populated.runs_of(slot..slot + 1).next().map(|run| (run.extent, run.first_page))
    }

    /// Takes a working set: what of it is to be fetched waits in `recalled`.
    fn recall(&mut self, set: &[Pages]) {
        match self.zygote {
            Some(_) => self.recall_pages(share::of_zygote(set).take(self.zygote_room() as usize)),
            None => self.recall_pages(Pages::each(set).take(SET_PAGES_MAX as usize)),
        }
    }

    fn recall_pages(&mut self, pages: impl Iterator<Item = (ExtentId, u64, bool)>) {
        let mut on_trial = Vec::new();
        for (extent, page, is_on_trial) in pages {
            let Some(slot) = self.populated.slot_of(extent, page) else { continue };
            if is_on_trial {
                on_trial.push(slot);
                continue;
            }
            match self.recalled.back_mut().filter(|last| last.end == slot) {
                Some(last) => last.end += 1,
                None => self.recalled.push_back(slot..slot + 1),
            }
        }
        self.trace.expect(self.recalled.make_contiguous(), &on_trial);
    }

    /// What is to be told of it, in as many reports as it takes.
    fn reports(&mut self, is_last: bool) -> Vec<Report> {
        let Some(source) = self.sources.first() else { return Vec::new() };
        let (seed, token) = (source.key.seed.clone(), source.key.token);
        let unwanted = if is_last { self.trace.take_unwanted() } else { Vec::new() };
        let news = self.trace.take_news();
        if news.is_none() && unwanted.is_empty() {
            return Vec::new();
        }
        let mut behind = news.as_ref().and_then(|news| self.page_of(news.behind?));
        let mut pages = Vec::new();
        news.iter().flat_map(|news| &news.slots).for_each(|(slots, mark)| self.pages_of(slots, *mark, &mut pages));
        let mut doubtful = Vec::new();
        unwanted.iter().for_each(|slots| self.pages_of(slots, false, &mut doubtful));
        doubtful.truncate(UNWANTED_RUNS_MAX);

        let mut reports = Vec::new();
        let mut chunks: VecDeque<&[Pages]> = pages.chunks(TOUCHED_RUNS_MAX).collect();
        loop {
            let pages = chunks.pop_front().unwrap_or_default().to_vec();
            let last = pages.last().map(|last| (last.extent, last.first + u64::from(last.count) - 1));
            let is_end = chunks.is_empty();
            let unwanted = if is_end { std::mem::take(&mut doubtful) } else { Vec::new() };
            let seed = seed.clone();
            reports.push(Report { seed, token, behind, pages, unwanted, is_last: is_last && is_end });
            behind = last;
            if is_end {
                return reports;
            }
        }
    }
}

impl Server<'_> {
    /// Asks for the working set of an adopted child's seed.
    pub(in crate::pager) fn ask_for_set(&mut self, id: &ChildId) {
        let Some(key) = self.key_of(id) else { return };
        let Some(served) = self.children.get(&key) else { return };
        let (Some(source), Some(owner)) = (served.child.sources.first(), served.owners.first()) else { return };
        let strategy = served.child.strategy;
        if strategy.paging != Paging::Prefetch || strategy.first {
            return;
        }
        if let Some(set) = self.recent_sets.get(&source.key, self.now) {
            self.take_set(key, &set);
        } else {
            let span = Span { extent: ExtentId::WORKING_SET, offset: 0, bytes: READ_BYTES_MAX as u32 };
            let (aside, deadline) = (Aside::WorkingSet(key), self.now + ANSWER_LIMIT);
            self.owners.ask_aside(*owner, (&source.key, ReadMode::Clip, vec![span]), deadline, aside);
            self.to_poll.insert((*owner, Lane::Bulk));
        }
    }

    /// Takes the answer with a child's working set.
    pub(in crate::pager) fn recall(&mut self, key: u64, reply: &Reply) {
        let Some(source) = self.children.get(&key).and_then(|served| served.child.sources.first()) else { return };
        let set: Arc<[Pages]> = decode(&reply.data).into();
        if !set.is_empty() {
            self.recent_sets.put(&source.key, &set, self.now);
            self.take_set(key, &set);
        }
    }

    fn take_set(&mut self, key: u64, set: &[Pages]) {
        if let Some(served) = self.children.get_mut(&key) {
            served.child.recall(set);
            self.queue_recalled(key);
        }
    }

    /// Has a child's working set fetched, once both are there.
    pub(in crate::pager) fn queue_recalled(&mut self, key: u64) {
        let Some(served) = self.children.get_mut(&key) else { return };
        let child = &mut served.child;
        if child.socket.is_some() {
            return self.fetch_early(key);
        }
        if child.recalled.is_empty() {
            return;
        }
        let mut shares: BTreeMap<usize, VecDeque<Range<u64>>> = BTreeMap::new();
        for slots in std::mem::take(&mut child.recalled) {
            for source in child.populated.sources_of(slots.clone()) {
                shares.entry(source).or_default().push_back(slots.clone());
            }
        }
        let own = child.spaces.range(..child.own_spaces()).map(|(space, _)| *space);
        for (space, (source, slots)) in own.flat_map(|space| shares.iter().map(move |share| (space, share))) {
            let wish = Wish { child: key, space, source: *source, slots: slots.clone(), is_recalled: true };
            self.owners.queue(served.owners[*source], wish);
        }
    }

    /// What of a child's set comes along with a page of it that somebody waits for: those that were wanted next; the rest follows behind
    /// them. Nothing where the page does not wait for its turn.
    pub(in crate::pager) fn leap(
        &mut self,
        fault: Fault,
        slot: u64,
        (source, owner): (usize, OwnerKey),
    ) -> Vec<Range<u64>> {
        let Fault { child, space, .. } = fault;
        let Some(wish) = self.owners.leap(owner, (child, space, source), slot) else { return Vec::new() };
        let Some(served) = self.children.get(&child) else { return Vec::new() };
        let Child { spaces, populated, .. } = &served.child;
        let Some(known) = spaces.get(&space) else { return Vec::new() };
        let wanted = known.take_wanted((source, populated), &mut wish.slots, BULK_SLOTS);
        self.take_cached((child, space, source), wanted)
    }

    /// Has what a child's set has of a range fetched when it is its turn.
    pub(in crate::pager) fn queue_part_of_set(
        &mut self,
        fault: Fault,
        (source, owner): (usize, OwnerKey),
        range: Range<u64>,
    ) {
        let Some(served) = self.children.get(&fault.child).filter(|_| range.end - range.start > 1) else { return };
        let slots = served.child.trace.known_of(range);
        self.owners.queue(owner, Wish { child: fault.child, space: fault.space, source, slots, is_recalled: true });
    }

    /// Tells the owner what was seen of a child since the last time.
    pub(in crate::pager) fn report(&mut self, key: u64, is_last: bool) {
        let Some(served) = self.children.get_mut(&key) else { return };
        let Some(owner) = served.owners.first().copied() else { return };
        if served.child.lost.is_some() {
            return;
        }
        for report in served.child.reports(is_last) {
            self.owners.tell(owner, report.encode(), self.now + ANSWER_LIMIT);
            self.to_poll.insert((owner, Lane::Bulk));
        }
    }

    /// Tells owners what was seen of all children.
    pub(in crate::pager) fn report_all(&mut self) {
        let keys: Vec<u64> = self.children.keys().copied().collect();
        keys.into_iter().for_each(|key| self.report(key, false));
    }
}
