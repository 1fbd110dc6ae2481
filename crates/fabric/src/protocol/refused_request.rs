//! A request that the owner refused, formatted for the log.

use std::fmt;

use farfork_wire::SeedId;
use farfork_wire::frame::reply::Refusal;

/// A refused request, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusedRequest {
    /// The seed or region of the request; `None` for a message.
    seed: Option<SeedId>,
    refusal: Refusal,
}

impl RefusedRequest {
    /// Creates the record. `None` for a full message queue, which is not the requester's fault.
    pub(super) fn from_refusal(seed: Option<SeedId>, refusal: Refusal) -> Option<Self> {
        (refusal != Refusal::MessageQueueFull).then_some(Self { seed, refusal })
    }
}

impl fmt::Display for RefusedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.seed {
            Some(seed) => write!(f, "{seed}: {}", self.refusal),
            None => write!(f, "a message: {}", self.refusal),
        }
    }
}
