//! What can go wrong with a read: refused for good, or its owner cannot be reached.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use farfork_wire::SeedId;
use farfork_wire::frame::FrameError;
use farfork_wire::frame::reply::Refusal;

use crate::Address;

/// Why a read failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FabricError {
    /// The owner answered, and will not give the bytes: the same read would be refused again.
    #[error("seed {seed} cannot be read at {address}: {refusal}")]
    Refused {
        /// Who refused.
        address: Address,
        /// What was asked for.
        seed: SeedId,
        /// Why.
        refusal: Refusal,
    },
    /// The owner runs another release, which cannot hold this seed any more: a seed ends with its owner's daemon.
    #[error("the node at {address} is of another release: {cause}")]
    Incompatible {
        /// Who it is.
        address: Address,
        /// Which versions met.
        cause: FrameError,
    },
    /// No answer came until the deadline. The owner may still be there, and have the seed.
    #[error("the node at {address} cannot be reached for {silence:.1?}: {cause}; check the node and the network to it")]
    Unreachable {
        /// Who did not answer.
        address: Address,
        /// What was last seen of the connection.
        cause: Arc<LinkError>,
        /// For how long nothing has been heard that was waited for.
        silence: Duration,
    },
}

impl FabricError {
    /// Whether trying again is pointless.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Unreachable { .. })
    }
}

/// Why a connection ended or was not made. It is made again while there is something to ask.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No connection could be made.
    #[error("connecting failed: {0}")]
    Connect(#[source] io::Error),
    /// Nobody answered the attempt to connect.
    #[error("nobody answers")]
    ConnectTimeout,
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[source] io::Error),
    /// The owner closed it.
    #[error("the node closed the connection")]
    Closed,
    /// It is there, but nothing comes.
    #[error("the connection is silent")]
    Silent,
    /// What came is damaged, or makes no sense.
    #[error(transparent)]
    Frame(#[from] FrameError),
}
