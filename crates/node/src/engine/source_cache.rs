//! Cache of the descriptors of seeds that were forked here, so that the next child of a seed starts without reading the
//! descriptor again.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use farfork_api::failure::Failure;
use farfork_fork::resume::{LayerReader, SeedSource};
use farfork_wire::SeedId;
use tonic::Code;

use super::{Engine, SeedAccess};

/// Maximum number of descriptors in the cache: a node works with few seeds at a time.
const SOURCES_MAX: usize = 16;

impl Engine {
    /// Returns the reader of seeds from which other seeds inherit.
    pub(crate) fn other_seeds(&self) -> &LayerReader {
        &self.other_seeds
    }

    /// Returns the seed's descriptor, from an earlier fork or from the seed's owner. A cached descriptor with layers is
    /// outdated if the seed no longer inherits: its image now contains the inherited pages.
    pub(super) fn load_source(&self, access: &SeedAccess, deadline: Instant) -> Result<Arc<SeedSource>, Failure> {
        let known =
            |source: &&Arc<SeedSource>| source.key.seed == access.key.seed && source.key.token == access.key.token;
        let cached = self.source_cache.lock().unwrap_or_else(PoisonError::into_inner).iter().find(known).cloned();
        match cached {
            Some(source) if access.inherits || source.descriptor.layers.is_empty() => return Ok(source),
            Some(_) => self.evict_source(&access.key.seed),
            None => {}
        }
        let LayerReader { local: own, connections: links } = self.other_seeds.clone();
        let fetched = SeedSource::fetch(access.key.clone(), &access.owner, own, &links, deadline);
        let fetched = fetched.map_err(|error| {
            Failure::new(Code::Unavailable, format!("seed {}", access.key.seed), error)
                .with_next_step("check it with `farfork seeds`, and its node with `farfork nodes`")
        })?;
        let fetched = Arc::new(fetched);
        let mut sources = self.source_cache.lock().unwrap_or_else(PoisonError::into_inner);
        while sources.len() >= SOURCES_MAX {
            sources.pop_front();
        }
        sources.push_back(fetched.clone());
        Ok(fetched)
    }

    /// Drops everything that was made from an earlier descriptor of a seed.
    fn evict_source(&self, seed: &SeedId) {
        self.prestart_pool.remove_seed(seed);
        self.zygote_cache.retire(seed);
        self.source_cache.lock().unwrap_or_else(PoisonError::into_inner).retain(|source| source.key.seed != *seed);
    }
}
