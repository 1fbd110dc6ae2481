//! Warming up: a seed's working set is put into this node's cache before any child of it is here.
//!
//! ```text
//!  asked ─▶ set from the owner ─▶ pages of it, some reads at a time ─▶ done: all children of the seed use the cache
//!                     └────────────────────┴─▶ failed: what came stays
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use farfork_fabric::{FabricError, READ_BYTES_MAX, ReadMode, Reply, Span};
use farfork_wire::descriptor::ExtentId;
use farfork_wire::{PAGE_SIZE, SeedId};

use super::{Pages, SET_PAGES_MAX, decode};
use crate::pager::child::ChildSource;
use crate::pager::control::protocol::{Reply as Answer, WarmProgress, WarmState};
use crate::pager::owners::{Aside, BULK_SLOTS, Lane, OwnerKey};
use crate::pager::plan::MemoryPlan;
use crate::pager::plan::populated::Populated;
use crate::pager::server::Server;

/// Reads on their way for one seed: less than a lane takes, so that children have their turn.
const READS_MAX: usize = 2;

/// Seeds that are warmed up at once; each takes some hundred KiB.
const SEEDS_MAX: usize = 64;

/// For an owner to answer a read.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Slots of one source that are asked for together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::pager) struct Batch {
    source: usize,
    slots: Vec<Range<u64>>,
}

/// A seed that is being warmed up, or was.
#[derive(Debug)]
pub(in crate::pager) struct Warming {
    sources: Vec<ChildSource>,
    owners: Vec<OwnerKey>,
    populated: Populated,
    wanted: VecDeque<Batch>,
    on_the_way: usize,
    progress: WarmProgress,
}

