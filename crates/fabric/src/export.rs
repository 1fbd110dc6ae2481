//! The `Exporter` trait: the memory and the message receiver of an owner, which the fabric serves. `farfork-fork`
//! implements it for seeds; [`RegionRegistry`](crate::RegionRegistry) implements it for registered memory.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use farfork_wire::descriptor::ExtentId;
use farfork_wire::frame::reply::Refusal;
use farfork_wire::{SeedId, Token};
use rustix::io::Errno;

/// The seeds of an owner. It is asked at every read, so that a seed that is dropped is refused from then on; it must
/// answer within microseconds.
pub trait Exporter: Send + Sync {
    /// The memory of a seed.
    ///
    /// # Errors
    /// [`Refusal::UnknownSeed`] or [`Refusal::WrongToken`].
    fn open_region(&self, seed: &SeedId, token: &Token) -> Result<Arc<dyn Region>, Refusal>;

    /// Takes a message; `from` is its sender, as the log names it.
    ///
    /// # Errors
    /// [`Refusal::NoReceiver`], or [`Refusal::MessageQueueFull`] where too many wait.
    fn deliver_message(&self, from: &str, message: &[u8]) -> Result<(), Refusal> {
        let _ = (from, message);
        Err(Refusal::NoReceiver)
    }
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

    /// Puts bytes at `offset` of an extent. The fabric has checked the bounds.
    ///
    /// # Errors
    /// EROFS where the memory is not to be written, as a template's is; else as [`Region::read`].
    fn write(&self, extent: ExtentId, offset: u64, from: &[u8]) -> io::Result<()> {
        let _ = (extent, offset, from);
        Err(Errno::ROFS.into())
    }

    /// What lets a requester on the same host read for itself; `None` where all is read through the owner. Memory that is
    /// written, too, must give none: what is read past the owner is not ordered with writes.
    fn local_template(&self) -> Option<LocalTemplate> {
        None
    }
}

/// What lets a requester on the owner's host read a template's memory for itself.
#[derive(Debug)]
pub struct LocalTemplate {
    /// The template's process (a pidfd).
    pub template: OwnedFd,
    /// The extents in its memory, each with its first address. Others are read through the owner.
    pub extents: Vec<(ExtentId, u64)>,
}
