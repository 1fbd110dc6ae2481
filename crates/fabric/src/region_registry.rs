//! An exporter for callers without a seed table of their own: regions that are registered until they are revoked, and a
//! message queue.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use farfork_wire::descriptor::ExtentId;
use farfork_wire::frame::reply::Refusal;
use farfork_wire::{SeedId, Token};
use rustix::io::Errno;

use crate::{Exporter, MessageQueue, Region, SeedKey};

/// What an owner exports: registered regions, each under a key, and an inbox if it takes messages.
#[derive(Debug, Default)]
pub struct RegionRegistry {
    regions: Mutex<HashMap<SeedId, (Token, Arc<RevocableRegion>)>>,
    messages: Option<Arc<MessageQueue>>,
}

/// A key that is taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("memory is registered as {0} already; revoke it first")]
pub struct RegisterError(SeedId);

impl RegionRegistry {
    /// Without regions; messages go to `inbox`.
    pub fn new(inbox: Option<Arc<MessageQueue>>) -> Arc<Self> {
        Arc::new(Self { regions: Mutex::default(), messages: inbox })
    }

    /// Exports a region under a key, until what this gives is dropped.
    ///
    /// # Errors
    /// Where the key's name is taken.
    pub fn register(self: &Arc<Self>, key: &SeedKey, region: Arc<dyn Region>) -> Result<Registration, RegisterError> {
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        if regions.contains_key(&key.seed) {
            return Err(RegisterError(key.seed.clone()));
        }
        let region = Arc::new(RevocableRegion { region: RwLock::new(Some(region)) });
        regions.insert(key.seed.clone(), (key.token, Arc::clone(&region)));
        Ok(Registration { registry: Arc::clone(self), seed: key.seed.clone(), region })
    }
}

impl Exporter for RegionRegistry {
    fn open_region(&self, seed: &SeedId, token: &Token) -> Result<Arc<dyn Region>, Refusal> {
        let regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        let (secret, region) = regions.get(seed).ok_or(Refusal::UnknownSeed)?;
        if secret == token { Ok(Arc::clone(region) as Arc<dyn Region>) } else { Err(Refusal::WrongToken) }
    }

    fn deliver_message(&self, from: &str, message: &[u8]) -> Result<(), Refusal> {
        self.messages.as_ref().ok_or(Refusal::NoReceiver)?.deliver(from, message)
    }
}

/// Keeps a region exported. Dropping it revokes the region: once that has returned, nobody reads or writes it any more,
/// not even for a request that was received before.
#[derive(Debug)]
pub struct Registration {
    registry: Arc<RegionRegistry>,
    seed: SeedId,
    region: Arc<RevocableRegion>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.registry.regions.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.seed);
        // Waits for the accesses that are under way.
        self.region.region.write().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// A region, until it is revoked. What it grants to requesters of the same host is not passed on: they could keep it.
struct RevocableRegion {
    region: RwLock<Option<Arc<dyn Region>>>,
}

impl RevocableRegion {
    /// Does something with the region; none can be revoked before that is done.
    fn with<T>(&self, what: impl FnOnce(&dyn Region) -> T) -> Option<T> {
        self.region.read().unwrap_or_else(PoisonError::into_inner).as_deref().map(what)
    }
}

impl fmt::Debug for RevocableRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Revocable")
    }
}

impl Region for RevocableRegion {
    fn extent_bytes(&self, extent: ExtentId) -> Option<u64> {
        // One that is gone has no bounds to be refused for: the access itself says that it is gone.
        self.with(|region| region.extent_bytes(extent)).unwrap_or(Some(u64::MAX))
    }

    fn read(&self, extent: ExtentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.with(|region| region.read(extent, offset, into)).unwrap_or(Err(Errno::SRCH.into()))
    }

    fn write(&self, extent: ExtentId, offset: u64, from: &[u8]) -> io::Result<()> {
        self.with(|region| region.write(extent, offset, from)).unwrap_or(Err(Errno::SRCH.into()))
    }
}
