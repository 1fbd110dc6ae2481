//! The requester's cache of grants: for each seed, the template and the address of each extent in it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use farfork_wire::descriptor::ExtentId;
use farfork_wire::frame::reply::Grant;

use crate::{SeedKey, Span, TemplateMemory};

/// Maximum number of seeds in the cache. Each has two file descriptors. The least recently used seed is dropped first.
const CACHED_SEEDS_MAX: usize = 64;

/// The way in which a seed can be read.
#[derive(Debug)]
pub(crate) enum SeedAccess {
    /// Not known yet: grants were requested.
    Requested,
    /// Only through the owner.
    OwnerOnly,
    /// Directly, on this host.
    Local(Arc<GrantedTemplate>),
}

/// A template that may be read directly.
#[derive(Debug)]
pub(crate) struct GrantedTemplate {
    pub(crate) memory: TemplateMemory,
    extents: HashMap<ExtentId, Grant>,
}

impl GrantedTemplate {
    /// Returns the address of a span in the template, and the length of its extent. `None` if the extent was not
    /// granted, or if the span reaches beyond it.
    pub(crate) fn locate(&self, span: &Span) -> Option<(u64, u64)> {
        let grant = self.extents.get(&span.extent)?;
        let end = span.offset.checked_add(u64::from(span.bytes))?;
        let address = grant.address.checked_add(span.offset)?;
        (end <= grant.bytes).then_some((address, grant.bytes))
    }
}

/// The grants of one owner.
#[derive(Debug, Default)]
pub(crate) struct GrantCache {
    /// The seeds in order of use, the most recently used last.
    seeds: Vec<(Arc<SeedKey>, SeedAccess)>,
}

impl GrantCache {
    /// Returns the way in which a seed can be read; `None` if no grants were requested.
    pub(crate) fn get(&mut self, key: &Arc<SeedKey>) -> Option<&SeedAccess> {
        let at = self.position(key)?;
        let seed = self.seeds.remove(at);
        self.seeds.push(seed);
        self.seeds.last().map(|(_, access)| access)
    }

    /// Records that grants were requested.
    pub(crate) fn mark_requested(&mut self, key: &Arc<SeedKey>) {
        self.insert(key, SeedAccess::Requested);
    }

    /// Records the owner's reply. If the template cannot be opened (a pid namespace may hide it), reads go through the
    /// owner.
    pub(crate) fn record_answer(&mut self, key: &Arc<SeedKey>, grants: Vec<Grant>, template: Option<OwnedFd>) {
        let access = match template.map(TemplateMemory::new) {
            None => SeedAccess::OwnerOnly,
            Some(Err(error)) => {
                tracing::info!(seed = %key.seed, %error, "cannot read the template; reads go through the owner");
                SeedAccess::OwnerOnly
            }
            Some(Ok(memory)) => {
                let extents = grants.into_iter().map(|grant| (grant.extent, grant)).collect();
                SeedAccess::Local(Arc::new(GrantedTemplate { memory, extents }))
            }
        };
        self.insert(key, access);
    }

    /// Removes a seed.
    pub(crate) fn remove(&mut self, key: &Arc<SeedKey>) {
        if let Some(at) = self.position(key) {
            self.seeds.remove(at);
        }
    }

    /// Removes the seeds with requested grants, because the requests were abandoned.
    pub(crate) fn remove_requested(&mut self) {
        self.seeds.retain(|(_, access)| !matches!(access, SeedAccess::Requested));
    }

    fn insert(&mut self, key: &Arc<SeedKey>, access: SeedAccess) {
        self.remove(key);
        if self.seeds.len() == CACHED_SEEDS_MAX {
            self.seeds.remove(0);
        }
        self.seeds.push((Arc::clone(key), access));
    }

    fn position(&self, key: &Arc<SeedKey>) -> Option<usize> {
        self.seeds.iter().rposition(|(known, _)| Arc::ptr_eq(known, key) || known == key)
    }
}
