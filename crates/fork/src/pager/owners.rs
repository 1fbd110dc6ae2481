//! The owners that pages come from: two connections to each, shared by all children, and what was asked on them. The
//! connections outlive the last child for a while, so that the next one of any seed of that owner finds them made.
//!
//! Pages that a thread waits for have a connection of their own (the demand lane), so that no stream of pages that may
//! be wanted soon (the bulk lane) delays them. Bulk reads wait here in a queue, few of them are on their way at a time.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::{
    Address, Buffer, Completion, Connection, MessageRequest, ReadMode, ReadRequest, SeedKey, Span, SubmitError,
};
use farfork_wire::{NodeName, PAGE_SIZE, SeedId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::journal::SpaceNumber;
use super::plan::populated::Populated;
use super::working_set::Batch;

/// Slots per bulk read. Larger ones cost no less per page, and make whoever waits for one of them wait longer.
pub(super) const BULK_SLOTS: u64 = 32;

/// Bulk reads on their way to one owner: the next are asked for while some arrive. No more than so many that arrived wait
/// to be installed when further ones are asked for.
pub(super) const BULK_READS_MAX: usize = 4;

/// With no more than so many on their way, others are asked for, in one go: a message costs as much as five pages.
const BULK_READS_LEFT: usize = 2;

/// How long a connection is kept that nobody uses, by a pager and by its node: as long as a user may think before the next fork.
pub(crate) const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// Most owners whose connections are kept so; the one that was left first goes first. Each has a few descriptors.
const IDLE_OWNERS_MAX: usize = 8;

/// A connection of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Lane {
    /// A thread waits.
    Demand,
    /// Likely wanted soon.
    Bulk,
}

/// An owner's key in [`Owners`].
pub(super) type OwnerKey = u64;

/// Slots of an address space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wish {
    /// The child.
    pub(super) child: u64,
    /// The space.
    pub(super) space: SpaceNumber,
    /// Which of the child's sources, this owner's: only pages that come from it are meant.
    pub(super) source: usize,
    /// The slots, in the order in which they are wanted.
    pub(super) slots: VecDeque<Range<u64>>,
    /// An earlier child wanted them: nothing was seen of this one.
    pub(super) is_recalled: bool,
}

impl Wish {
    /// Has a slot come first, what is wanted before it last. Tells whether it is wanted at all.
    fn go_on_at(&mut self, slot: u64) -> bool {
        let Some(at) = self.slots.iter().position(|slots| slots.contains(&slot)) else { return false };
        self.slots.rotate_left(at);
        if let Some(first) = self.slots.front_mut()
            && first.start < slot
        {
            let before = first.start..slot;
            first.start = slot;
            self.slots.push_back(before);
        }
        true
    }
}

/// A question that is not about a child's pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Aside {
    /// Whether the owner has this seed.
    SeedThere(SeedId),
    /// The working set of this child's seed.
    WorkingSet(u64),
    /// The working set of this seed, to be put into the cache.
    WarmSet(SeedId),
    /// Pages of that set.
    Warm(SeedId, Batch),
    /// None: something was told.
    Told,
}

/// A read on its way.
#[derive(Debug, Clone)]
pub(super) struct Read {
    /// The child.
    pub(super) child: u64,
    /// The space.
    pub(super) space: SpaceNumber,
    /// The slots, in the order of the reply's bytes.
    pub(super) slots: Vec<Range<u64>>,
    /// Which of the child's sources they come from.
    pub(super) source: usize,
    /// Who was asked.
    pub(super) owner: OwnerKey,
    /// How.
    pub(super) lane: Lane,
    /// When.
    pub(super) asked_at: Instant,
}

impl Read {
    /// Whether it is for more than one page that somebody waits for.
    pub(super) fn is_guess(&self) -> bool {
        self.lane == Lane::Bulk || self.slots.iter().map(|slots| slots.end - slots.start).sum::<u64>() > 1
    }
}

struct Owner {
    address: Address,
    node: NodeName,
    demand: Box<dyn Connection>,
    bulk: Box<dyn Connection>,
    bulk_reads: usize,
    /// Whether further ones are asked for.
    refills: bool,
    queue: VecDeque<Wish>,
    users: usize,
    /// When the last user went.
    left_at: Option<Instant>,
}

