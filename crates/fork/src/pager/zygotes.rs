//! Zygotes: served like children, but that what they fork are children of their own.
//!
//! ```text
//!  zygote's space ── fork event ─▶ a space of the zygote's, served at once ── Transfer ─▶ the child's own space 0
//!                                    └ what that has forked meanwhile ─────────────────▶ 1, 2, …
//! ```
//!
//! A fork event does not say of which child it is. Copies are made one at a time, and each is transferred before the next:
//! all spaces of a zygote but its own are then the newest copy's. Until it is transferred, a copy is served as a process of
//! the zygote's: from the same seed, by the same map.
//!
//! A copy's journal begins with a snapshot; when that is written, the zygote's says that the space is gone. A pager that is
//! killed in between leaves it in both: it is the child's.
//!
//! A zygote touches nothing itself. It is given the seed's working set when it is adopted, and looks for more of it
//! while copies are made; what arrives is there for later copies. What its copies touch besides is told as any child's.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use farfork_wire::ChildId;

use super::child::{Child, ChildError};
use super::journal::{Journal, Snapshot, SpaceNumber, SpaceSnapshot, State};
use super::plan::MemoryPlan;
use super::protocol::Reply;
use super::server::Server;
use super::space::Space;
use super::strategy::Paging;
use super::watch::Source;
use super::working_set::Trace;

/// Most pages of a zygote, 16 MiB: they are small ones, and each costs a copy 20 ns of its fork.
const ZYGOTE_PAGES_MAX: u64 = 4096;

/// What a zygote has forked.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Brood {
    /// The space of the newest copy, where this pager has heard of it.
    pub(super) copy: Option<SpaceNumber>,
    /// Copies were made since it was last given a working set.
    is_in_use: bool,
}

impl Child {
    /// How many more pages a zygote may have.
    pub(super) fn zygote_room(&self) -> u64 {
        let slots = self.populated.slots();
        let held = self.spaces.get(&0).map_or(0, |space| slots - space.missing_slots(slots));
        ZYGOTE_PAGES_MAX.saturating_sub(held)
    }

    /// A child that is this zygote's newest copy, without its spaces yet.
    fn copy(&self, id: &ChildId, dir: &Path) -> Result<Self, String> {
        let refuse = |error: ChildError| error.to_string();
        let plan = MemoryPlan::read(dir).map_err(|error| refuse(error.into()))?;
        let first = self.copy_number();
        let spaces = self.spaces.range(first..).map(|(number, space)| SpaceSnapshot {
            number: number - first,
            uffd: space.number(),
            segments: space.segments().copied().collect(),
        });
        let snapshot = Snapshot { spaces: spaces.collect(), next_space: self.next_space.max(first + 1) - first };
        let uffd = self.spaces.get(&first).map_or(-1, Space::number);
        let journal = Journal::create_behind(dir, State::Active { uffd }, &snapshot);
        let journal = journal.map_err(|source| refuse(ChildError::Journal { dir: dir.to_owned(), source }))?;
        let mut child = Self::of(id.clone(), dir, plan, journal);
        let is_same = child.populated == self.populated
            && child.sources.iter().map(|source| &source.key).eq(self.sources.iter().map(|source| &source.key));
        if !is_same {
            return Err("its memory plan is not its zygote's".to_owned());
        }
        child.miss_one();
        child.next_space = snapshot.next_space;
        if child.strategy.paging != Paging::Eager && !child.strategy.first {
            child.trace = Trace::new(child.populated.slots());
        }
        Ok(child)
    }

    /// The number of its newest copy. A successor has not heard of it: it is the oldest of those that are there then.
    fn copy_number(&self) -> SpaceNumber {
        let oldest = self.spaces.range(1..).next().map(|(number, _)| *number);
        self.zygote.and_then(|brood| brood.copy).or(oldest).unwrap_or(1)
    }
}

