//! Errors of requests ([`FabricError`]) and of the connections that carry them ([`LinkError`]).

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
    /// The owner refused the request, and would refuse it again.
    #[error("cannot access seed {seed} at {address}: {refusal}")]
    Refused {
        /// Address of the owner.
        address: Address,
        /// The requested seed.
        seed: SeedId,
        /// The owner's reason.
        refusal: Refusal,
    },
    /// The owner runs an incompatible release, so it was restarted: a seed that is not sealed has ended with the old
    /// daemon.
    #[error("the node at {address} runs another release: {cause}")]
    Incompatible {
        /// Address of the owner.
        address: Address,
        /// The versions of both sides.
        cause: FabricFrameError,
    },
    /// The owner refused a message.
    #[error("the node at {address} refused a message: {refusal}")]
    MessageRefused {
        /// Address of the owner.
        address: Address,
        /// The owner's reason.
        refusal: Refusal,
    },
    /// A write or a message was sent, and had no reply by its deadline. It may or may not have been made.
    #[error(
        "the node at {address} did not answer {}, so the request may or may not have taken effect: {cause}",
        if silence.is_zero() { "in time".to_owned() } else { format!("for {silence:.1?}") }
    )]
    OutcomeUnknown {
        /// Address of the owner.
        address: Address,
        /// The last failure of the connection.
        cause: Arc<LinkError>,
        /// Time since the write or message was sent. Zero if its deadline had already passed at that time.
        silence: Duration,
    },
    /// There was no reply by the deadline, and the request changed nothing. The owner may still run and have the seed.
    #[error(
        "the node at {address} cannot be reached for {}: {cause}; check the node and the network to it",
        if silence.is_zero() { "now".to_owned() } else { format!("{silence:.1?}") }
    )]
    Unreachable {
        /// Address of the owner.
        address: Address,
        /// The last failure of the connection.
        cause: Arc<LinkError>,
        /// Time for which an expected reply has been missing. Zero if no request was sent in time.
        silence: Duration,
    },
}

impl FabricError {
    /// Whether another attempt would fail too.
    pub fn is_permanent(&self) -> bool {
        !matches!(
            self,
            Self::Unreachable { .. }
                | Self::OutcomeUnknown { .. }
                | Self::MessageRefused { refusal: Refusal::MessageQueueFull, .. }
        )
    }

    /// Whether the request may have taken effect in spite of the error: the write may have been made, or the message
    /// delivered.
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

/// Why a connection failed. The requester reconnects while there are requests to send.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No connection could be made.
    #[error("connecting failed: {0}")]
    Connect(#[source] io::Error),
    /// The attempt to connect had no reply in time.
    #[error("the connection attempt was not answered")]
    ConnectTimeout,
    /// One side refused the other in the handshake.
    #[error("the handshake failed: {0}")]
    Handshake(#[source] io::Error),
    /// The handshake was not completed in time.
    #[error("the handshake was not completed in time")]
    HandshakeTimeout,
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[source] io::Error),
    /// The owner is no longer trusted. It was trusted when the stream began.
    #[error("{0}")]
    TrustRevoked(#[source] io::Error),
    /// The owner closed the connection.
    #[error("the node closed the connection")]
    Closed,
    /// The connection is open, but nothing was received in time.
    #[error("nothing was received in time")]
    NoResponse,
    /// The requester has reconnected, so this connection must make no more changes.
    #[error("its requester has reconnected")]
    Superseded,
    /// The received bytes are damaged or invalid.
    #[error(transparent)]
    Frame(#[from] FabricFrameError),
}
