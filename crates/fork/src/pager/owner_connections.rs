//! Connections to the owners of pages: two for each owner, shared by all children, and the reads in flight on them.
//! Pages for which a thread waits use one connection, the *demand lane*. Pages that may be needed soon use the other,
//! the *bulk lane*, and so do not delay waiting threads. Bulk reads wait in a queue, and few of them are in flight at a
//! time. Connections stay open for `OWNER_IDLE_TIMEOUT` after their last user, for the next child of any seed of the
//! owner.

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

use super::journal::AddressSpaceId;
use super::plan::slot_index::SlotIndex;
use super::working_set::PrewarmBatch;

/// Slots per bulk read. Larger reads are not cheaper per page, and delay a thread that waits for one of the pages.
pub(super) const BULK_SLOTS: u64 = 32;

/// Maximum number of bulk reads in flight to one owner, so that the next reads are requested while others arrive. If
/// this many completed reads wait to be installed, no more bulk reads are requested.
pub(super) const BULK_READS_MAX: usize = 4;

/// When at most this many bulk reads are in flight, more reads are submitted, up to [`BULK_READS_MAX`]. They are sent
/// in one message: a message costs as much as five pages.
const BULK_READS_LOW: usize = 2;

/// How long a pager and its node keep an unused connection: as long as a user may think before the next fork.
pub(crate) const OWNER_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of unused owners whose connections are kept. The owner that was unused longest is closed first. Each
/// owner has a few descriptors.
const IDLE_OWNERS_MAX: usize = 8;

/// One of the two connections to an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Lane {
    /// The demand lane, for pages for which a thread waits.
    Demand,
    /// The bulk lane, for pages that may be needed soon, and for auxiliary requests.
    Bulk,
}

/// The key of an owner in [`OwnerConnections`].
pub(super) type OwnerKey = u64;

/// The pages of an address space that have one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AddressSpaceSource {
    /// The child.
    pub(super) child: u64,
    /// The address space.
    pub(super) space: AddressSpaceId,
    /// Index of the source in the child's plan.
    pub(super) source: usize,
}

/// A read from a seed that does not fetch a child's pages.
#[derive(Debug)]
pub(super) struct SeedRead<'a> {
    /// Id and token of the seed.
    pub(super) key: &'a Arc<SeedKey>,
    /// How a range that reaches beyond the end of its extent is handled.
    pub(super) mode: ReadMode,
    /// The ranges to read.
    pub(super) spans: Vec<Span>,
}

/// Slots of an address space to prefetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PrefetchRequest {
    /// The address space, and this owner's source. Slots of other sources are skipped.
    pub(super) target: AddressSpaceSource,
    /// The slots, in the order in which they are fetched.
    pub(super) slots: VecDeque<Range<u64>>,
    /// Whether the slots are from the working set.
    pub(super) is_from_set: bool,
}

impl PrefetchRequest {
    /// Moves a slot to the front, and the slots before it to the end. Returns whether the slot is part of the request.
    fn rotate_to(&mut self, slot: u64) -> bool {
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

/// A request for something other than a child's pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AuxiliaryRequest {
    /// Checks whether the owner has this seed.
    SeedExists(SeedId),
    /// Reads the working set of this child's seed.
    ChildWorkingSet(u64),
    /// Reads the working set of this seed, to prewarm the cache.
    PrewarmWorkingSet(SeedId),
    /// Reads pages of this seed's working set, to prewarm the cache.
    PrewarmPages(SeedId, PrewarmBatch),
    /// Sends a message. The reply has no data.
    Message,
}

/// A read in flight.
#[derive(Debug, Clone)]
pub(super) struct PageRead {
    /// The address space, and the source of the slots.
    pub(super) target: AddressSpaceSource,
    /// The slots, in the order of the reply's bytes.
    pub(super) slots: Vec<Range<u64>>,
    /// The owner.
    pub(super) owner: OwnerKey,
    /// The lane.
    pub(super) lane: Lane,
    /// When the read was submitted.
    pub(super) submitted_at: Instant,
}

impl PageRead {
    /// Whether the read is more than a demand read of a single page.
    pub(super) fn is_speculative(&self) -> bool {
        self.lane == Lane::Bulk || self.slots.iter().map(|slots| slots.end - slots.start).sum::<u64>() > 1
    }
}

struct OwnerConnection {
    address: Address,
    node: NodeName,
    demand: Box<dyn Connection>,
    bulk: Box<dyn Connection>,
    bulk_reads: usize,
    /// Whether more bulk reads are submitted until [`BULK_READS_MAX`] are in flight.
    is_refilling: bool,
    queue: VecDeque<PrefetchRequest>,
    users: usize,
    /// When the last user was detached.
    idle_since: Option<Instant>,
}

impl OwnerConnection {
    /// Whether another bulk read may be submitted.
    fn can_submit_bulk(&self) -> bool {
        self.bulk_reads <= BULK_READS_LOW || self.is_refilling && self.bulk_reads < BULK_READS_MAX
    }