impl Owner {
    /// Whether another bulk read may be on its way.
    fn may_ask(&self) -> bool {
        self.bulk_reads <= BULK_READS_LEFT || self.refills && self.bulk_reads < BULK_READS_MAX
    }

    /// Takes note of how many bulk reads are on their way now.
    fn has_on_its_way(&mut self, bulk_reads: usize) {
        self.bulk_reads = bulk_reads;
        if bulk_reads <= BULK_READS_LEFT {
            self.refills = true;
        } else if bulk_reads >= BULK_READS_MAX {
            self.refills = false;
        }
    }

    fn lane(&mut self, lane: Lane) -> &mut Box<dyn Connection> {
        match lane {
            Lane::Demand => &mut self.demand,
            Lane::Bulk => &mut self.bulk,
        }
    }
}

/// Makes a connection to an owner; it is not waited for.
pub(super) type Connect = Box<dyn Fn(&Address, &NodeName) -> io::Result<Box<dyn Connection>>>;

/// All owners and all reads.
pub(super) struct Owners {
    connect: Connect,
    owners: BTreeMap<OwnerKey, Owner>,
    reads: HashMap<u64, Read>,
    asides: HashMap<u64, (OwnerKey, Aside)>,
    next_tag: u64,
    next_key: OwnerKey,
}

impl Owners {
    /// None yet, and how they will be reached.
    pub(super) fn new(connect: Connect) -> Self {
        Self {
            connect,
            owners: BTreeMap::new(),
            reads: HashMap::new(),
            asides: HashMap::new(),
            next_tag: 0,
            next_key: 0,
        }
    }

    /// The node at this address, for one more user; tells whether it is new, so that its connections are to be watched.
    ///
    /// # Errors
    /// As [`Connect`].
    pub(super) fn attach(&mut self, address: &Address, node: &NodeName) -> io::Result<(OwnerKey, bool)> {
        let is_it = |owner: &Owner| owner.address == *address && owner.node == *node;
        if let Some((key, owner)) = self.owners.iter_mut().find(|(_, owner)| is_it(owner)) {
            owner.users += 1;
            owner.left_at = None;
            return Ok((*key, false));
        }
        let (demand, bulk) = ((self.connect)(address, node)?, (self.connect)(address, node)?);
        let key = self.next_key;
        self.next_key += 1;
        let (address, node, queue) = (address.clone(), node.clone(), VecDeque::new());
        let owner = Owner { address, node, demand, bulk, bulk_reads: 0, refills: true, queue, users: 1, left_at: None };
        self.owners.insert(key, owner);
        Ok((key, true))
    }

    /// Ends one user's use.
    pub(super) fn detach(&mut self, key: OwnerKey, now: Instant) {
        let Some(owner) = self.owners.get_mut(&key) else { return };
        owner.users -= 1;
        if owner.users == 0 {
            owner.left_at = Some(now);
            owner.queue.clear();
        }
    }

    /// Closes the connections that were idle for too long, or are too many; gives their owners.
    pub(super) fn close_idle(&mut self, now: Instant) -> Vec<OwnerKey> {
        let idle = self.owners.iter().filter_map(|(key, owner)| Some((owner.left_at?, *key)));
        let mut idle: Vec<(Instant, OwnerKey)> = idle.collect();
        idle.sort_unstable();
        let too_many = idle.len().saturating_sub(IDLE_OWNERS_MAX);
        let is_over = |at: usize, left: Instant| at < too_many || now.saturating_duration_since(left) >= IDLE_LIMIT;
        let over = idle.iter().enumerate().filter(|(at, (left, _))| is_over(*at, *left));
        let closed: Vec<OwnerKey> = over.map(|(_, (_, key))| *key).collect();
        self.owners.retain(|key, _| !closed.contains(key));
        self.reads.retain(|_, read| !closed.contains(&read.owner));
        self.asides.retain(|_, (owner, _)| !closed.contains(owner));
        closed
    }

