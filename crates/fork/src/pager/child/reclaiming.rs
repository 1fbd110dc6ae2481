//! What the stub of a child's container holds for it: filled while the child is served, and taken back where keeper, pager and
//! holder were killed together.
//!
//! The journal tells which address spaces there were and what their maps show; the queue has the userfaultfds. What the journal
//! tells of and the queue lacks was forked in the moment of the kill, after the kernel had told of it and before it was put there:
//! a process that has read zeroes since. The daemon ends such a child.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use farfork_sys::userfaultfd::{Message, Userfaultfd};
use farfork_wire::ChildId;

use super::stub_queue::StubQueue;
use super::{Child, ChildError};
use crate::pager::control::protocol::Reply;
use crate::pager::journal::replay::{self, Replayed};
use crate::pager::journal::{Journal, Snapshot, SpaceNumber, SpaceSnapshot, State};
use crate::pager::plan::MemoryPlan;
use crate::pager::server::Server;
use crate::pager::space::Space;

impl Child {
    /// Notes the queue of its stub, where one came and none is known.
    pub(in crate::pager) fn note_stub_queue(&mut self, queue: Option<OwnedFd>) {
        if let Some(queue) = queue.filter(|_| self.stub_queue.is_none()) {
            let queue = StubQueue::new(queue);
            self.journal.note_queue(queue.number());
            self.stub_queue = Some(queue);
        }
    }

    /// As [`Self::note_stub_queue`], of a queue in which nothing is yet.
    pub(super) fn begin_stub_queue(&mut self, queue: OwnedFd) -> io::Result<()> {
        if self.stub_queue.is_some() {
            return Ok(());
        }
        self.note_stub_queue(Some(queue));
        let Some(queue) = &mut self.stub_queue else { return Ok(()) };
        self.spaces.iter().try_for_each(|(number, space)| queue.add(*number, space.as_fd()))
    }

    /// Has the stub hold what was just forked, before anything else is done: the forking thread runs again.
    pub(super) fn hold_forked(&mut self, messages: &[Message]) {
        let Some(queue) = &mut self.stub_queue else { return };
        let forked = messages.iter().filter_map(|message| match message {
            Message::Fork { number } => Some(*number),
            _ => None,
        });
        for (space, number) in (self.next_space..).zip(forked) {
            if let Err(error) = queue.add_forked(space, number) {
                tracing::error!("child {}: its stub does not hold space {space}: {error}", self.id);
            }
        }
    }

    /// Takes what has ended out of the queue, where there may be much of it.
    fn rotate_stub_queue(&mut self) {
        if self.stub_queue.as_ref().is_some_and(StubQueue::is_due) {
            self.strike_from_stub_queue();
        }
    }

    /// Takes out of the queue what this pager does not serve.
    pub(super) fn strike_from_stub_queue(&mut self) {
        let Some(queue) = &mut self.stub_queue else { return };
        let (spaces, own) = (&self.spaces, self.maps.len() as SpaceNumber);
        let are_all_there = self.socket.is_none();
        // One of its own may be on its way here.
        let is_wanted = |space: SpaceNumber| spaces.contains_key(&space) || (!are_all_there && space < own);
        if let Err(error) = queue.rotate(is_wanted) {
            tracing::error!("child {}: what its stub holds cannot be sorted: {error}", self.id);
        }
    }

    /// Goes on with a child of which only its files and its stub's queue are left; gives also how many of its processes were
    /// lost.
    ///
    /// # Errors
    /// [`ChildError`].
    fn reclaim(id: ChildId, dir: &Path, queue: OwnedFd) -> Result<(Self, usize), ChildError> {
        let journal_error = |source| ChildError::Journal { dir: dir.to_owned(), source };
        let plan = MemoryPlan::read(dir)?;
        let (journal, replay) = Journal::open(dir).map_err(journal_error)?;
        let counters = replay.counters;
        let mut child = Self::of(id, dir, plan, journal);
        let Replayed { mut spaces, next_space } = replay::spaces_of(replay, &child.maps);
        let mut queue = StubQueue::new(queue);
        let held = queue.copies().map_err(journal_error)?;
        // The journal may not have heard of one that was on its way.
        for (number, map) in child.maps.iter().enumerate() {
            spaces.entry(number as SpaceNumber).or_insert_with(|| (-1, map.clone()));
        }
        let own = child.maps.len() as SpaceNumber;
        for (number, uffd) in held {
            let Ok(uffd) = Userfaultfd::from_fd(uffd) else { continue };
            let Some((_, map)) = spaces.remove(&number) else { continue };
            if !uffd.is_gone() {
                let space = Space::new(uffd, map, &child.populated, child.strategy.window_slots_max());
                child.spaces.insert(number, space);
            }
        }
        let lost = spaces.range(own..).count();
        (child.counters, child.next_space, child.missed) = (counters, next_space, 0);
        let snapshot = Snapshot {
            spaces: child
                .spaces
                .iter()
                .map(|(number, space)| SpaceSnapshot {
                    number: *number,
                    uffd: space.number(),
                    segments: space.segments().copied().collect(),
                })
                .collect(),
            next_space,
        };
        let uffd = child.spaces.get(&0).map_or(-1, Space::number);
        child.journal = Journal::create_behind(dir, State::Active { uffd }, &snapshot).map_err(journal_error)?;
        child.note_counters();
        child.journal.note_queue(queue.number());
        child.stub_queue = Some(queue);
        Ok((child, lost))
    }
}

impl Server<'_> {
    /// Takes what has ended out of the queue of a child's stub, where there may be much of it.
    pub(in crate::pager) fn rotate_stub_queue(&mut self, key: u64) {
        self.children.get_mut(&key).into_iter().for_each(|served| served.child.rotate_stub_queue());
    }

    /// Serves a child again whose pager, keeper and holder were killed together.
    pub(in crate::pager) fn reclaim(&mut self, id: ChildId, dir: &Path, queue: Option<OwnedFd>) -> Reply {
        if self.key_of(&id).is_some() {
            return Reply::Reclaimed { lost: 0 }; // Asked again, because a reply was lost.
        }
        let refused =
            |error: &dyn std::fmt::Display| Reply::Refused(format!("child {id} cannot be served again: {error}"));
        let Some(queue) = queue else { return refused(&"what its stub holds did not come along") };
        let (child, lost) = match Child::reclaim(id.clone(), dir, queue) {
            Ok(reclaimed) => reclaimed,
            Err(error) => return refused(&error),
        };
        let count = child.spaces.len();
        if let Err(error) = self.station.registry().enter(&id, dir).and_then(|()| self.take_in(child)) {
            return refused(&error);
        }
        let served = self.key_of(&id).and_then(|key| self.children.get(&key));
        served.into_iter().flat_map(|served| served.child.spaces.values()).for_each(Space::wake_all);
        tracing::warn!("child {id} is served again, {count} processes of it, {lost} lost");
        Reply::Reclaimed { lost }
    }
}