    /// Sets how many bulk reads are in flight.
    fn set_bulk_reads(&mut self, bulk_reads: usize) {
        self.bulk_reads = bulk_reads;
        if bulk_reads <= BULK_READS_LOW {
            self.is_refilling = true;
        } else if bulk_reads >= BULK_READS_MAX {
            self.is_refilling = false;
        }
    }

    fn connection_mut(&mut self, lane: Lane) -> &mut Box<dyn Connection> {
        match lane {
            Lane::Demand => &mut self.demand,
            Lane::Bulk => &mut self.bulk,
        }
    }
}

/// Opens a connection to an owner, without waiting for it.
pub(super) type OwnerConnector = Box<dyn Fn(&Address, &NodeName) -> io::Result<Box<dyn Connection>>>;

/// The connections to all owners, and all requests in flight.
pub(super) struct OwnerConnections {
    connect: OwnerConnector,
    owners: BTreeMap<OwnerKey, OwnerConnection>,
    reads: HashMap<u64, PageRead>,
    auxiliary_requests: HashMap<u64, (OwnerKey, AuxiliaryRequest)>,
    next_tag: u64,
    next_key: OwnerKey,
}

impl OwnerConnections {
    /// Creates the value without owners. `connect` opens connections to owners.
    pub(super) fn new(connect: OwnerConnector) -> Self {
        Self {
            connect,
            owners: BTreeMap::new(),
            reads: HashMap::new(),
            auxiliary_requests: HashMap::new(),
            next_tag: 0,
            next_key: 0,
        }
    }

    /// Adds a user to the owner at this address. Returns the owner's key, and whether the owner is new: then its
    /// connections must be watched.
    ///
    /// # Errors
    /// As [`OwnerConnector`].
    pub(super) fn attach(&mut self, address: &Address, node: &NodeName) -> io::Result<(OwnerKey, bool)> {
        let is_it = |owner: &OwnerConnection| owner.address == *address && owner.node == *node;
        if let Some((key, owner)) = self.owners.iter_mut().find(|(_, owner)| is_it(owner)) {
            owner.users += 1;
            owner.idle_since = None;
            return Ok((*key, false));
        }
        let (demand, bulk) = ((self.connect)(address, node)?, (self.connect)(address, node)?);
        let key = self.next_key;
        self.next_key += 1;
        let (address, node, queue) = (address.clone(), node.clone(), VecDeque::new());
        let owner = OwnerConnection {
            address,
            node,
            demand,
            bulk,
            bulk_reads: 0,
            is_refilling: true,
            queue,
            users: 1,
            idle_since: None,
        };
        self.owners.insert(key, owner);
        Ok((key, true))
    }

    /// Removes a user of an owner.
    pub(super) fn detach(&mut self, key: OwnerKey, now: Instant) {
        let Some(owner) = self.owners.get_mut(&key) else { return };
        owner.users -= 1;
        if owner.users == 0 {
            owner.idle_since = Some(now);
            owner.queue.clear();
        }
    }

    /// Closes the connections of owners that were unused for [`OWNER_IDLE_TIMEOUT`]. If more than [`IDLE_OWNERS_MAX`]
    /// owners are unused, also closes the connections of those that were unused longest. Returns the keys of these
    /// owners.
    pub(super) fn close_idle(&mut self, now: Instant) -> Vec<OwnerKey> {
        let idle = self.owners.iter().filter_map(|(key, owner)| Some((owner.idle_since?, *key)));
        let mut idle: Vec<(Instant, OwnerKey)> = idle.collect();
        idle.sort_unstable();
        let too_many = idle.len().saturating_sub(IDLE_OWNERS_MAX);
        let is_over =
            |at: usize, left: Instant| at < too_many || now.saturating_duration_since(left) >= OWNER_IDLE_TIMEOUT;
        let over = idle.iter().enumerate().filter(|(at, (left, _))| is_over(*at, *left));
        let closed: Vec<OwnerKey> = over.map(|(_, (_, key))| *key).collect();
        self.owners.retain(|key, _| !closed.contains(key));
        self.reads.retain(|_, read| !closed.contains(&read.owner));
        self.auxiliary_requests.retain(|_, (owner, _)| !closed.contains(owner));
        closed
    }

