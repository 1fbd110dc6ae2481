//! What an owner exports. The fabric serves it; `farfork-fork` implements it for its seeds.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use farfork_wire::descriptor::ExtentId;
use farfork_wire::frame::reply::Refusal;
use farfork_wire::{SeedId, Token};

/// The seeds of an owner. It is asked at every read, so that a seed that is dropped is refused from then on; it must
/// answer within microseconds.
pub trait Exporter: Send + Sync {
    /// The memory of a seed.
    ///
    /// # Errors
    /// [`Refusal::UnknownSeed`] or [`Refusal::WrongToken`].
    fn open(&self, seed: &SeedId, token: &Token) -> Result<Arc<dyn Region>, Refusal>;
}

/// The memory of one seed: extents, and the descriptor under [`ExtentId::DESCRIPTOR`].
pub trait Region: Send + Sync {
    /// Length of an extent, in bytes; `None` where there is no such extent.
    fn extent_bytes(&self, extent: ExtentId) -> Option<u64>;

    /// Fills `into` from `offset` of an extent. The fabric has checked the bounds.
    ///
    /// # Errors
    /// ESRCH where the seed's template has ended, which the requester sees as an unknown seed; another error where
    /// these bytes cannot be read, now and later.
    fn read(&self, extent: ExtentId, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// What lets a requester on the same host read for itself; `None` where all is read through the owner.
    fn same_host(&self) -> Option<SameHost>;
}

/// What lets a requester on the owner's host read a template's memory for itself.
#[derive(Debug)]
pub struct SameHost {
    /// The template's process (a pidfd).
    pub template: OwnedFd,
    /// The extents in its memory, each with its first address. Others are read through the owner.
    pub extents: Vec<(ExtentId, u64)>,
}
