//! The messages between daemon and pager: a `PagerRequest` and its `PagerReply`, in postcard, each one message of a
//! SOCK_SEQPACKET socket. `client` and `control` send and receive them. Each begins with the format version (`MAGIC`).

use std::path::PathBuf;

use farfork_wire::{ChildId, SeedId};
use serde::{Deserialize, Serialize};

use crate::pager::cache::CacheStats;
use crate::pager::journal::AddressSpaceId;
use crate::pager::journal::counters::PagerCounters;
use crate::pager::keeper::trust_policy::TrustPolicy;
use crate::pager::page_map::MapSegment;

/// The release of this build.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Incremented with every change of the messages below.
const PROTOCOL_VERSION: u8 = 5;

/// The first bytes of each message.
///
/// ```text
///   0        3                  4
///   ├────────┼──────────────────┼──────────────────┤
///   │ FFP    │ PROTOCOL_VERSION │ postcard         │
///   └────────┴──────────────────┴──────────────────┘
/// ```
///
/// A pager outlives its daemon, and the next daemon may be of another release. A message of another version is rejected
/// before it is decoded as something else.
const MAGIC: [u8; 4] = [b'F', b'F', b'P', PROTOCOL_VERSION];

/// Why bytes are not a message.
#[derive(Debug, thiserror::Error)]
pub(in crate::pager) enum ControlMessageError {
    /// The message has another protocol version.
    #[error("the peer uses version {theirs} of the pager protocol, this release uses version {PROTOCOL_VERSION}")]
    VersionMismatch {
        /// The version of the message.
        theirs: u8,
    },
    /// The message cannot be decoded.
    #[error("invalid pager message: {0}")]
    Damaged(#[from] postcard::Error),
}

/// Encodes a message.
///
/// # Errors
/// As postcard: never for these types.
pub(in crate::pager) fn encode(message: &impl Serialize) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_extend(message, MAGIC.to_vec())
}

/// Decodes a message.
///
/// # Errors
/// [`ControlMessageError`].
pub(in crate::pager) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ControlMessageError> {
    match bytes {
        [b'F', b'F', b'P', PROTOCOL_VERSION, body @ ..] => Ok(postcard::from_bytes(body)?),
        [b'F', b'F', b'P', theirs, ..] => Err(ControlMessageError::VersionMismatch { theirs: *theirs }),
        _ => Err(ControlMessageError::VersionMismatch { theirs: 0 }),
    }
}

/// Longest message, in bytes: a page of a list of children.
pub(in crate::pager) const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Most children of one reply; an id has at most 83 bytes as text.
pub(in crate::pager) const CHILDREN_PER_REPLY_MAX: usize = 512;

/// Most segments of one reply; each has at most 35 bytes.
pub(in crate::pager) const SEGMENTS_PER_REPLY_MAX: usize = 1024;

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::pager) enum PagerRequest {
    /// Return the pager's release and trust policy.
    Hello,
    /// End this pager. The next one reads the trust policy again.
    Replace,
    /// Serve a child. The message carries the socket on which its userfaultfd will arrive. May be repeated.
    Adopt {
        /// The child.
        child: ChildId,
        /// Its directory, with the memory plan.
        dir: PathBuf,
    },
    /// Make the newest copy of a zygote a child. The message carries the stub's queue, which gets the child's userfaultfd,
    /// too. May be repeated.
    Transfer {
        /// The zygote.
        zygote: ChildId,
        /// The child.
        child: ChildId,
        /// Its directory, with the memory plan.
        dir: PathBuf,
        /// Its own process.
        pid: i32,
    },
    /// Whether pages that a zygote must get of its seed's working set are still in flight.
    IsZygoteFilling {
        /// The zygote.
        zygote: ChildId,
    },
    /// Release a child that has ended, and return what the pager has done for it. May be repeated.
    Release {
        /// The child.
        child: ChildId,
    },
    /// Return what the pager has done for a child.
    Stats {
        /// The child.
        child: ChildId,
    },
    /// Return the contents and counters of the page cache. Its limit is read again.
    CacheStats,
    /// Fetch a seed's working set into the cache, or return the progress.
    Prewarm {
        /// The seed.
        seed: SeedId,
        /// A directory with a memory plan of the seed.
        dir: PathBuf,
    },
    /// List the children.
    ListChildren {
        /// Only those after this one.
        after: Option<ChildId>,
    },
    /// Fetch the rest of a child's pages.
    Settle {
        /// The child.
        child: ChildId,
        /// Start if it has not started. If unset, only return the progress.
        begin: bool,
        /// Its own process.
        pid: i32,
    },
    /// Return the number of the child's next address space.
    NextSpace {
        /// The child.
        child: ChildId,
    },
    /// Find the child's address space, from this number on, in which the page at this address is mapped.
    FindSpace {
        /// The child.
        child: ChildId,
        /// The first address space to look at.
        since: AddressSpaceId,
        /// Address of the page.
        address: u64,
    },
    /// List the segments of an address space.
    ListSegments {
        /// The child.
        child: ChildId,
        /// The address space.
        space: AddressSpaceId,
        /// Only those from this address on.
        from: u64,
    },
    /// Stop serving an address space whose process never runs again. May be repeated.
    CloseSpace {
        /// The child.
        child: ChildId,
        /// The address space.
        space: AddressSpaceId,
    },
    /// Serve a child again after its pager, keeper and holder were killed together. The message carries the stub's queue.
    /// May be repeated.
    Reclaim {
        /// The child.
        child: ChildId,
        /// Its directory, with plan and journal.
        dir: PathBuf,
    },
    /// End the pager and its keeper.
    Stop,
}

