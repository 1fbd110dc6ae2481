//! An exporter for callers without their own seed table: regions that are exported while they are registered, and a
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

/// The exports of an owner: registered regions, each with a key, and optionally a message queue.
#[derive(Debug, Default)]
pub struct RegionRegistry {
    regions: Mutex<HashMap<SeedId, (Token, Arc<RevocableRegion>)>>,
    messages: Option<Arc<MessageQueue>>,
}

/// The seed id of the key is in use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("seed {0} already has registered memory; revoke it first")]
pub struct RegisterError(SeedId);

impl RegionRegistry {
    /// Creates a registry without regions. Messages are delivered to `inbox`.
    pub fn new(inbox: Option<Arc<MessageQueue>>) -> Arc<Self> {
        Arc::new(Self { regions: Mutex::default(), messages: inbox })
    }

    /// Exports a region under a key, until the returned registration is dropped.
    ///
    /// # Errors
    /// The seed id of the key is in use.
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

/// Keeps a region exported. Dropping it revokes the region. After that, no request reads or writes the region, not even
/// a request that was received earlier.
#[derive(Debug)]
pub struct Registration {
    registry: Arc<RegionRegistry>,
    seed: SeedId,
    region: Arc<RevocableRegion>,
}

impl Registration {
    /// Returns the region as requesters access it: after the revocation, each access fails with ESRCH.
    pub fn region(&self) -> Arc<dyn Region> {
        Arc::clone(&self.region) as Arc<dyn Region>
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.registry.regions.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.seed);
        // The write lock waits for accesses in progress.
        self.region.region.write().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// A region that can be revoked. It grants no direct reads to requesters on the same host, because they could keep the
/// grants.
struct RevocableRegion {
    region: RwLock<Option<Arc<dyn Region>>>,
}

impl RevocableRegion {
    /// Calls `what` with the region, which cannot be revoked until `what` has returned.
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
        // For a revoked region, pass the bounds check: the access itself then fails with ESRCH.
        self.with(|region| region.extent_bytes(extent)).unwrap_or(Some(u64::MAX))
    }

    fn read(&self, extent: ExtentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.with(|region| region.read(extent, offset, into)).unwrap_or(Err(Errno::SRCH.into()))
    }

    fn write(&self, extent: ExtentId, offset: u64, from: &[u8]) -> io::Result<()> {
        self.with(|region| region.write(extent, offset, from)).unwrap_or(Err(Errno::SRCH.into()))
    }
}