impl Server<'_> {
    /// Serves the newest copy of a zygote as a child.
    pub(super) fn transfer(
        &mut self,
        zygote: &ChildId,
        (id, dir, pid): (&ChildId, &Path, i32),
        keep: Option<OwnedFd>,
    ) -> Reply {
        // Else it is asked again, because a reply was lost.
        if self.key_of(id).is_none()
            && let Err(reason) = self.take_copy(zygote, (id, dir, pid))
        {
            return Reply::Refused(format!("child {id} is not served: {reason}"));
        }
        let served = self.key_of(id).and_then(|key| self.children.get(&key));
        let kept = match (served.and_then(|served| served.child.spaces.get(&0)), keep) {
            (Some(space), Some(keep)) => farfork_sys::fdpass::send(keep.as_fd(), &[0; 4], &[space.as_fd()]),
            // It has ended already.
            _ => Ok(()),
        };
        match kept {
            Ok(()) => Reply::Done,
            Err(error) => Reply::Refused(format!("child {id}: nobody keeps its userfaultfd: {error}")),
        }
    }

    fn take_copy(&mut self, zygote: &ChildId, (id, dir, pid): (&ChildId, &Path, i32)) -> Result<(), String> {
        let key = self.key_of(zygote).ok_or_else(|| format!("its zygote {zygote} is not known to the pager"))?;
        let Some(served) = self.children.get(&key) else { return Err("its zygote is gone".to_owned()) };
        if let Some(lost) = &served.child.lost {
            return Err(lost.trim_end().to_owned());
        }
        let mut child = served.child.copy(id, dir)?;
        child.pid = Some(pid);
        let owners = self.attach_all(&child.sources).map_err(|error| error.to_string())?;
        if let Err(error) = self.station.registry().enter(id, dir) {
            self.detach(owners);
            return Err(error.to_string());
        }
        self.move_spaces(key, &mut child);
        self.seat(child, owners).map_err(|error| error.to_string())?;
        let moved = self.key_of(id).and_then(|key| self.children.get(&key));
        // What was on its way to the zygote's space never comes.
        moved.into_iter().flat_map(|served| served.child.spaces.values()).for_each(Space::wake_all);
        Ok(())
    }

    fn move_spaces(&mut self, key: u64, child: &mut Child) {
        let Some(served) = self.children.get_mut(&key) else { return };
        let zygote = &mut served.child;
        let first = zygote.copy_number();
        for (number, space) in zygote.spaces.split_off(&first.max(1)) {
            self.watch.remove(Source::Space(key, number), &space);
            zygote.journal.close_space(number);
            child.spaces.insert(number - first, space.moved(child.populated.slots()));
        }
        zygote.zygote = Some(Brood { copy: None, is_in_use: true });
    }

    /// Gives zygotes of which copies were made what has come to their seeds' working sets meanwhile.
    pub(super) fn fill_zygotes(&mut self) {
        let mut due = Vec::new();
        for child in self.children.values_mut().map(|served| &mut served.child) {
            let was_used = child.zygote.as_mut().is_some_and(|brood| std::mem::take(&mut brood.is_in_use));
            if was_used && child.zygote_room() > 0 {
                due.push(child.id.clone());
            }
        }
        due.iter().for_each(|zygote| self.ask_for_set(zygote));
    }
}

/// What both a zygote and a child have, when a pager was killed while it was transferred, is the child's.
pub(super) fn leave_to_children(children: &mut [Child]) {
    let of_children = children.iter().filter(|child| child.zygote.is_none());
    let theirs: BTreeSet<i32> = of_children.flat_map(|child| child.spaces.values().map(Space::number)).collect();
    for zygote in children.iter_mut().filter(|child| child.zygote.is_some()) {
        let moved = zygote.spaces.iter().filter(|(_, space)| theirs.contains(&space.number()));
        let moved: Vec<SpaceNumber> = moved.map(|(number, _)| *number).collect();
        for number in moved {
            zygote.spaces.remove(&number);
            zygote.journal.close_space(number);
        }
    }
}
