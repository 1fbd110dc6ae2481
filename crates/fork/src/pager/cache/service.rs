//! The pager's use of its cache. Faults and prefetches look for their pages in the cache first, and pages that owners
//! send are stored in it. Owners are asked whether they still have the cached seeds. The cache serves children with the
//! strategy `cache`, and all children of a seed that was prewarmed on this node. Pages of seeds on this host are not
//! cached: they are already in local memory.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::{Address, Completion, FabricError, ReadMode, Refusal, SeedKey, Span};
use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::ExtentId;

use super::PageCache;
use super::revalidation::RevalidationAction;
use crate::pager::address_space::install::InstallOutcome;
use crate::pager::child::{Child, ChildSource};
use crate::pager::faults::retry_queue::{PAUSED_TRIES_MAX, RetryTask};
use crate::pager::journal::AddressSpaceId;
use crate::pager::owner_connections::{
    AddressSpaceSource, AuxiliaryRequest, Lane, PageRead, PrefetchRequest, SeedRead,
};
use crate::pager::server::PagerServer;

/// Maximum number of slots that are installed from the cache before the pager polls for faults again. Installing them
/// takes about 100 µs, for which a fault may have to wait.
pub(in crate::pager) const CACHED_SLOTS_PER_ROUND_MAX: u64 = 128;

/// How long an owner may take to reply whether it has a seed. After this time the pager asks again.
const SEED_CHECK_TIMEOUT: Duration = Duration::from_secs(5);

impl Child {
    /// Whether the child's pages from this source are looked up and stored in the cache.
    pub(in crate::pager) fn uses_cache(&self, cache: &PageCache, source: &ChildSource) -> bool {
        !source.is_on_this_host() && (self.strategy.uses_cache || cache.is_shared(&source.key.seed))
    }

    /// Installs slots from the cache, from the first one up to the first that is not cached. Returns their number and the
    /// outcome, or `None` if the first slot is not cached.
    pub(in crate::pager) fn install_cached(
        &mut self,
        cache: &mut PageCache,
        space: AddressSpaceId,
        slots: Range<u64>,
        now: Instant,
    ) -> Option<(u64, InstallOutcome)> {
        let run = self.populated.runs_of(slots).next()?;
        let source = self.source_of_run(&run);
        if !self.uses_cache(cache, source) {
            return None;
        }
        let data = cache.get(&source.key, run.origin.extent, run.origin.page, run.count, now);
        let run = crate::pager::plan::slot_index::SlotRun { count: data.len() as u64 / PAGE_SIZE, ..run };
        if run.count == 0 {
            return None;
        }
        let taken = run.first_slot..run.first_slot + run.count;
        let address_space = self.spaces.get_mut(&space)?;
        address_space.note_requested(std::slice::from_ref(&taken));
        let outcome = address_space.install_run(&run, data, &mut self.counters.pages_cached);
        match outcome {
            InstallOutcome::Complete => {
                address_space.zero_following_gap(&run, &self.populated, &mut self.counters.zero_pages)
            }
            InstallOutcome::Retry { .. } | InstallOutcome::ProcessGone | InstallOutcome::Failed(_) => {
                address_space.note_dropped(taken)
            }
        }
        Some((run.count, outcome))
    }
}

