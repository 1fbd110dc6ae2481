//! The table of a node's living and ended children. `retention` decides how long ended children stay listed.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use farfork_wire::ChildId;

use super::Child;
use super::retention::{CleanedUpChild, EvictionBatch, Retention};

/// The children by id. Ended children are separate: there may be many, and searches for live children skip them.
#[derive(Debug, Default)]
pub(super) struct ChildTable {
    alive: BTreeMap<ChildId, Arc<Child>>,
    ended: BTreeMap<ChildId, Arc<Child>>,
    retention: Retention,
}

/// A shared reference to the table. Lock poisoning is ignored: every change is complete when the lock is released.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedChildTable(Arc<Mutex<ChildTable>>);

/// A child that a request needs. The child is not evicted while this object exists.
#[derive(Debug)]
pub(crate) struct HeldChild {
    child: Arc<Child>,
    table: SharedChildTable,
}

impl SharedChildTable {
    pub(super) fn lock(&self) -> MutexGuard<'_, ChildTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a child listed; `None` if no child has this id.
    pub(super) fn hold(&self, id: &ChildId) -> Option<HeldChild> {
        let mut table = self.lock();
        let child = table.get(id)?;
        table.retention.hold(id);
        Some(HeldChild { child, table: self.clone() })
    }
}

impl ChildTable {
    /// Adds a child that was started or adopted.
    pub(super) fn insert(&mut self, child: Arc<Child>) {
        let children = if child.is_alive() { &mut self.alive } else { &mut self.ended };
        children.insert(child.record().id.clone(), child);
    }

    pub(super) fn get(&self, id: &ChildId) -> Option<Arc<Child>> {
        self.alive.get(id).or_else(|| self.ended.get(id)).cloned()
    }

    /// All children, in no particular order.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Child>> {
        self.alive.values().chain(self.ended.values())
    }

    pub(super) fn alive(&self) -> impl Iterator<Item = &Arc<Child>> {
        self.alive.values().filter(|child| child.is_alive())
    }

    /// Moves an ended child from the living to the ended ones, if it is still listed.
    pub(super) fn mark_ended(&mut self, id: &ChildId) {
        if let Some((id, child)) = self.alive.remove_entry(id) {
            self.ended.insert(id, child);
        }
    }

    /// Records that only files of a child are left, if it is still listed.
    pub(super) fn mark_cleaned_up(&mut self, id: &ChildId, cleaned_up: CleanedUpChild) {
        self.mark_ended(id);
        if self.ended.contains_key(id) {
            self.retention.mark_cleaned_up(id, cleaned_up);
        }
    }

    /// Selects the children to evict now, at most `count_max`, and removes their retention states.
    pub(super) fn take_surplus(&mut self, now: Instant, count_max: usize) -> EvictionBatch {
        self.retention.take_surplus(now, count_max)
    }

    /// Removes a child. Returns the child if it was listed.
    pub(super) fn remove(&mut self, id: &ChildId) -> Option<Arc<Child>> {
        self.retention.remove(id);
        self.alive.remove(id).or_else(|| self.ended.remove(id))
    }
}

impl HeldChild {
    /// Records that the child's end was reported to a client.
    pub(crate) fn mark_collected(&self) {
        self.table.lock().retention.mark_collected(&self.child.record().id);
    }

    /// Returns the child, for a caller that need not keep it listed.
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
