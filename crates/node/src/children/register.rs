//! The table of a node's children: those that live, those that have ended, and how long these stay listed (`retention`).

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use farfork_wire::ChildId;

use super::Child;
use super::retention::{Retention, SettledChild, Surplus};

/// The children by id. Those that have ended are apart: they may be many, and nobody who looks for the living goes through them.
#[derive(Debug, Default)]
pub(super) struct Register {
    living: BTreeMap<ChildId, Arc<Child>>,
    ended: BTreeMap<ChildId, Arc<Child>>,
    retention: Retention,
}

/// The register as those share it that change it. Every change is complete under its lock.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedRegister(Arc<Mutex<Register>>);

/// A child that a request needs: it is not forgotten as long as this lasts.
#[derive(Debug)]
pub(crate) struct HeldChild {
    child: Arc<Child>,
    register: SharedRegister,
}

impl SharedRegister {
    pub(super) fn lock(&self) -> MutexGuard<'_, Register> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a child listed; none if there is none of that id.
    pub(super) fn hold(&self, id: &ChildId) -> Option<HeldChild> {
        let mut register = self.lock();
        let child = register.get(id)?;
        register.retention.hold(id);
        Some(HeldChild { child, register: self.clone() })
    }
}

impl Register {
    /// A child that was started, or found.
    pub(super) fn insert(&mut self, child: Arc<Child>) {
        let children = if child.lives() { &mut self.living } else { &mut self.ended };
        children.insert(child.record().id.clone(), child);
    }

    pub(super) fn get(&self, id: &ChildId) -> Option<Arc<Child>> {
        self.living.get(id).or_else(|| self.ended.get(id)).cloned()
    }

    /// In no order.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Child>> {
        self.living.values().chain(self.ended.values())
    }

    pub(super) fn living(&self) -> impl Iterator<Item = &Arc<Child>> {
        self.living.values().filter(|child| child.lives())
    }

    /// The child has ended, if it is still known.
    pub(super) fn end(&mut self, id: &ChildId) {
        if let Some((id, child)) = self.living.remove_entry(id) {
            self.ended.insert(id, child);
        }
    }

    /// Nothing is left of a child but its files, if it is still known.
    pub(super) fn settle(&mut self, id: &ChildId, settled: SettledChild) {
        self.end(id);
        if self.ended.contains_key(id) {
            self.retention.settle(id, settled);
        }
    }

    /// Ended children to be forgotten at once: what they were is counted no more.
    pub(super) fn surplus(&mut self, now: Instant, count_max: usize) -> Surplus {
        self.retention.surplus(now, count_max)
    }

    /// Gives the child if it was known.
    pub(super) fn forget(&mut self, id: &ChildId) -> Option<Arc<Child>> {
        self.retention.forget(id);
        self.living.remove(id).or_else(|| self.ended.remove(id))
    }
}

impl HeldChild {
    /// Its end has been told to who asked.
    pub(crate) fn collect(&self) {
        self.register.lock().retention.collect(&self.child.record().id);
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
        self.register.lock().retention.release(&self.child.record().id);
    }
}
