//! Forked processes of which it is not known yet what they have of their parent's last changes (`fork_order`): when the kernel is
//! asked, and what follows from its answer. Until then their faults wait, and nothing is fetched for them.
//!
//! The parent has to be quiet, so that all changes were heard that the fork may have: it is, unless others of its threads change
//! the map as well, as soon as the thread that forked goes on, which is before the forked process begins. Who was forked by somebody in
//! doubt waits for that one.

use std::time::Duration;

use farfork_sys::userfaultfd::{Cause, Message};

use super::retries::Task;
use crate::pager::child::Child;
use crate::pager::journal::SpaceNumber;
use crate::pager::page_map::PageMap;
use crate::pager::server::Server;
use crate::pager::space::Space;

/// How a doubt stands.
enum Outcome {
    /// There is none.
    Known,
    /// Something is to be heard first.
    Later,
    /// The process is gone.
    Gone,
}

impl Child {
    /// Follows what the kernel told of a space.
    pub(in crate::pager) fn follow(&mut self, number: SpaceNumber, message: &Message) {
        let Some(space) = self.spaces.get_mut(&number) else { return };
        space.follow(message);
        for forked in self.doubted.iter() {
            let doubt = self.spaces.get_mut(forked).and_then(|space| space.doubted());
            if let Some(doubt) = doubt.filter(|doubt| doubt.parent == number) {
                doubt.heard(*message);
            }
        }
    }

    /// Whether a process that forks changes nothing meanwhile that matters: one that has all of its memory, or a zygote.
    pub(in crate::pager) fn changes_nothing(&self, parent: SpaceNumber) -> bool {
        self.settling.is_settled() || self.zygote.is_some() && parent == 0
    }

    fn settle_doubt(&mut self, number: SpaceNumber) -> Outcome {
        let Some(parent) = self.spaces.get_mut(&number).and_then(|space| space.doubted()).map(|doubt| doubt.parent)
        else {
            return Outcome::Known;
        };
        if let Some(parent) = self.spaces.get_mut(&parent) {
            parent.forget_what_is_settled();
        }
        // Who is gone has nothing to tell any more.
        let is_heard = |parent: &Space| parent.is_known() && parent.uffd().is_quiet();
        if !self.spaces.get(&parent).is_none_or(is_heard) {
            return Outcome::Later;
        }
        let Some(space) = self.spaces.get_mut(&number) else { return Outcome::Gone };
        let found = match space.ask_what_it_has(&self.populated) {
            Err(Cause::Changing) => return Outcome::Later,
            Err(Cause::Gone) => return Outcome::Gone,
            // No kernel answers otherwise; then it is as it is most likely.
            Err(_) => None,
            Ok(found) => found,
        };
        space.believe();
        self.doubted.remove(&number);
        if let Some(map) = found {
            tracing::info!(
                "child {}: a fork overtook a change of the memory map: space {number} is corrected",
                self.id
            );
            self.correct(number, map);
            self.restart_journal();
        }
        Outcome::Known
    }

    /// A process was forked with another map than was thought, and so was what it has forked meanwhile.
    fn correct(&mut self, number: SpaceNumber, map: PageMap) {
        let mut forks = Vec::new();
        for forked in self.doubted.clone() {
            if let Some(doubt) = self.spaces.get_mut(&forked).and_then(|space| space.doubted())
                && doubt.parent == number
            {
                let mut map = map.clone();
                crate::pager::page_map::fork_order::Change::make_all(&mut doubt.before, &mut map);
                forks.push((forked, map));
            }
        }
        if let Some(space) = self.spaces.get_mut(&number) {
            space.was_forked_with(map);
        }
        forks.into_iter().for_each(|(forked, map)| self.correct(forked, map));
    }
}

impl Server<'_> {
    /// Finds out what a forked process has, now or as soon as may be.
    pub(in crate::pager) fn settle_doubt(&mut self, key: u64, space: SpaceNumber) {
        let Some(served) = self.children.get_mut(&key) else { return };
        match served.child.settle_doubt(space) {
            Outcome::Known => {}
            Outcome::Later => self.retries.push(Task::Doubt { child: key, space }, self.now, Duration::ZERO, 0),
            Outcome::Gone => self.close_space(key, space),
        }
    }
}