    /// The descriptor that is readable when a lane has received something.
    pub(super) fn descriptor(&self, key: OwnerKey, lane: Lane) -> Option<BorrowedFd<'_>> {
        let owner = self.owners.get(&key)?;
        Some(match lane {
            Lane::Demand => owner.demand.poll_fd()?,
            Lane::Bulk => owner.bulk.poll_fd()?,
        })
    }

    /// The keys of all owners.
    pub(super) fn keys(&self) -> Vec<OwnerKey> {
        self.owners.keys().copied().collect()
    }

    /// Queues a request for slots. The next [`Self::poll`] sends it.
    ///
    /// # Errors
    /// [`SubmitError::Full`]: too many requests are in flight.
    pub(super) fn submit_read(
        &mut self,
        read: PageRead,
        key: &Arc<SeedKey>,
        populated: &SlotIndex,
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
        owner.connection_mut(read.lane).submit_read(ReadRequest { tag, key, mode, spans, deadline })?;
        if read.lane == Lane::Bulk {
            owner.set_bulk_reads(owner.bulk_reads + 1);
        }
        self.next_tag += 1;
        self.reads.insert(tag, read);
        Ok(())
    }

    /// Queues an auxiliary request as a read of the bulk lane. The next [`Self::poll`] sends it. Returns false if too
    /// many requests are in flight.
    pub(super) fn submit_auxiliary(
        &mut self,
        key: OwnerKey,
        read: SeedRead<'_>,
        deadline: Instant,
        auxiliary_request: AuxiliaryRequest,
    ) -> bool {
        let Some(owner) = self.owners.get_mut(&key) else { return false };
        let SeedRead { key: seed, mode, spans } = read;
        let tag = self.next_tag;
        if owner.bulk.submit_read(ReadRequest { tag, key: seed.clone(), mode, spans, deadline }).is_err() {
            return false;
        }
        owner.set_bulk_reads(owner.bulk_reads + 1);
        self.next_tag += 1;
        self.auxiliary_requests.insert(tag, (key, auxiliary_request));
        true
    }

    /// Queues a message to an owner on the bulk lane. The next [`Self::poll`] sends it. Drops the message if too many
    /// requests are in flight.
    pub(super) fn send_message(&mut self, key: OwnerKey, bytes: Vec<u8>, deadline: Instant) {
        let Some(owner) = self.owners.get_mut(&key) else { return };
        let tag = self.next_tag;
        if owner.bulk.submit_message(MessageRequest { tag, bytes, deadline }).is_ok() {
            self.next_tag += 1;
            self.auxiliary_requests.insert(tag, (key, AuxiliaryRequest::Message));
        }
    }

    /// Removes and returns the auxiliary request with this tag, if there is one.
    pub(super) fn take_auxiliary(&mut self, tag: u64) -> Option<AuxiliaryRequest> {
        self.auxiliary_requests.remove(&tag).map(|(_, auxiliary_request)| auxiliary_request)
    }

    /// Appends slots to the bulk lane's queue, so that all children get their turn.
    pub(super) fn queue_prefetch(&mut self, key: OwnerKey, prefetch_request: PrefetchRequest) {
        if let Some(owner) = self.owners.get_mut(&key) {
            owner.queue.push_back(prefetch_request);
        }
    }

    /// Moves a slot to the front of the queued working set of this address space and source, and the slots before it to
    /// the end. Returns the queued request, or `None` if the slot is not queued.
    pub(super) fn advance_prefetch(
        &mut self,
        key: OwnerKey,
        target: AddressSpaceSource,
        slot: u64,
    ) -> Option<&mut PrefetchRequest> {
        let queue = &mut self.owners.get_mut(&key)?.queue;
        let is_meant =
            |prefetch_request: &&mut PrefetchRequest| prefetch_request.is_from_set && prefetch_request.target == target;
        queue
            .iter_mut()
            .filter(is_meant)
            .find_map(|prefetch_request| prefetch_request.rotate_to(slot).then_some(prefetch_request))
    }

    /// Whether slots of this child are queued.
    pub(super) fn has_queued_prefetch(&self, child: u64) -> bool {
        self.owners
            .values()
            .any(|owner| owner.queue.iter().any(|prefetch_request| prefetch_request.target.child == child))
    }

