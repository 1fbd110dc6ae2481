//! Fills the queue of a child's stub while the child is served. `PagerRequest::Reclaim` restores the child from this
//! queue after keeper, pager and holder were killed together. The journal lists the address spaces and their maps; the
//! queue has the userfaultfds. A space that only the journal lists was forked just before the kill: its fork event was
//! read, but its userfaultfd was not queued yet. Since the kill, its process has read missing pages as zeroes, so the
//! daemon ends the child.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use farfork_sys::userfaultfd::{UffdEvent, Userfaultfd};
use farfork_wire::ChildId;

use super::stub_queue::StubQueue;
use super::{Child, ChildError};
use crate::pager::address_space::AddressSpace;
use crate::pager::control::protocol::PagerReply;
use crate::pager::journal::replay::{self, ReplayResult};
use crate::pager::journal::{AddressSpaceId, AddressSpaceSnapshot, AdoptionState, Journal, JournalSnapshot};
use crate::pager::plan::MemoryPlan;
use crate::pager::server::PagerServer;

impl Child {
    /// Sets the stub's queue, if a queue has arrived and none is set.
    pub(in crate::pager) fn set_stub_queue(&mut self, queue: Option<OwnedFd>) {
        if let Some(queue) = queue.filter(|_| self.stub_queue.is_none()) {
            let queue = StubQueue::new(queue);
            self.journal.record_stub_queue(queue.raw_fd());
            self.stub_queue = Some(queue);
        }
    }

    /// Sets the stub's queue, and adds the userfaultfds of the child's address spaces to it.
    pub(super) fn fill_stub_queue(&mut self, queue: OwnedFd) -> io::Result<()> {
        if self.stub_queue.is_some() {
            return Ok(());
        }
        self.set_stub_queue(Some(queue));
        let Some(queue) = &mut self.stub_queue else { return Ok(()) };
        self.spaces.iter().try_for_each(|(number, address_space)| queue.add(*number, address_space.as_fd()))
    }

    /// Adds the userfaultfds of processes that were just forked to the stub's queue. Must be called before the messages
    /// are handled, because the forking thread continues as soon as its message was read.
    pub(super) fn queue_forked_userfaultfds(&mut self, messages: &[UffdEvent]) {
        let Some(queue) = &mut self.stub_queue else { return };
        let forked = messages.iter().filter_map(|message| match message {
            UffdEvent::Fork { number } => Some(*number),
            _ => None,
        });
        for (space, number) in (self.next_space..).zip(forked) {
            if let Err(error) = queue.add_by_number(space, number) {
                tracing::error!(
                    "child {}: the userfaultfd of address space {space} cannot be added to its stub's queue: {error}",
                    self.id
                );
            }
        }
    }

    /// Removes ended processes from the queue, if it may hold many.
    fn prune_stub_queue_if_due(&mut self) {
        if self.stub_queue.as_ref().is_some_and(StubQueue::needs_pruning) {
            self.prune_stub_queue();
        }
    }

    /// Removes from the queue the userfaultfds that this pager does not serve.
    pub(super) fn prune_stub_queue(&mut self) {
        let Some(queue) = &mut self.stub_queue else { return };
        let (spaces, own_count) = (&self.spaces, self.planned_maps.len() as AddressSpaceId);
        let have_all_arrived = self.uffd_socket.is_none();
        // The userfaultfd of one of the child's own processes may still be in the socket to this pager.
        let is_wanted = |space: AddressSpaceId| spaces.contains_key(&space) || (!have_all_arrived && space < own_count);
        if let Err(error) = queue.prune(is_wanted) {
            tracing::error!("child {}: its stub's queue cannot be pruned: {error}", self.id);
        }
    }

    /// Restores a child from its files and its stub's queue. Also returns how many of its processes were lost.
    ///
    /// # Errors
    /// [`ChildError`].
    fn reclaim(id: ChildId, dir: &Path, queue: OwnedFd) -> Result<(Self, usize), ChildError> {
        let journal_error = |source| ChildError::Journal { dir: dir.to_owned(), source };
        let plan = MemoryPlan::read(dir)?;
        let (journal, contents) = Journal::open(dir).map_err(journal_error)?;
        let counters = contents.counters;
        let mut child = Self::from_plan(id, dir, plan, journal);
        let ReplayResult { mut spaces, next_space } = replay::replay_journal(contents, &child.planned_maps);
        let mut queue = StubQueue::new(queue);
        let userfaultfds = queue.duplicate_userfaultfds().map_err(journal_error)?;
        // The journal may lack a process whose userfaultfd had not arrived at the killed pager.
        for (number, map) in child.planned_maps.iter().enumerate() {
            spaces.entry(number as AddressSpaceId).or_insert_with(|| (-1, map.clone()));
        }
        let own_count = child.planned_maps.len() as AddressSpaceId;
        for (number, uffd) in userfaultfds {
            let Ok(uffd) = Userfaultfd::from_fd(uffd) else { continue };
            let Some((_, map)) = spaces.remove(&number) else { continue };
            if !uffd.is_process_gone() {
                let address_space = AddressSpace::new(uffd, map, &child.populated, child.strategy.window_slots_max());
                child.spaces.insert(number, address_space);
            }
        }
        let lost = spaces.range(own_count..).count();
        (child.counters, child.next_space, child.awaited_processes) = (counters, next_space, 0);
        let snapshot = JournalSnapshot {
            spaces: child
                .spaces
                .iter()
                .map(|(number, address_space)| AddressSpaceSnapshot {
                    id: *number,
                    uffd: address_space.raw_fd(),
                    segments: address_space.segments().copied().collect(),
                })
                .collect(),
            next_space,
        };
        let uffd = child.spaces.get(&0).map_or(-1, AddressSpace::raw_fd);
        child.journal =
            Journal::create_with_snapshot(dir, AdoptionState::Active { uffd }, &snapshot).map_err(journal_error)?;
        child.save_counters();
        child.journal.record_stub_queue(queue.raw_fd());
        child.stub_queue = Some(queue);
        Ok((child, lost))
    }
}

impl PagerServer<'_> {
    /// Removes ended processes from the queue of a child's stub, if it may hold many.
    pub(in crate::pager) fn prune_stub_queue(&mut self, key: u64) {
        self.children.get_mut(&key).into_iter().for_each(|served| served.child.prune_stub_queue_if_due());
    }

    /// Serves a child again after its pager, keeper and holder were killed together.
    pub(in crate::pager) fn handle_reclaim(&mut self, id: ChildId, dir: &Path, queue: Option<OwnedFd>) -> PagerReply {
        if self.child_key(&id).is_some() {
            return PagerReply::Reclaimed { lost: 0 }; // The request was repeated because a reply was lost.
        }
        let refused =
            |error: &dyn std::fmt::Display| PagerReply::Refused(format!("child {id} cannot be served again: {error}"));
        let Some(queue) = queue else { return refused(&"the request has no stub queue") };
        let (child, lost) = match Child::reclaim(id.clone(), dir, queue) {
            Ok(reclaimed) => reclaimed,
            Err(error) => return refused(&error),
        };
        let count = child.spaces.len();
        if let Err(error) = self.context.registry().insert(&id, dir).and_then(|()| self.serve_child(child)) {
            return refused(&error);
        }
        let served = self.child_key(&id).and_then(|key| self.children.get(&key));
        served.into_iter().flat_map(|served| served.child.spaces.values()).for_each(AddressSpace::wake_all);
        tracing::warn!("child {id} is served again: {count} processes recovered, {lost} lost");
        PagerReply::Reclaimed { lost }
    }
}
