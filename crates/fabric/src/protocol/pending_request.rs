//! A request to an owner from its submission until it ends, and the outcomes that it can have.

use std::sync::Arc;
use std::time::Instant;

use farfork_wire::frame::reply::{self, Grant, Refusal};
use farfork_wire::frame::request::ReadMode;

use crate::{MessageRequest, ReadRequest, Reply, SeedKey, WriteRequest};

/// What is asked of an owner.
#[derive(Debug)]
pub(crate) enum PendingRequest {
    /// Bytes.
    Read(ReadRequest),
    /// To put bytes into memory.
    Write(WriteRequest),
    /// To take a message.
    Message(MessageRequest),
    /// Where this host can read for itself.
    Grants {
        /// Of this seed.
        key: Arc<SeedKey>,
        /// When it is no longer of interest.
        deadline: Instant,
    },
}

/// What the owner answered.
#[derive(Debug)]
pub(crate) enum RequestOutcome {
    /// To all but grants.
    Completed(Reply),
    Refused(Refusal),
    Granted(Vec<Grant>),
}

impl PendingRequest {
    /// The seed that it is about, if it is about one.
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

    /// Whether it changes something at the owner, so that it must not be made twice.
    pub(crate) fn is_change(&self) -> bool {
        matches!(self, Self::Write(_) | Self::Message(_))
    }

    /// Bytes that it carries to the owner.
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

    /// What the caller knows it by; `None` where it was not a caller who asked.
    pub(crate) fn tag(&self) -> Option<u64> {
        match self {
            Self::Read(ReadRequest { tag, .. })
            | Self::Write(WriteRequest { tag, .. })
            | Self::Message(MessageRequest { tag, .. }) => Some(*tag),
            Self::Grants { .. } => None,
        }
    }

    /// Whether a reply is of the kind and length that it calls for.
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
