//! A request to an owner, from its submission until it ends, and its possible outcomes.

use std::sync::Arc;
use std::time::Instant;

use farfork_wire::frame::reply::{self, Grant, Refusal};
use farfork_wire::frame::request::ReadMode;

use crate::{MessageRequest, ReadRequest, Reply, SeedKey, WriteRequest};

/// A request to an owner.
#[derive(Debug)]
pub(crate) enum PendingRequest {
    /// Reads bytes.
    Read(ReadRequest),
    /// Writes bytes.
    Write(WriteRequest),
    /// Delivers a message.
    Message(MessageRequest),
    /// Requests grants for direct reads on this host.
    Grants {
        /// The seed.
        key: Arc<SeedKey>,
        /// Time after which the reply is not needed.
        deadline: Instant,
    },
}

/// The owner's reply to a request.
#[derive(Debug)]
pub(crate) enum RequestOutcome {
    /// A request other than a request for grants was served.
    Completed(Reply),
    Refused(Refusal),
    Granted(Vec<Grant>),
}

impl PendingRequest {
    /// Returns the seed of the request; `None` for a message.
    pub(crate) fn seed_key(&self) -> Option<&Arc<SeedKey>> {
        match self {
            Self::Read(ReadRequest { key, .. }) | Self::Write(WriteRequest { key, .. }) | Self::Grants { key, .. } => {
                Some(key)
            }
            Self::Message(_) => None,
        }
    }

    pub(crate) fn is_grants_request(&self) -> bool {
        matches!(self, Self::Grants { .. })
    }

    /// Whether the request is a write or a message, which must not be made twice.
    pub(crate) fn is_change(&self) -> bool {
        matches!(self, Self::Write(_) | Self::Message(_))
    }

    /// Number of payload bytes that the request sends to the owner.
    pub(crate) fn payload_bytes(&self) -> usize {
        match self {
            Self::Write(request) => request.data.len(),
            Self::Message(message) => message.bytes.len(),
            Self::Read(_) | Self::Grants { .. } => 0,
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        match self {
            Self::Read(ReadRequest { deadline, .. })
            | Self::Write(WriteRequest { deadline, .. })
            | Self::Message(MessageRequest { deadline, .. })
            | Self::Grants { deadline, .. } => *deadline,
        }
    }

    /// The caller's id for the request; `None` for a request for grants, which no caller submitted.
    pub(crate) fn tag(&self) -> Option<u64> {
        match self {
            Self::Read(ReadRequest { tag, .. })
            | Self::Write(WriteRequest { tag, .. })
            | Self::Message(MessageRequest { tag, .. }) => Some(*tag),
            Self::Grants { .. } => None,
        }
    }

    /// Whether a reply has the right kind and length for this request.
    pub(crate) fn is_answered_by(&self, reply: &reply::Reply<'_>) -> bool {
        match (self, reply) {
            (_, reply::Reply::Refused(_))
            | (Self::Grants { .. }, reply::Reply::Granted(_))
            | (Self::Write(_), reply::Reply::Written)
            | (Self::Message(_), reply::Reply::Arrived) => true,
            (Self::Read(request), reply::Reply::Data { data, extent_bytes }) => {
                let wanted = request.spans.iter().map(|span| u64::from(span.bytes)).sum::<u64>();
                let there = request.spans.first().map_or(0, |span| extent_bytes.saturating_sub(span.offset));
                let expected = match request.mode {
                    ReadMode::Exact => wanted,
                    ReadMode::Clip => wanted.min(there),
                };
                data.len() as u64 == expected
            }
            _ => false,
        }
    }
}
