//! The table of a node's children: living ones and ended ones. `retention` decides how long ended ones stay listed.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use farfork_wire::ChildId;

use super::Child;
use super::retention::{CleanedUpChild, EvictionBatch, Retention};

/// The children by id. Those that have ended are apart: they may be many, and nobody who looks for the living goes through them.
#[derive(Debug, Default)]
pub(super) struct ChildTable {
    alive: BTreeMap<ChildId, Arc<Child>>,
    ended: BTreeMap<ChildId, Arc<Child>>,
    retention: Retention,
}

/// The register as those share it that change it. Every change is complete under its lock.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedChildTable(Arc<Mutex<ChildTable>>);

/// A child that a request needs: it is not forgotten as long as this lasts.
#[derive(Debug)]
pub(crate) struct HeldChild {
    child: Arc<Child>,
    table: SharedChildTable,
}

impl SharedChildTable {
    pub(super) fn lock(&self) -> MutexGuard<'_, ChildTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a child listed; none if there is none of that id.
    pub(super) fn hold(&self, id: &ChildId) -> Option<HeldChild> {
        let mut table = self.lock();
        let child = table.get(id)?;
        table.retention.hold(id);
        Some(HeldChild { child, table: self.clone() })
    }
}

impl ChildTable {
    /// A child that was started, or found.
    pub(super) fn insert(&mut self, child: Arc<Child>) {
        let children = if child.is_alive() { &mut self.alive } else { &mut self.ended };
        children.insert(child.record().id.clone(), child);
    }

    pub(super) fn get(&self, id: &ChildId) -> Option<Arc<Child>> {
        self.alive.get(id).or_else(|| self.ended.get(id)).cloned()
    }

    /// In no order.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Child>> {
        self.alive.values().chain(self.ended.values())
    }

    pub(super) fn alive(&self) -> impl Iterator<Item = &Arc<Child>> {
        self.alive.values().filter(|child| child.is_alive())
    }

    /// The child has ended, if it is still known.
    pub(super) fn mark_ended(&mut self, id: &ChildId) {
        if let Some((id, child)) = self.alive.remove_entry(id) {
            self.ended.insert(id, child);
        }
    }

    /// Nothing is left of a child but its files, if it is still known.
    pub(super) fn mark_cleaned_up(&mut self, id: &ChildId, cleaned_up: CleanedUpChild) {
        self.mark_ended(id);
        if self.ended.contains_key(id) {
            self.retention.mark_cleaned_up(id, cleaned_up);
        }
    }

    /// Ended children to be forgotten at once: what they were is counted no more.
    pub(super) fn take_surplus(&mut self, now: Instant, count_max: usize) -> EvictionBatch {
        self.retention.take_surplus(now, count_max)
    }

    /// Gives the child if it was known.
    pub(super) fn remove(&mut self, id: &ChildId) -> Option<Arc<Child>> {
        self.retention.remove(id);
        self.alive.remove(id).or_else(|| self.ended.remove(id))
    }
}

impl HeldChild {
    /// Its end has been told to who asked.
    pub(crate) fn mark_collected(&self) {
        self.table.lock().retention.mark_collected(&self.child.record().id);
    }

    /// The child, for who does not need it kept.
    pub(crate) fn child(&self) -> &Arc<Child> {
        &self.child
    }
}

impl Deref for HeldChild {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl Drop for HeldChild {
    fn drop(&mut self) {
        self.table.lock().retention.release(&self.child.record().id);
    }
}
