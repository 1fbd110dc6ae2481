//! The pager's use of working sets: requests a child's set when the child is adopted, and queues the pages when the set
//! arrives. Reports the child's accesses to its seed's owner every second, and when the child has ended.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use farfork_fabric::{READ_BYTES_MAX, ReadMode, Reply, Span};
use farfork_wire::ChildId;
use farfork_wire::descriptor::ExtentId;

use super::codec::{AccessReport, REPORT_RUNS_MAX};
use super::{MarkedRun, SET_PAGES_MAX, TRIAL_FRACTION, decode_set, zygote_subset};
use crate::pager::child::Child;
use crate::pager::faults::retry_queue::PageFault;
use crate::pager::owner_connections::{
    AddressSpaceSource, AuxiliaryRequest, BULK_SLOTS, Lane, OwnerKey, PrefetchRequest, SeedRead,
};
use crate::pager::plan::strategy::PagingMode;
use crate::pager::server::PagerServer;

/// How long an owner may take to reply with a set, or to accept a report. The child does not wait for the set, and the
/// next child's report makes up for a lost report.
const OWNER_REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of runs of untouched pages in one report: more than are ever on trial for one child.
const UNWANTED_RUNS_MAX: usize = SET_PAGES_MAX as usize / TRIAL_FRACTION;

/// Maximum number of runs of touched and fetched pages in one report.
const TOUCHED_RUNS_MAX: usize = REPORT_RUNS_MAX - UNWANTED_RUNS_MAX;

impl Child {
    /// Appends slots, as pages of the child's own seed.
    fn push_slots(&self, slots: &Range<u64>, mark: bool, into: &mut Vec<MarkedRun>) {
        for run in self.populated.runs_of(slots.clone()) {
            let count = u32::try_from(run.count).unwrap_or(u32::MAX);
            into.push(MarkedRun { extent: run.extent, first: run.first_page, count, mark });
        }
    }

    /// The page of a slot.
    fn page_of_slot(&self, slot: u64) -> Option<(ExtentId, u64)> {
        self.populated.runs_of(slot..slot + 1).next().map(|run| (run.extent, run.first_page))
    }

    /// Loads a working set. The slots to fetch are queued in `pending_set_slots`.
    fn load_working_set(&mut self, set: &[MarkedRun]) {
        match self.zygote_copies {
            Some(_) => {
                self.load_set_pages(zygote_subset::select_zygote_pages(set).take(self.zygote_pages_left() as usize))
            }
            None => self.load_set_pages(MarkedRun::iter_pages(set).take(SET_PAGES_MAX as usize)),
        }
    }

    fn load_set_pages(&mut self, pages: impl Iterator<Item = (ExtentId, u64, bool)>) {
        let mut on_trial = Vec::new();
        for (extent, page, is_on_trial) in pages {
            let Some(slot) = self.populated.slot_of(extent, page) else { continue };
            if is_on_trial {
                on_trial.push(slot);
                continue;
            }
            match self.pending_set_slots.back_mut().filter(|last| last.end == slot) {
                Some(last) => last.end += 1,
                None => self.pending_set_slots.push_back(slot..slot + 1),
            }
        }
        self.trace.record_received_set(self.pending_set_slots.make_contiguous(), &on_trial);
    }

    /// Takes the accesses since the last call, as one or more reports.
    fn take_reports(&mut self, is_last: bool) -> Vec<AccessReport> {
        let Some(source) = self.sources.first() else { return Vec::new() };
        let (seed, token) = (source.key.seed.clone(), source.key.token);
        let unwanted = if is_last { self.trace.take_untouched_trials() } else { Vec::new() };
        let delta = self.trace.take_delta();
        if delta.is_none() && unwanted.is_empty() {
            return Vec::new();
        }
        let mut after = delta.as_ref().and_then(|delta| self.page_of_slot(delta.after?));
        let mut pages = Vec::new();
        delta.iter().flat_map(|delta| &delta.slots).for_each(|(slots, mark)| self.push_slots(slots, *mark, &mut pages));
        let mut doubtful = Vec::new();
        unwanted.iter().for_each(|slots| self.push_slots(slots, false, &mut doubtful));
        doubtful.truncate(UNWANTED_RUNS_MAX);

        let mut reports = Vec::new();
        let mut chunks: VecDeque<&[MarkedRun]> = pages.chunks(TOUCHED_RUNS_MAX).collect();
        loop {
            let pages = chunks.pop_front().unwrap_or_default().to_vec();
            let last = pages.last().map(|last| (last.extent, last.first + u64::from(last.count) - 1));
            let is_end = chunks.is_empty();
            let unwanted = if is_end { std::mem::take(&mut doubtful) } else { Vec::new() };
            let seed = seed.clone();
            reports.push(AccessReport {
                seed,
                token,
                after,
                pages,
                untouched_trials: unwanted,
                is_last: is_last && is_end,
            });
            after = last;
            if is_end {
                return reports;
            }
        }
    }
}

