//! Prewarming: fetches a seed's working set into this node's page cache before the node has any child of the seed. The
//! daemon starts a prewarm, and requests the progress, with `PagerRequest::Prewarm`. `PrewarmJob` shows the states.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use farfork_fabric::{FabricError, READ_BYTES_MAX, ReadMode, Reply, Span};
use farfork_wire::descriptor::ExtentId;
use farfork_wire::{PAGE_SIZE, SeedId};

use super::{MarkedRun, SET_PAGES_MAX, decode_set};
use crate::pager::child::ChildSource;
use crate::pager::control::protocol::{PagerReply, PrewarmProgress, PrewarmState};
use crate::pager::owner_connections::{AuxiliaryRequest, BULK_SLOTS, Lane, OwnerKey, SeedRead};
use crate::pager::plan::MemoryPlan;
use crate::pager::plan::slot_index::SlotIndex;
use crate::pager::server::PagerServer;

/// Maximum number of reads in flight for one seed: fewer than `BULK_READS_MAX`, so that children get their turn.
const PREWARM_READS_MAX: usize = 2;

/// Maximum number of seeds that are prewarmed at once. Each needs a few hundred KiB of memory.
const PREWARM_JOBS_MAX: usize = 64;

/// How long an owner may take to reply to a read.
const PREWARM_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Slots of one source that are requested together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::pager) struct PrewarmBatch {
    source: usize,
    slots: Vec<Range<u64>>,
}

/// The prewarm of a seed, running or finished.
///
/// ```text
///  requested ─▶ set from the owner ─▶ its pages, some reads at a time ─▶ done: all children of the seed use the cache
///                        └────────────────────┴─▶ failed: the pages that have arrived stay
/// ```
#[derive(Debug)]
pub(in crate::pager) struct PrewarmJob {
    sources: Vec<ChildSource>,
    owners: Vec<OwnerKey>,
    populated: SlotIndex,
    pending_batches: VecDeque<PrewarmBatch>,
    reads_in_flight: usize,
    progress: PrewarmProgress,
}