    /// What tells that a lane has something to say.
    pub(super) fn descriptor(&self, key: OwnerKey, lane: Lane) -> Option<BorrowedFd<'_>> {
        let owner = self.owners.get(&key)?;
        Some(match lane {
            Lane::Demand => owner.demand.descriptor()?,
            Lane::Bulk => owner.bulk.descriptor()?,
        })
    }

    /// The owners there are.
    pub(super) fn keys(&self) -> Vec<OwnerKey> {
        self.owners.keys().copied().collect()
    }

    /// Asks for slots. They are sent with the next [`Self::poll`].
    ///
    /// # Errors
    /// [`SubmitError::Full`]: too much is on its way.
    pub(super) fn ask(
        &mut self,
        read: Read,
        key: &Arc<SeedKey>,
        populated: &Populated,
        deadline: Instant,
    ) -> Result<(), SubmitError> {
        let Some(owner) = self.owners.get_mut(&read.owner) else { return Ok(()) };
        let runs = read.slots.iter().flat_map(|slots| populated.runs_of(slots.clone()));
        let spans = runs.map(|run| Span {
            extent: run.origin.extent,
            offset: run.origin.page * PAGE_SIZE,
            bytes: (run.count * PAGE_SIZE) as u32,
        });
        let (tag, key, mode, spans) = (self.next_tag, key.clone(), ReadMode::Exact, spans.collect());
        owner.lane(read.lane).submit(ReadRequest { tag, key, mode, spans, deadline })?;
        if read.lane == Lane::Bulk {
            owner.has_on_its_way(owner.bulk_reads + 1);
        }
        self.next_tag += 1;
        self.reads.insert(tag, read);
        Ok(())
    }

    /// Asks something aside, in a read of the bulk lane; it is sent with the next [`Self::poll`]. Tells whether it is asked,
    /// which it is not where too much is on its way.
    pub(super) fn ask_aside(
        &mut self,
        key: OwnerKey,
        (seed, mode, spans): (&Arc<SeedKey>, ReadMode, Vec<Span>),
        deadline: Instant,
        aside: Aside,
    ) -> bool {
        let Some(owner) = self.owners.get_mut(&key) else { return false };
        let tag = self.next_tag;
        if owner.bulk.submit(ReadRequest { tag, key: seed.clone(), mode, spans, deadline }).is_err() {
            return false;
        }
        owner.has_on_its_way(owner.bulk_reads + 1);
        self.next_tag += 1;
        self.asides.insert(tag, (key, aside));
        true
    }

    /// Tells an owner something, by the bulk lane, with the next [`Self::poll`]. Where too much is on its way it is not
    /// told.
    pub(super) fn tell(&mut self, key: OwnerKey, bytes: Vec<u8>, deadline: Instant) {
        let Some(owner) = self.owners.get_mut(&key) else { return };
        let tag = self.next_tag;
        if owner.bulk.send(MessageRequest { tag, bytes, deadline }).is_ok() {
            self.next_tag += 1;
            self.asides.insert(tag, (key, Aside::Told));
        }
    }

    /// The question that a completion answers, if it does.
    pub(super) fn ended_aside(&mut self, tag: u64) -> Option<Aside> {
        self.asides.remove(&tag).map(|(_, aside)| aside)
    }

    /// Puts slots at the end of the bulk lane's queue, so that all children have their turn.
    pub(super) fn queue(&mut self, key: OwnerKey, wish: Wish) {
        if let Some(owner) = self.owners.get_mut(&key) {
            owner.queue.push_back(wish);
        }
    }

    /// Has what an earlier child wanted of this space and source go on at this slot, where it waits in the queue: what was wanted before it
    /// comes last.
    pub(super) fn leap(
        &mut self,
        key: OwnerKey,
        (child, space, source): (u64, SpaceNumber, usize),
        slot: u64,
    ) -> Option<&mut Wish> {
        let queue = &mut self.owners.get_mut(&key)?.queue;
        let is_meant =
            |wish: &&mut Wish| wish.is_recalled && (wish.child, wish.space, wish.source) == (child, space, source);
        queue.iter_mut().filter(is_meant).find_map(|wish| wish.go_on_at(slot).then_some(wish))
    }

    /// Whether slots of this child wait in a queue.
    pub(super) fn has_wishes_of(&self, child: u64) -> bool {
        self.owners.values().any(|owner| owner.queue.iter().any(|wish| wish.child == child))
    }

    /// Whether the working set of this child's seed is still to be told.
    pub(super) fn owes_set(&self, child: u64) -> bool {
        self.asides.values().any(|(_, aside)| *aside == Aside::WorkingSet(child))
    }

    /// The next wish of the bulk lane, when another read may be on its way.
    pub(super) fn next_wish(&mut self, key: OwnerKey) -> Option<Wish> {
        let owner = self.owners.get_mut(&key)?;
        if owner.may_ask() { owner.queue.pop_front() } else { None }
    }

    /// Whether another bulk read may be on its way.
    pub(super) fn has_room(&self, key: OwnerKey) -> bool {
        self.owners.get(&key).is_some_and(Owner::may_ask)
    }

    /// Sends and receives on a lane.
    pub(super) fn poll(&mut self, key: OwnerKey, lane: Lane, now: Instant, completions: &mut Vec<Completion>) {
        let Some(owner) = self.owners.get_mut(&key) else { return };
        let before = completions.len();
        owner.lane(lane).poll(now, completions);
        if lane == Lane::Bulk {
            let is_told = |completion: &&Completion| matches!(self.asides.get(&completion.tag), Some((_, Aside::Told)));
            let told = completions[before..].iter().filter(is_told).count();
            owner.has_on_its_way(owner.bulk_reads + before + told - completions.len());
        }
    }

    /// Whether a page that somebody waits for is on its way from this owner.
    pub(super) fn is_waited_for(&self, key: OwnerKey) -> bool {
        self.reads.values().any(|read| read.owner == key && read.lane == Lane::Demand)
    }

    /// Whether a stream is on its way to another child than this one.
    pub(super) fn streams_to_others(&self, child: u64) -> bool {
        self.reads.values().any(|read| read.lane == Lane::Bulk && read.child != child)
    }

    /// Sleeps until a lane has something to say, at most for so long.
    pub(super) fn wait(&self, key: OwnerKey, lane: Lane, limit: Duration) {
        let timeout = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        if let Some(fd) = self.descriptor(key, lane) {
            // Whoever is interrupted looks sooner.
            let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout));
        }
    }

    /// Whether a stream is on its way from anybody.
    pub(super) fn is_streaming(&self) -> bool {
        self.owners.values().any(|owner| owner.bulk_reads > 0)
    }

    /// The CPU on which an owner's stream was taken from the network last, where that is known.
    pub(super) fn incoming_cpu(&self, key: OwnerKey) -> Option<u32> {
        self.owners.get(&key)?.bulk.incoming_cpu()
    }

    /// The read that a completion ends; `None` when nobody is interested any more.
    pub(super) fn ended(&mut self, tag: u64) -> Option<Read> {
        self.reads.remove(&tag)
    }

    /// Gives a reply's memory back to where it came from.
    pub(super) fn recycle(&mut self, key: OwnerKey, lane: Lane, buffer: Buffer) {
        if let Some(owner) = self.owners.get_mut(&key) {
            owner.lane(lane).recycle(buffer);
        }
    }

    /// When a lane is to be polled even if its descriptor stays silent.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let lanes = self.owners.values().flat_map(|owner| [&owner.demand, &owner.bulk]);
        lanes.filter_map(|lane| lane.next_timeout()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_goes_on_where_its_child_is() {
        let slots = VecDeque::from([7..9, 20..24, 3..5]);
        let mut wish = Wish { child: 1, space: 0, source: 0, slots, is_recalled: true };
        assert!(!wish.go_on_at(5), "it is not wanted");
        assert!(wish.go_on_at(22));
        assert_eq!(wish.slots, [22..24, 3..5, 7..9, 20..22]);
        assert!(wish.go_on_at(3));
        assert_eq!(wish.slots, [3..5, 7..9, 20..22, 22..24]);
    }
}
