//! The pager's use of its cache: faults and what is fetched ahead find their pages there first, what owners send is kept
//! there, and owners are asked whether they still have its seeds.
//!
//! Children use it that were forked with the strategy `cache`, and all of a seed that was warmed up on this node. Pages of
//! this host's own seeds are not kept: their owner's memory is as near.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::{Address, Completion, FabricError, ReadMode, Refusal, SeedKey, Span};
use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::ExtentId;

use super::PageCache;
use super::upkeep::Upkeep;
use crate::pager::child::{Child, ChildSource};
use crate::pager::faults::retries::{PAUSED_TRIES_MAX, Task};
use crate::pager::journal::SpaceNumber;
use crate::pager::owners::{Aside, Lane, Read, Wish};
use crate::pager::server::Server;
use crate::pager::space::install::Installed;

/// Slots installed from the cache between two looks for faults, about 100 µs: as long as somebody may have to wait whose
/// page is not among them.
pub(in crate::pager) const CACHED_SLOTS_MAX: u64 = 128;

/// For an owner to say whether it has a seed, before it is asked again.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

impl Child {
    /// Whether it looks into the cache, and what is fetched for it is kept there.
    pub(in crate::pager) fn uses(&self, cache: &PageCache, source: &ChildSource) -> bool {
        !source.is_on_this_host() && (self.strategy.cache || cache.is_for_all(&source.key.seed))
    }

    /// Installs slots that the cache has, from the first one on, up to the first that it has not; gives how many, and how
    /// it went with the last; `None` where it has not the first.
    pub(in crate::pager) fn put_cached(
        &mut self,
        cache: &mut PageCache,
        space: SpaceNumber,
        slots: Range<u64>,
        now: Instant,
    ) -> Option<(u64, Installed)> {
        let run = self.populated.runs_of(slots).next()?;
        let source = self.source_of(&run);
        if !self.uses(cache, source) {
            return None;
        }
        let data = cache.get(&source.key, run.origin.extent, run.origin.page, run.count, now);
        let run = crate::pager::plan::populated::SlotRun { count: data.len() as u64 / PAGE_SIZE, ..run };
        if run.count == 0 {
            return None;
        }
        let taken = run.first_slot..run.first_slot + run.count;
        let space = self.spaces.get_mut(&space)?;
        space.asked(std::slice::from_ref(&taken));
        let outcome = space.put(&run, data, &mut self.counters.pages_cached);
        match outcome {
            Installed::All => space.zero_gap_behind(&run, &self.populated, &mut self.counters.zero_pages),
            Installed::Later { .. } | Installed::Gone | Installed::Failed(_) => space.dropped(taken),
        }
        Some((run.count, outcome))
    }
}