impl PagerServer<'_> {
    /// Installs the wanted slots that are cached. Returns the others, which must be requested.
    pub(in crate::pager) fn install_cached_slots(
        &mut self,
        target: AddressSpaceSource,
        wanted: Vec<Range<u64>>,
    ) -> Vec<Range<u64>> {
        let AddressSpaceSource { child, space, source } = target;
        let mut rest: Vec<Range<u64>> = Vec::new();
        for mut slots in wanted {
            while !slots.is_empty() {
                let Some(served) = self.children.get_mut(&child) else { return Vec::new() };
                let (owner, known) = (served.owners[source], &mut served.child);
                let Some((count, outcome)) = known.install_cached(&mut self.cache, space, slots.clone(), self.now)
                else {
                    let missing = slots.start..slots.start + 1;
                    match rest.last_mut().filter(|last| last.end == missing.start) {
                        Some(last) => last.end = missing.end,
                        None => rest.push(missing),
                    }
                    slots.start += 1;
                    continue;
                };
                self.cache_install_budget = self.cache_install_budget.saturating_sub(count);
                match outcome {
                    InstallOutcome::Complete => {}
                    InstallOutcome::Retry { pause, .. } => {
                        let later = slots.start..slots.start + count;
                        let prefetch_request = PrefetchRequest { target, slots: [later].into(), is_from_set: true };
                        self.retries.push(
                            RetryTask::Prefetch(owner, prefetch_request),
                            self.now,
                            pause,
                            PAUSED_TRIES_MAX,
                        );
                    }
                    InstallOutcome::ProcessGone => self.close_space(child, space),
                    InstallOutcome::Failed(error) => {
                        self.mark_child_lost(child, &format!("a page could not be installed: {error}"))
                    }
                }
                slots.start += count;
            }
        }
        rest
    }

    /// Stores the pages that an owner sent for a child in the cache, if the child uses it.
    pub(in crate::pager) fn store_pages(&mut self, read: &PageRead, mut data: &[u8]) {
        let Some(served) = self.children.get(&read.target.child) else { return };
        let child = &served.child;
        for run in read.slots.iter().flat_map(|slots| child.populated.runs_of(slots.clone())) {
            let source = child.source_of_run(&run);
            let Some((pages, rest)) = data.split_at_checked((run.count * PAGE_SIZE) as usize) else { return };
            data = rest;
            if child.uses_cache(&self.cache, source) {
                self.cache.count_misses(run.count);
                self.cache.insert(&source.key, &source.owner, run.origin.into(), pages, self.now);
            }
        }
    }

    /// Removes the seeds of a failed read from the cache if their owner replied that it does not know the seed.
    pub(in crate::pager) fn remove_unknown_seed(&mut self, read: &PageRead, error: &FabricError) {
        let Some(served) = self.children.get(&read.target.child) else { return };
        // A wrong token says nothing about the seed.
        if matches!(error, FabricError::Refused { refusal: Refusal::UnknownSeed, .. }) {
            let child = &served.child;
            let runs = read.slots.iter().flat_map(|slots| child.populated.runs_of(slots.clone()));
            runs.for_each(|run| self.cache.remove_seed(&child.source_of_run(&run).key.seed));
        }
    }

    /// Removes the seeds that are due, and asks owners about seeds that they may have dropped.
    pub(in crate::pager) fn revalidate_cache(&mut self) {
        for action in self.cache.due_revalidations(self.now) {
            match action {
                RevalidationAction::RemoveSeed(seed) => self.cache.remove_seed(&seed),
                RevalidationAction::CheckOwner(key, owner) => self.check_seed_exists(key, &owner),
            }
        }
    }

    fn check_seed_exists(&mut self, key: Arc<SeedKey>, owner: &Address) {
        let attached = self.attach_owner(owner, key.seed.node());
        // If the owner cannot be reached, a later revalidation asks again. After `OWNER_SILENT_LIMIT` the seed is
        // removed.
        let Ok(owner) = attached else { return };
        let (request, extent) = (AuxiliaryRequest::SeedExists(key.seed.clone()), ExtentId::DESCRIPTOR);
        let spans = vec![Span { extent, offset: 0, bytes: 1 }];
        let read = SeedRead { key: &key, mode: ReadMode::Exact, spans };
        self.owners.submit_auxiliary(owner, read, self.now + SEED_CHECK_TIMEOUT, request);
        self.lanes_to_poll.insert((owner, Lane::Bulk));
        self.owners.detach(owner, self.now);
    }

    /// Handles the reply to a request for something other than a child's pages.
    pub(in crate::pager) fn handle_auxiliary_reply(
        &mut self,
        auxiliary_request: AuxiliaryRequest,
        completion: Completion,
    ) {
        match (auxiliary_request, completion.result) {
            (AuxiliaryRequest::SeedExists(seed), Ok(_)) => self.cache.confirm_seed(&seed, self.now),
            (AuxiliaryRequest::SeedExists(seed), Err(error)) if is_seed_gone(&error) => self.cache.remove_seed(&seed),
            (AuxiliaryRequest::ChildWorkingSet(child), Ok(reply)) => self.handle_working_set_reply(child, &reply),
            (AuxiliaryRequest::PrewarmWorkingSet(seed), reply) => self.handle_prewarm_set(&seed, reply),
            (AuxiliaryRequest::PrewarmPages(seed, batch), reply) => self.handle_prewarm_pages(&seed, &batch, reply),
            (AuxiliaryRequest::SeedExists(_) | AuxiliaryRequest::ChildWorkingSet(_), Err(_))
            | (AuxiliaryRequest::Message, _) => {}
        }
    }
}

/// Whether an owner replied that it does not know the seed, or that the token is wrong.
fn is_seed_gone(error: &FabricError) -> bool {
    matches!(error, FabricError::Refused { refusal: Refusal::UnknownSeed | Refusal::WrongToken, .. })
}
