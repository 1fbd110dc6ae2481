//! Resolves which of the parent's last map changes a forked process has: calls `page_map::fork_order`, and applies the
//! result. Until then the process's faults wait, and nothing is fetched for it. The parent must be quiet, that is, have
//! no pending event: then all changes that the fork may have were read. Unless its other threads change the map, the
//! parent is quiet before the forked process starts. If the parent's own fork is unresolved, that fork is resolved
//! first.

use std::time::Duration;

use farfork_sys::userfaultfd::{RangeErrorCause, UffdEvent};

use super::retry_queue::RetryTask;
use crate::pager::address_space::AddressSpace;
use crate::pager::child::Child;
use crate::pager::journal::AddressSpaceId;
use crate::pager::page_map::PageMap;
use crate::pager::server::PagerServer;

/// The state of an unresolved fork.
enum ForkResolution {
    /// The map is certain.
    Resolved,
    /// A message must be read first.
    Pending,
    /// The process is gone.
    ProcessGone,
}

impl Child {
    /// Applies an event to the map of an address space, and records it in the unresolved forks of this address space.
    pub(in crate::pager) fn apply_map_event(&mut self, number: AddressSpaceId, message: &UffdEvent) {
        let Some(address_space) = self.spaces.get_mut(&number) else { return };
        address_space.apply_event(message);
        for forked in self.unresolved_forks.iter() {
            let unresolved_fork =
                self.spaces.get_mut(forked).and_then(|address_space| address_space.unresolved_fork_mut());
            if let Some(unresolved_fork) = unresolved_fork.filter(|unresolved_fork| unresolved_fork.parent == number) {
                unresolved_fork.add_event(*message);
            }
        }
    }

    /// Whether a fork of `parent` needs no resolution: all pages are installed, or the parent is a zygote, which
    /// changes no memory.
    pub(in crate::pager) fn is_fork_unambiguous(&self, parent: AddressSpaceId) -> bool {
        self.settling.is_settled() || self.zygote_copies.is_some() && parent == 0
    }

    fn resolve_fork(&mut self, number: AddressSpaceId) -> ForkResolution {
        let Some(parent) = self
            .spaces
            .get_mut(&number)
            .and_then(|address_space| address_space.unresolved_fork_mut())
            .map(|unresolved_fork| unresolved_fork.parent)
        else {
            return ForkResolution::Resolved;
        };
        if let Some(parent) = self.spaces.get_mut(&parent) {
            parent.clear_if_quiet();
        }
        // A parent that is gone counts as quiet.
        let is_quiet = |parent: &AddressSpace| parent.is_map_certain() && parent.uffd().has_no_pending_events();
        if !self.spaces.get(&parent).is_none_or(is_quiet) {
            return ForkResolution::Pending;
        }
        let Some(address_space) = self.spaces.get_mut(&number) else { return ForkResolution::ProcessGone };
        let found = match address_space.resolve_fork_map(&self.populated) {
            Err(RangeErrorCause::MapChanging) => return ForkResolution::Pending,
            Err(RangeErrorCause::ProcessGone) => return ForkResolution::ProcessGone,
            // No known kernel returns another error. If one does, keep the likeliest map.
            Err(_) => None,
            Ok(found) => found,
        };
        address_space.accept_map();
        self.unresolved_forks.remove(&number);
        if let Some(map) = found {
            tracing::info!(
                "child {}: a fork overtook a change of the memory map: space {number} is corrected",
                self.id
            );
            self.correct_forked_map(number, map);
            self.compact_journal();
        }
        ForkResolution::Resolved
    }

    /// Corrects the map of a forked process, starting with `map` at its fork, and the maps of the process's own
    /// unresolved forks.
    fn correct_forked_map(&mut self, number: AddressSpaceId, map: PageMap) {
        let mut forked_maps = Vec::new();
        for forked in self.unresolved_forks.clone() {
            if let Some(unresolved_fork) =
                self.spaces.get_mut(&forked).and_then(|address_space| address_space.unresolved_fork_mut())
                && unresolved_fork.parent == number
            {
                let mut map = map.clone();
                crate::pager::page_map::fork_order::MapChange::apply_all(&mut unresolved_fork.changes_before, &mut map);
                forked_maps.push((forked, map));
            }
        }
        if let Some(address_space) = self.spaces.get_mut(&number) {
            address_space.rebase_on_map(map);
        }
        forked_maps.into_iter().for_each(|(forked, map)| self.correct_forked_map(forked, map));
    }
}

impl PagerServer<'_> {
    /// Resolves which map changes a forked process has. If a message must be read first, queues a retry.
    pub(in crate::pager) fn resolve_fork(&mut self, key: u64, space: AddressSpaceId) {
        let Some(served) = self.children.get_mut(&key) else { return };
        match served.child.resolve_fork(space) {
            ForkResolution::Resolved => {}
            ForkResolution::Pending => {
                self.retries.push(RetryTask::ResolveFork { child: key, space }, self.now, Duration::ZERO, 0)
            }
            ForkResolution::ProcessGone => self.close_space(key, space),
        }
    }
}
