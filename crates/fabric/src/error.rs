//! Why a request fails: the owner refused it, which is final, or the owner cannot be reached.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use farfork_wire::SeedId;
use farfork_wire::frame::FabricFrameError;
use farfork_wire::frame::reply::Refusal;

use crate::Address;

/// Why a request failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FabricError {
    /// The owner answered, and will not give the bytes: the same read would be refused again.
    #[error("seed {seed} cannot be had at {address}: {refusal}")]
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
        cause: FabricFrameError,
    },
    /// The owner refused a message.
    #[error("the node at {address} takes no message: {refusal}")]
    MessageRefused {
        /// Who refused.
        address: Address,
        /// Why.
        refusal: Refusal,
    },
    /// A write or a message was sent, and no answer came until the deadline: it may have been made, or not.
    #[error(
        "the node at {address} was asked and did not answer {}, so that it may have been done or not: {cause}",
        if silence.is_zero() { "in time".to_owned() } else { format!("for {silence:.1?}") }
    )]
    OutcomeUnknown {
        /// Who did not answer.
        address: Address,
        /// What was last seen of the connection.
        cause: Arc<LinkError>,
        /// Since it was sent. Zero if its deadline had passed by then.
        silence: Duration,
    },
    /// No answer came until the deadline, and nothing was changed. The owner may still be there, and have the seed.
    #[error(
        "the node at {address} cannot be reached for {}: {cause}; check the node and the network to it",
        if silence.is_zero() { "now".to_owned() } else { format!("{silence:.1?}") }
    )]
    Unreachable {
        /// Who did not answer.
        address: Address,
        /// What was last seen of the connection.
        cause: Arc<LinkError>,
        /// For how long nothing has been heard that was waited for. Zero if nothing was sent in time.
        silence: Duration,
    },
}

impl FabricError {
    /// Whether trying again is pointless.
    pub fn is_permanent(&self) -> bool {
        !matches!(
            self,
            Self::Unreachable { .. }
                | Self::OutcomeUnknown { .. }
                | Self::MessageRefused { refusal: Refusal::MessageQueueFull, .. }
        )
    }

    /// Whether what was asked for may have been done all the same: a write made, a message taken.
    pub fn may_have_taken_effect(&self) -> bool {
        match self {
            Self::OutcomeUnknown { .. } => true,
            Self::Refused { refusal, .. } | Self::MessageRefused { refusal, .. } => {
                *refusal == Refusal::OutcomeForgotten
            }
            Self::Incompatible { .. } | Self::Unreachable { .. } => false,
        }
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
    /// Peer and this side did not come to trust each other.
    #[error("the handshake failed: {0}")]
    Handshake(#[source] io::Error),
    /// The handshake did not come to its end.
    #[error("the handshake takes too long")]
    HandshakeTimeout,
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[source] io::Error),
    /// The owner was trusted when the stream began, and is no longer.
    #[error("{0}")]
    TrustRevoked(#[source] io::Error),
    /// The owner closed it.
    #[error("the node closed the connection")]
    Closed,
    /// It is there, but nothing comes.
    #[error("the connection is silent")]
    NoResponse,
    /// The requester has connected anew since, so that this connection may change nothing more.
    #[error("its requester has connected anew")]
    Superseded,
    /// What came is damaged, or makes no sense.
    #[error(transparent)]
    Frame(#[from] FabricFrameError),
}