    /// Whether the working set of this child's seed was requested and has not arrived yet.
    pub(super) fn is_awaiting_set(&self, child: u64) -> bool {
        self.auxiliary_requests
            .values()
            .any(|(_, auxiliary_request)| *auxiliary_request == AuxiliaryRequest::ChildWorkingSet(child))
    }

    /// Takes the next queued request of the bulk lane, if another bulk read may be submitted.
    pub(super) fn next_prefetch(&mut self, key: OwnerKey) -> Option<PrefetchRequest> {
        let owner = self.owners.get_mut(&key)?;
        if owner.can_submit_bulk() { owner.queue.pop_front() } else { None }
    }

    /// Whether another bulk read may be submitted.
    pub(super) fn has_bulk_capacity(&self, key: OwnerKey) -> bool {
        self.owners.get(&key).is_some_and(OwnerConnection::can_submit_bulk)
    }

    /// Sends and receives on a lane. Appends the completed requests to `completions`.
    pub(super) fn poll(&mut self, key: OwnerKey, lane: Lane, now: Instant, completions: &mut Vec<Completion>) {
        let Some(owner) = self.owners.get_mut(&key) else { return };
        let before = completions.len();
        owner.connection_mut(lane).poll(now, completions);
        if lane == Lane::Bulk {
            let is_message = |completion: &&Completion| {
                matches!(self.auxiliary_requests.get(&completion.tag), Some((_, AuxiliaryRequest::Message)))
            };
            let message_count = completions[before..].iter().filter(is_message).count();
            owner.set_bulk_reads(owner.bulk_reads + before + message_count - completions.len());
        }
    }

    /// Whether a page that a thread waits for is in flight from this owner.
    pub(super) fn has_demand_read(&self, key: OwnerKey) -> bool {
        self.reads.values().any(|read| read.owner == key && read.lane == Lane::Demand)
    }

    /// Whether bulk reads for other children than this one are in flight.
    pub(super) fn has_bulk_read_for_others(&self, child: u64) -> bool {
        self.reads.values().any(|read| read.lane == Lane::Bulk && read.target.child != child)
    }

    /// Sleeps until a lane has received something, at most for `limit`.
    pub(super) fn wait_readable(&self, key: OwnerKey, lane: Lane, limit: Duration) {
        let timeout = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        if let Some(fd) = self.descriptor(key, lane) {
            // If a signal interrupts poll(2), the caller polls the lane sooner.
            let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout));
        }
    }

    /// Whether bulk reads are in flight from any owner.
    pub(super) fn has_bulk_reads(&self) -> bool {
        self.owners.values().any(|owner| owner.bulk_reads > 0)
    }

    /// Returns the CPU on which the last packet of an owner's bulk lane arrived, if known.
    pub(super) fn incoming_cpu(&self, key: OwnerKey) -> Option<u32> {
        self.owners.get(&key)?.bulk.incoming_cpu()
    }

    /// Removes and returns the read with this tag; `None` if its owner's connection was closed.
    pub(super) fn take_read(&mut self, tag: u64) -> Option<PageRead> {
        self.reads.remove(&tag)
    }

    /// Returns a reply's buffer to its connection.
    pub(super) fn recycle(&mut self, key: OwnerKey, lane: Lane, buffer: Buffer) {
        if let Some(owner) = self.owners.get_mut(&key) {
            owner.connection_mut(lane).recycle_buffer(buffer);
        }
    }

    /// Returns when a lane must be polled even if its descriptor is not readable.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let lanes = self.owners.values().flat_map(|owner| [&owner.demand, &owner.bulk]);
        lanes.filter_map(|lane| lane.next_timeout()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefetch_continues_at_the_page_that_faulted() {
        let slots = VecDeque::from([7..9, 20..24, 3..5]);
        let target = AddressSpaceSource { child: 1, space: 0, source: 0 };
        let mut prefetch_request = PrefetchRequest { target, slots, is_from_set: true };
        assert!(!prefetch_request.rotate_to(5), "the slot is not in the request");
        assert!(prefetch_request.rotate_to(22));
        assert_eq!(prefetch_request.slots, [22..24, 3..5, 7..9, 20..22]);
        assert!(prefetch_request.rotate_to(3));
        assert_eq!(prefetch_request.slots, [3..5, 7..9, 20..22, 22..24]);
    }
}
