//! The `Exporter` trait: the memory and the message receiver of an owner, which the fabric serves. `farfork-fork` implements
//! it for seeds; [`RegionRegistry`](crate::RegionRegistry) implements it for registered memory.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use farfork_wire::descriptor::ExtentId;
use farfork_wire::frame::reply::Refusal;
use farfork_wire::{SeedId, Token};
use rustix::io::Errno;

/// The seeds of an owner. The fabric calls it at every read, so that a dropped seed is refused at once. It must return
/// within microseconds.
pub trait Exporter: Send + Sync {
    /// The memory of a seed.
    ///
    /// # Errors
    /// [`Refusal::UnknownSeed`] or [`Refusal::WrongToken`].
    fn open_region(&self, seed: &SeedId, token: &Token) -> Result<Arc<dyn Region>, Refusal>;

    /// Delivers a message; `from` is its sender, as in the log.
    ///
    /// # Errors
    /// [`Refusal::NoReceiver`], or [`Refusal::MessageQueueFull`] if too many messages are queued.
    fn deliver_message(&self, from: &str, message: &[u8]) -> Result<(), Refusal> {
        let _ = (from, message);
        Err(Refusal::NoReceiver)
    }
}

/// The memory of one seed: extents, and the descriptor under [`ExtentId::DESCRIPTOR`].
pub trait Region: Send + Sync {
    /// Length of an extent, in bytes; `None` if there is no such extent.
    fn extent_bytes(&self, extent: ExtentId) -> Option<u64>;

    /// Fills `into` from `offset` of an extent. The fabric has checked the bounds.
    ///
    /// # Errors
    /// ESRCH if the seed's template has ended: the requester gets [`Refusal::UnknownSeed`]. Any other error if these bytes
    /// can never be read.
    fn read(&self, extent: ExtentId, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes bytes at `offset` of an extent. The fabric has checked the bounds.
    ///
    /// # Errors
    /// EROFS if the memory is read-only, as a template's is; otherwise as [`Region::read`].
    fn write(&self, extent: ExtentId, offset: u64, from: &[u8]) -> io::Result<()> {
        let _ = (extent, offset, from);
        Err(Errno::ROFS.into())
    }

    /// The template that a requester on the same host may read directly. `None` if all reads must go through the owner.
    /// Memory that is also written must return `None`, because direct reads are not ordered with writes.
    fn local_template(&self) -> Option<LocalTemplate> {
        None
    }
}

/// A template whose memory a requester on the owner's host may read directly.
#[derive(Debug)]
pub struct LocalTemplate {
    /// A pidfd of the template.
    pub template: OwnedFd,
    /// The extents in its memory, each with its first address. Other extents are read through the owner.
    pub extents: Vec<(ExtentId, u64)>,
}
