//! What this node knows of seeds that were forked here: their descriptors, so that the next child's need not be read.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use farfork_fork::resume::{OtherSeeds, SeedSource};
use farfork_wire::SeedId;
use tonic::Code;

use super::{Engine, SeedAccess};
use crate::failure::Failure;

/// Descriptors of seeds that are kept after a fork, for the next one: a node works with few seeds at a time.
const SOURCES_MAX: usize = 16;

impl Engine {
    /// How seeds that others inherit from are read.
    pub(crate) fn other_seeds(&self) -> &OtherSeeds {
        &self.others
    }

    /// The seed's descriptor: from an earlier fork, or from its owner. One that still names other seeds is of no use when their part
    /// of the memory is in the seed's image.
    pub(super) fn source(&self, access: &SeedAccess, deadline: Instant) -> Result<Arc<SeedSource>, Failure> {
        let known =
            |source: &&Arc<SeedSource>| source.key.seed == access.key.seed && source.key.token == access.key.token;
        let cached = self.sources.lock().unwrap_or_else(PoisonError::into_inner).iter().find(known).cloned();
        match cached {
            Some(source) if access.inherits || source.descriptor.layers.is_empty() => return Ok(source),
            Some(_) => self.forget(&access.key.seed),
            None => {}
        }
        let OtherSeeds { own, links } = self.others.clone();
        let fetched = SeedSource::fetch(access.key.clone(), &access.owner, own, &links, deadline);
        let fetched = fetched.map_err(|error| {
            Failure::new(Code::Unavailable, format!("seed {}", access.key.seed), error)
                .with_next_step("check it with `farfork seeds`, and its node with `farfork nodes`")
        })?;
        let fetched = Arc::new(fetched);
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        while sources.len() >= SOURCES_MAX {
            sources.pop_front();
        }
        sources.push_back(fetched.clone());
        Ok(fetched)
    }

    /// What was made of an earlier descriptor of a seed goes.
    fn forget(&self, seed: &SeedId) {
        self.standbys.forget(seed);
        self.zygotes.retire(seed);
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).retain(|source| source.key.seed != *seed);
    }
}
