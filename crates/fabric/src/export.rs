//! The `Exporter` trait: the memory and the message receiver of an owner, which the fabric serves. `farfork-fork` implements
//! it for seeds; [`RegionRegistry`](crate::RegionRegistry) implements it for registered memory.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use farfork_wire::descriptor::ExtentId;
use farfork_wire::frame::reply::Refusal;
use farfork_wire::{SeedId, Token};
use rustix::io::Errno;

/// The seeds of an owner. The fabric calls `open_region` for every request, so that a dropped seed is refused at once.
/// Implementations must return within microseconds.
pub trait Exporter: Send + Sync {
    /// Returns the memory of a seed.
    ///
    /// # Errors
    /// [`Refusal::UnknownSeed`] or [`Refusal::WrongToken`].
    fn open_region(&self, seed: &SeedId, token: &Token) -> Result<Arc<dyn Region>, Refusal>;

    /// Delivers a message. `from` is the sender's name, as in the log.
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
    /// ESRCH if the seed's template has ended: the requester gets [`Refusal::UnknownSeed`]. Any other error means that
    /// these bytes can never be read.
    fn read(&self, extent: ExtentId, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes bytes at `offset` of an extent. The fabric has checked the bounds.
    ///
    /// # Errors
    /// EROFS if the memory is read-only, such as a template's memory; otherwise as [`Region::read`].
    fn write(&self, extent: ExtentId, offset: u64, from: &[u8]) -> io::Result<()> {
        let _ = (extent, offset, from);
        Err(Errno::ROFS.into())
    }

    /// Returns the template that a requester on the same host may read directly; `None` if all reads must be served by
    /// the owner. Writable memory must return `None`, because direct reads are not ordered with writes.
    fn local_template(&self) -> Option<LocalTemplate> {
        None
    }
}

/// A template whose memory a requester on the owner's host may read directly.
#[derive(Debug)]
pub struct LocalTemplate {
    /// A pidfd of the template.
    pub template: OwnedFd,
    /// The extents in the template's memory, each with its first address. Other extents are read through the owner.
    pub extents: Vec<(ExtentId, u64)>,
}