impl Server<'_> {
    /// Has a seed warmed up whose plan stands in `dir`, or tells how far it is. What is over is told once.
    pub(in crate::pager) fn warm(&mut self, seed: &SeedId, dir: &Path) -> Answer {
        if !self.warming.contains_key(seed)
            && let Err(reason) = self.begin_to_warm(seed, dir)
        {
            return Answer::Refused(format!("seed {seed} is not warmed up: {reason}"));
        }
        let Some(progress) = self.warming.get(seed).map(|warming| warming.progress.clone()) else {
            return Answer::Refused(format!("seed {seed} is not warmed up"));
        };
        if progress.state != WarmState::Underway {
            self.warming.remove(seed);
        }
        Answer::Warming(progress)
    }

    fn begin_to_warm(&mut self, seed: &SeedId, dir: &Path) -> Result<(), String> {
        self.warming.retain(|_, warming| warming.progress.state == WarmState::Underway);
        if self.warming.len() >= SEEDS_MAX {
            return Err(format!("{SEEDS_MAX} others are; try again when one is done"));
        }
        let plan = MemoryPlan::read(dir).map_err(|error| error.to_string())?;
        let sources: Vec<ChildSource> = plan.sources.into_iter().map(ChildSource::of).collect();
        let owners = self.attach_all(&sources).map_err(|error| error.to_string())?;
        let populated = Populated::of(plan.extents.iter().map(|extent| (extent.id, &extent.populated[..])));
        let progress = WarmProgress { set_pages: 0, cached_pages: 0, state: WarmState::Underway };
        let span = Span { extent: ExtentId::WORKING_SET, offset: 0, bytes: READ_BYTES_MAX as u32 };
        let (owner, key) = (owners[0], sources[0].key.clone());
        let warming = Warming { sources, owners, populated, wanted: VecDeque::new(), on_the_way: 0, progress };
        self.warming.insert(seed.clone(), warming);
        let aside = Aside::WarmSet(seed.clone());
        self.ask_to_warm(seed, owner, (&key, ReadMode::Clip, vec![span]), aside);
        Ok(())
    }

    fn ask_to_warm(
        &mut self,
        seed: &SeedId,
        owner: OwnerKey,
        read: (&std::sync::Arc<farfork_fabric::SeedKey>, ReadMode, Vec<Span>),
        aside: Aside,
    ) {
        if self.owners.ask_aside(owner, read, self.now + ANSWER_LIMIT, aside) {
            self.to_poll.insert((owner, Lane::Bulk));
        } else {
            self.end_warming(seed, WarmState::Failed("too much is asked of its owner; try again".into()));
        }
    }

    /// Takes a working set whose pages are to come.
    pub(in crate::pager) fn take_set_to_warm(&mut self, seed: &SeedId, reply: Result<Reply, FabricError>) {
        let Some(warming) = self.warming.get_mut(seed) else { return };
        let set = match reply {
            Ok(reply) => decode(&reply.data),
            Err(error) => return self.end_warming(seed, WarmState::Failed(error.to_string())),
        };
        let mut open: BTreeMap<usize, Vec<Range<u64>>> = BTreeMap::new();
        for (extent, page, _) in Pages::each(&set).take(SET_PAGES_MAX as usize) {
            let Some(slot) = warming.populated.slot_of(extent, page) else { continue };
            warming.progress.set_pages += 1;
            let index = warming.populated.source_of(slot);
            let (source, run) = (&warming.sources[index], warming.populated.runs_of(slot..slot + 1).next());
            let Some(run) = run.filter(|_| !source.is_on_this_host()) else { continue };
            if self.cache.holds(&source.key, run.origin.extent, run.origin.page) {
                warming.progress.cached_pages += 1;
                continue;
            }
            let slots = open.entry(index).or_default();
            match slots.last_mut().filter(|last| last.end == slot) {
                Some(last) => last.end += 1,
                None => slots.push(slot..slot + 1),
            }
            if slots.iter().map(|slots| slots.end - slots.start).sum::<u64>() >= BULK_SLOTS {
                warming.wanted.push_back(Batch { source: index, slots: std::mem::take(slots) });
            }
        }
        let rest = open.into_iter().filter(|(_, slots)| !slots.is_empty());
        warming.wanted.extend(rest.map(|(source, slots)| Batch { source, slots }));
        self.go_on_warming(seed);
    }

    /// Takes pages of a set.
    pub(in crate::pager) fn take_warm(&mut self, seed: &SeedId, batch: &Batch, reply: Result<Reply, FabricError>) {
        let Some(warming) = self.warming.get_mut(seed) else { return };
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => return self.end_warming(seed, WarmState::Failed(error.to_string())),
        };
        warming.on_the_way -= 1;
        let source = &warming.sources[batch.source];
        let mut data = &reply.data[..];
        for run in batch.slots.iter().flat_map(|slots| warming.populated.runs_of(slots.clone())) {
            let Some((pages, behind)) = data.split_at_checked((run.count * PAGE_SIZE) as usize) else { break };
            data = behind;
            self.cache.put(&source.key, &source.owner, (run.origin.extent, run.origin.page), pages, self.now);
            warming.progress.cached_pages += run.count;
        }
        self.go_on_warming(seed);
    }

    fn go_on_warming(&mut self, seed: &SeedId) {
        while let Some(warming) = self.warming.get_mut(seed)
            && warming.progress.state == WarmState::Underway
            && warming.on_the_way < READS_MAX
        {
            let Some(batch) = warming.wanted.pop_front() else {
                if warming.on_the_way == 0 {
                    self.end_warming(seed, WarmState::Done);
                }
                return;
            };
            let runs = batch.slots.iter().flat_map(|slots| warming.populated.runs_of(slots.clone()));
            let spans = runs.map(|run| Span {
                extent: run.origin.extent,
                offset: run.origin.page * PAGE_SIZE,
                bytes: (run.count * PAGE_SIZE) as u32,
            });
            let spans = spans.collect();
            let (owner, key) = (warming.owners[batch.source], warming.sources[batch.source].key.clone());
            warming.on_the_way += 1;
            self.ask_to_warm(seed, owner, (&key, ReadMode::Exact, spans), Aside::Warm(seed.clone(), batch));
        }
    }

    fn end_warming(&mut self, seed: &SeedId, state: WarmState) {
        let Some(warming) = self.warming.get_mut(seed) else { return };
        if state == WarmState::Done {
            for source in warming.sources.iter().filter(|source| !source.is_on_this_host()) {
                self.cache.open_to_all(&source.key, &source.owner, self.now);
            }
        }
        warming.progress.state = state;
        warming.wanted.clear();
        let owners = std::mem::take(&mut warming.owners);
        self.detach(owners);
    }
}