impl Server<'_> {
    /// Installs what the cache has of slots that are fetched ahead; gives those that are to be asked for.
    pub(in crate::pager) fn take_cached(
        &mut self,
        (child, space, source): (u64, SpaceNumber, usize),
        wanted: Vec<Range<u64>>,
    ) -> Vec<Range<u64>> {
        let mut rest: Vec<Range<u64>> = Vec::new();
        for mut slots in wanted {
            while !slots.is_empty() {
                let Some(served) = self.children.get_mut(&child) else { return Vec::new() };
                let (owner, known) = (served.owners[source], &mut served.child);
                let Some((count, outcome)) = known.put_cached(&mut self.cache, space, slots.clone(), self.now) else {
                    let missing = slots.start..slots.start + 1;
                    match rest.last_mut().filter(|last| last.end == missing.start) {
                        Some(last) => last.end = missing.end,
                        None => rest.push(missing),
                    }
                    slots.start += 1;
                    continue;
                };
                self.cached_room = self.cached_room.saturating_sub(count);
                match outcome {
                    Installed::All => {}
                    Installed::Later { pause, .. } => {
                        let later = slots.start..slots.start + count;
                        let wish = Wish { child, space, source, slots: [later].into(), is_recalled: true };
                        self.retries.push(Task::Ahead(owner, wish), self.now, pause, PAUSED_TRIES_MAX);
                    }
                    Installed::Gone => self.close_space(child, space),
                    Installed::Failed(error) => self.lose(child, &format!("a page could not be installed: {error}")),
                }
                slots.start += count;
            }
        }
        rest
    }

    /// Keeps what an owner sent for a child.
    pub(in crate::pager) fn keep(&mut self, read: &Read, mut data: &[u8]) {
        let Some(served) = self.children.get(&read.child) else { return };
        let child = &served.child;
        for run in read.slots.iter().flat_map(|slots| child.populated.runs_of(slots.clone())) {
            let source = child.source_of(&run);
            let Some((pages, behind)) = data.split_at_checked((run.count * PAGE_SIZE) as usize) else { return };
            data = behind;
            if child.uses(&self.cache, source) {
                self.cache.missed(run.count);
                let first = (run.origin.extent, run.origin.page);
                self.cache.put(&source.key, &source.owner, first, pages, self.now);
            }
        }
    }

    /// Forgets a seed whose owner says that it is no more.
    pub(in crate::pager) fn note_dropped(&mut self, read: &Read, error: &FabricError) {
        let Some(served) = self.children.get(&read.child) else { return };
        // A wrong token says nothing of the seed.
        if matches!(error, FabricError::Refused { refusal: Refusal::UnknownSeed, .. }) {
            let child = &served.child;
            let runs = read.slots.iter().flat_map(|slots| child.populated.runs_of(slots.clone()));
            runs.for_each(|run| self.cache.forget(&child.source_of(&run).key.seed));
        }
    }

    /// Forgets what is due, and asks owners for seeds that they may have dropped.
    pub(in crate::pager) fn keep_up_cache(&mut self) {
        for upkeep in self.cache.upkeep(self.now) {
            match upkeep {
                Upkeep::Forget(seed) => self.cache.forget(&seed),
                Upkeep::Ask(key, owner) => self.ask_for_seed(key, &owner),
            }
        }
    }

    fn ask_for_seed(&mut self, key: Arc<SeedKey>, owner: &Address) {
        let attached = self.attach(owner, key.seed.node());
        // An owner that cannot be reached is asked again, until it was silent for too long.
        let Ok(owner) = attached else { return };
        let (aside, extent) = (Aside::SeedThere(key.seed.clone()), ExtentId::DESCRIPTOR);
        let spans = vec![Span { extent, offset: 0, bytes: 1 }];
        self.owners.ask_aside(owner, (&key, ReadMode::Exact, spans), self.now + ANSWER_LIMIT, aside);
        self.to_poll.insert((owner, Lane::Bulk));
        self.owners.detach(owner, self.now);
    }

    /// Takes the answer to a question that was not about a child's pages.
    pub(in crate::pager) fn conclude_aside(&mut self, aside: Aside, completion: Completion) {
        match (aside, completion.result) {
            (Aside::SeedThere(seed), Ok(_)) => self.cache.confirmed(&seed, self.now),
            (Aside::SeedThere(seed), Err(error)) if is_dropped(&error) => self.cache.forget(&seed),
            (Aside::WorkingSet(child), Ok(reply)) => self.recall(child, &reply),
            (Aside::WarmSet(seed), reply) => self.take_set_to_warm(&seed, reply),
            (Aside::Warm(seed, batch), reply) => self.take_warm(&seed, &batch, reply),
            (Aside::SeedThere(_) | Aside::WorkingSet(_), Err(_)) | (Aside::Told, _) => {}
        }
    }
}

/// Whether an owner says that there is no such seed any more.
fn is_dropped(error: &FabricError) -> bool {
    matches!(error, FabricError::Refused { refusal: Refusal::UnknownSeed | Refusal::WrongToken, .. })
}