impl PagerServer<'_> {
    /// Requests the working set of an adopted child's seed, or loads it from the cache.
    pub(in crate::pager) fn request_working_set(&mut self, id: &ChildId) {
        let Some(key) = self.child_key(id) else { return };
        let Some(served) = self.children.get(&key) else { return };
        let (Some(source), Some(owner)) = (served.child.sources.first(), served.owners.first()) else { return };
        let strategy = served.child.strategy;
        if strategy.mode != PagingMode::Prefetch || strategy.ignores_working_set {
            return;
        }
        if let Some(set) = self.working_set_cache.get(&source.key, self.now) {
            self.load_working_set(key, &set);
        } else {
            let span = Span { extent: ExtentId::WORKING_SET, offset: 0, bytes: READ_BYTES_MAX as u32 };
            let (request, deadline) = (AuxiliaryRequest::ChildWorkingSet(key), self.now + OWNER_REPLY_TIMEOUT);
            let read = SeedRead { key: &source.key, mode: ReadMode::Clip, spans: vec![span] };
            self.owners.submit_auxiliary(*owner, read, deadline, request);
            self.lanes_to_poll.insert((*owner, Lane::Bulk));
        }
    }

    /// Handles the reply with a child's working set.
    pub(in crate::pager) fn handle_working_set_reply(&mut self, key: u64, reply: &Reply) {
        let Some(source) = self.children.get(&key).and_then(|served| served.child.sources.first()) else { return };
        let set: Arc<[MarkedRun]> = decode_set(&reply.data).into();
        if !set.is_empty() {
            self.working_set_cache.insert(&source.key, &set, self.now);
            self.load_working_set(key, &set);
        }
    }

    fn load_working_set(&mut self, key: u64, set: &[MarkedRun]) {
        if let Some(served) = self.children.get_mut(&key) {
            served.child.load_working_set(set);
            self.queue_working_set(key);
        }
    }

    /// Queues the pending slots of a child's working set for prefetching. If the child's userfaultfd has not arrived,
    /// fetches only the first slots early.
    pub(in crate::pager) fn queue_working_set(&mut self, key: u64) {
        let Some(served) = self.children.get_mut(&key) else { return };
        let child = &mut served.child;
        if child.uffd_socket.is_some() {
            return self.fetch_early(key);
        }
        if child.pending_set_slots.is_empty() {
            return;
        }
        let mut slots_by_source: BTreeMap<usize, VecDeque<Range<u64>>> = BTreeMap::new();
        for slots in std::mem::take(&mut child.pending_set_slots) {
            for source in child.populated.sources_of(slots.clone()) {
                slots_by_source.entry(source).or_default().push_back(slots.clone());
            }
        }
        let own = child.spaces.range(..child.process_count()).map(|(space, _)| *space);
        for (space, (source, slots)) in own.flat_map(|space| slots_by_source.iter().map(move |entry| (space, entry))) {
            let target = AddressSpaceSource { child: key, space, source: *source };
            let prefetch_request = PrefetchRequest { target, slots: slots.clone(), is_from_set: true };
            self.owners.queue_prefetch(served.owners[*source], prefetch_request);
        }
    }

    /// Takes from the queued working set the slot that a thread waits for and the slots that earlier children touched
    /// next, to read them together. The prefetch continues after these slots. Empty if the slot is not queued.
    pub(in crate::pager) fn take_set_slots_from(
        &mut self,
        fault: PageFault,
        slot: u64,
        source: usize,
        owner: OwnerKey,
    ) -> Vec<Range<u64>> {
        let PageFault { child, space, .. } = fault;
        let target = AddressSpaceSource { child, space, source };
        let Some(prefetch_request) = self.owners.advance_prefetch(owner, target, slot) else {
            return Vec::new();
        };
        let Some(served) = self.children.get(&child) else { return Vec::new() };
        let Child { spaces, populated, .. } = &served.child;
        let Some(address_space) = spaces.get(&space) else { return Vec::new() };
        let wanted = address_space.take_missing_slots(source, populated, &mut prefetch_request.slots, BULK_SLOTS);
        self.install_cached_slots(target, wanted)
    }

    /// Queues the pages of a range that are in the child's set, or that its trace has recorded.
    pub(in crate::pager) fn queue_set_range(
        &mut self,
        fault: PageFault,
        source: usize,
        owner: OwnerKey,
        range: Range<u64>,
    ) {
        let Some(served) = self.children.get(&fault.child).filter(|_| range.end - range.start > 1) else { return };
        let slots = served.child.trace.recorded_in(range);
        let target = AddressSpaceSource { child: fault.child, space: fault.space, source };
        self.owners.queue_prefetch(owner, PrefetchRequest { target, slots, is_from_set: true });
    }

    /// Reports a child's accesses since the last report to the owner of its seed.
    pub(in crate::pager) fn report_accesses(&mut self, key: u64, is_last: bool) {
        let Some(served) = self.children.get_mut(&key) else { return };
        let Some(owner) = served.owners.first().copied() else { return };
        if served.child.loss_reason.is_some() {
            return;
        }
        for report in served.child.take_reports(is_last) {
            self.owners.send_message(owner, report.encode(), self.now + OWNER_REPLY_TIMEOUT);
            self.lanes_to_poll.insert((owner, Lane::Bulk));
        }
    }

    /// Reports the accesses of all children to the owners of their seeds.
    pub(in crate::pager) fn report_all_accesses(&mut self) {
        let keys: Vec<u64> = self.children.keys().copied().collect();
        keys.into_iter().for_each(|key| self.report_accesses(key, false));
    }
}