impl PagerServer<'_> {
    /// Starts to prewarm a seed whose plan is in `dir`, or returns the progress. A final state is returned only once.
    pub(in crate::pager) fn handle_prewarm(&mut self, seed: &SeedId, dir: &Path) -> PagerReply {
        if !self.prewarm_jobs.contains_key(seed)
            && let Err(reason) = self.start_prewarm(seed, dir)
        {
            return PagerReply::Refused(format!("seed {seed} is not prewarmed: {reason}"));
        }
        let Some(progress) = self.prewarm_jobs.get(seed).map(|job| job.progress.clone()) else {
            return PagerReply::Refused(format!("seed {seed} is not being prewarmed"));
        };
        if progress.state != PrewarmState::Running {
            self.prewarm_jobs.remove(seed);
        }
        PagerReply::PrewarmProgress(progress)
    }

    fn start_prewarm(&mut self, seed: &SeedId, dir: &Path) -> Result<(), String> {
        self.prewarm_jobs.retain(|_, job| job.progress.state == PrewarmState::Running);
        if self.prewarm_jobs.len() >= PREWARM_JOBS_MAX {
            return Err(format!("{PREWARM_JOBS_MAX} other seeds are being prewarmed; try again when one is done"));
        }
        let plan = MemoryPlan::read(dir).map_err(|error| error.to_string())?;
        let sources: Vec<ChildSource> = plan.sources.into_iter().map(ChildSource::from_page_source).collect();
        let owners = self.attach_owners(&sources).map_err(|error| error.to_string())?;
        let populated = SlotIndex::from_extents(plan.extents.iter().map(|extent| (extent.id, &extent.populated[..])));
        let progress = PrewarmProgress { set_pages: 0, cached_pages: 0, state: PrewarmState::Running };
        let span = Span { extent: ExtentId::WORKING_SET, offset: 0, bytes: READ_BYTES_MAX as u32 };
        let (owner, key) = (owners[0], sources[0].key.clone());
        let job =
            PrewarmJob { sources, owners, populated, pending_batches: VecDeque::new(), reads_in_flight: 0, progress };
        self.prewarm_jobs.insert(seed.clone(), job);
        let auxiliary_request = AuxiliaryRequest::PrewarmWorkingSet(seed.clone());
        let read = SeedRead { key: &key, mode: ReadMode::Clip, spans: vec![span] };
        self.submit_prewarm_read(seed, owner, read, auxiliary_request);
        Ok(())
    }

    fn submit_prewarm_read(
        &mut self,
        seed: &SeedId,
        owner: OwnerKey,
        read: SeedRead<'_>,
        auxiliary_request: AuxiliaryRequest,
    ) {
        if self.owners.submit_auxiliary(owner, read, self.now + PREWARM_READ_TIMEOUT, auxiliary_request) {
            self.lanes_to_poll.insert((owner, Lane::Bulk));
        } else {
            self.finish_prewarm(
                seed,
                PrewarmState::Failed("too many requests to its owner are in flight; try again".into()),
            );
        }
    }

    /// Handles the reply with the working set: queues reads of its pages.
    pub(in crate::pager) fn handle_prewarm_set(&mut self, seed: &SeedId, reply: Result<Reply, FabricError>) {
        let Some(job) = self.prewarm_jobs.get_mut(seed) else { return };
        let set = match reply {
            Ok(reply) => decode_set(&reply.data),
            Err(error) => return self.finish_prewarm(seed, PrewarmState::Failed(error.to_string())),
        };
        let mut partial_batches: BTreeMap<usize, Vec<Range<u64>>> = BTreeMap::new();
        for (extent, page, _) in MarkedRun::iter_pages(&set).take(SET_PAGES_MAX as usize) {
            let Some(slot) = job.populated.slot_of(extent, page) else { continue };
            job.progress.set_pages += 1;
            let index = job.populated.source_of(slot);
            let (source, run) = (&job.sources[index], job.populated.runs_of(slot..slot + 1).next());
            let Some(run) = run.filter(|_| !source.is_on_this_host()) else { continue };
            if self.cache.contains(&source.key, run.origin.extent, run.origin.page) {
                job.progress.cached_pages += 1;
                continue;
            }
            let slots = partial_batches.entry(index).or_default();
            match slots.last_mut().filter(|last| last.end == slot) {
                Some(last) => last.end += 1,
                None => slots.push(slot..slot + 1),
            }
            if slots.iter().map(|slots| slots.end - slots.start).sum::<u64>() >= BULK_SLOTS {
                job.pending_batches.push_back(PrewarmBatch { source: index, slots: std::mem::take(slots) });
            }
        }
        let rest = partial_batches.into_iter().filter(|(_, slots)| !slots.is_empty());
        job.pending_batches.extend(rest.map(|(source, slots)| PrewarmBatch { source, slots }));
        self.continue_prewarm(seed);
    }

    /// Handles the reply with pages of a set: inserts them into the cache, and continues.
    pub(in crate::pager) fn handle_prewarm_pages(
        &mut self,
        seed: &SeedId,
        batch: &PrewarmBatch,
        reply: Result<Reply, FabricError>,
    ) {
        let Some(job) = self.prewarm_jobs.get_mut(seed) else { return };
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => return self.finish_prewarm(seed, PrewarmState::Failed(error.to_string())),
        };
        job.reads_in_flight -= 1;
        let source = &job.sources[batch.source];
        let mut data = &reply.data[..];
        for run in batch.slots.iter().flat_map(|slots| job.populated.runs_of(slots.clone())) {
            let Some((pages, rest)) = data.split_at_checked((run.count * PAGE_SIZE) as usize) else { break };
            data = rest;
            self.cache.insert(&source.key, &source.owner, run.origin.into(), pages, self.now);
            job.progress.cached_pages += run.count;
        }
        self.continue_prewarm(seed);
    }

    fn continue_prewarm(&mut self, seed: &SeedId) {
        while let Some(job) = self.prewarm_jobs.get_mut(seed)
            && job.progress.state == PrewarmState::Running
            && job.reads_in_flight < PREWARM_READS_MAX
        {
            let Some(batch) = job.pending_batches.pop_front() else {
                if job.reads_in_flight == 0 {
                    self.finish_prewarm(seed, PrewarmState::Done);
                }
                return;
            };
            let runs = batch.slots.iter().flat_map(|slots| job.populated.runs_of(slots.clone()));
            let spans = runs.map(|run| Span {
                extent: run.origin.extent,
                offset: run.origin.page * PAGE_SIZE,
                bytes: (run.count * PAGE_SIZE) as u32,
            });
            let spans = spans.collect();
            let (owner, key) = (job.owners[batch.source], job.sources[batch.source].key.clone());
            job.reads_in_flight += 1;
            self.submit_prewarm_read(
                seed,
                owner,
                SeedRead { key: &key, mode: ReadMode::Exact, spans },
                AuxiliaryRequest::PrewarmPages(seed.clone(), batch),
            );
        }
    }

    fn finish_prewarm(&mut self, seed: &SeedId, state: PrewarmState) {
        let Some(job) = self.prewarm_jobs.get_mut(seed) else { return };
        if state == PrewarmState::Done {
            for source in job.sources.iter().filter(|source| !source.is_on_this_host()) {
                self.cache.share_seed(&source.key, &source.owner, self.now);
            }
        }
        job.progress.state = state;
        job.pending_batches.clear();
        let owners = std::mem::take(&mut job.owners);
        self.detach_owners(owners);
    }
}