/// A reply of the pager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::pager) enum PagerReply {
    /// The request was executed.
    Done,
    /// Processes of the child are still running and served.
    StillRunning,
    /// The answer to `Hello`.
    Hello(PagerHello),
    /// The answer to `Stats`, and to `Release` of a child that was known.
    Stats(PagerStats),
    /// The answer to `IsZygoteFilling`.
    ZygoteFilling(bool),
    /// The answer to `Settle`.
    SettleProgress(SettleProgress),
    /// The answer to `CacheStats`.
    CacheStats(CacheStats),
    /// The answer to `Prewarm`.
    PrewarmProgress(PrewarmProgress),
    /// The answer to `ListChildren`, ascending; empty when there are no more.
    Children(Vec<ChildId>),
    /// The answer to `NextSpace` and `FindSpace`.
    SpaceId(Option<AddressSpaceId>),
    /// The answer to `ListSegments`, ascending; fewer than [`SEGMENTS_PER_REPLY_MAX`] when there are no more.
    Segments(Vec<MapSegment>),
    /// The answer to `Reclaim`.
    Reclaimed {
        /// How many of its processes were lost: no process held their userfaultfds, so they have read zeroes since.
        lost: usize,
    },
    /// The request was refused, for this reason.
    Refused(String),
}

/// The release and the trust policy of a pager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagerHello {
    /// Its release.
    pub release: String,
    /// The trust policy in use.
    pub trust_policy: TrustPolicy,
}

/// Counters of the pager's work for a child, and the reason why its memory is lost, if it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagerStats {
    /// The counters.
    pub counters: PagerCounters,
    /// Why pages that were not fetched raise SIGBUS, if they do.
    pub loss_reason: Option<String>,
}

/// How far the settling of a child has got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettleProgress {
    /// Pages of the seed that hold data, counted in each address space of the child.
    pub total_pages: u64,
    /// Of these, the pages that are not installed yet. A new pager does not know which were, and counts from the start.
    pub missing_pages: u64,
    /// The state.
    pub state: SettleState,
}

/// The state of a child's settling.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SettleState {
    /// Settling was not requested.
    Idle,
    /// Pages are being fetched.
    Running,
    /// The child does not need its seed any more.
    Settled,
    /// It has failed, for this reason. The child continues as before.
    Failed(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_another_version_is_not_decoded() {
        let bytes = encode(&PagerRequest::Stop).unwrap();
        assert_eq!(decode::<PagerRequest>(&bytes).unwrap(), PagerRequest::Stop);
        let mut newer = bytes.clone();
        newer[3] += 1;
        assert!(
            matches!(decode::<PagerRequest>(&newer), Err(ControlMessageError::VersionMismatch { theirs }) if theirs == PROTOCOL_VERSION + 1)
        );
        // Messages of releases before the protocol had a version.
        let old = postcard::to_stdvec(&PagerRequest::Stop).unwrap();
        assert!(matches!(decode::<PagerRequest>(&old), Err(ControlMessageError::VersionMismatch { theirs: 0 })));
        assert!(matches!(decode::<PagerRequest>(&bytes[..4]), Err(ControlMessageError::Damaged(_))));
        assert!(decode::<PagerRequest>(&[]).is_err());
    }
}

/// How far the prewarm of a seed on a node has got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrewarmProgress {
    /// Pages of the set. 0 until the set has arrived, and if no child of the seed was seen yet.
    pub set_pages: u64,
    /// Of these, the pages that have arrived or were cached already. Those of this host's own seeds are not cached.
    pub cached_pages: u64,
    /// The state.
    pub state: PrewarmState,
}

/// The state of a seed's prewarm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PrewarmState {
    /// Pages are being fetched.
    Running,
    /// All pages are cached.
    Done,
    /// It has failed, for this reason. Pages that have arrived are cached.
    Failed(String),
}
