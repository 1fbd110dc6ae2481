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
const PROTOCOL_VERSION: u8 = 6;

/// The first bytes of each message.
///
/// ```text
///   0        3                  4
///   ├────────┼──────────────────┼──────────────────┤
///   │ FFP    │ PROTOCOL_VERSION │ postcard         │
///   └────────┴──────────────────┴──────────────────┘
/// ```
///
/// A pager outlives its daemon, and the next daemon may be of another release. A message with another protocol version
/// is rejected before it is decoded.
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

/// Maximum length of a message, in bytes: a full reply to `ListChildren` or `ListSegments`.
pub(in crate::pager) const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Maximum number of children in one reply. An id has at most 83 bytes as text.
pub(in crate::pager) const CHILDREN_PER_REPLY_MAX: usize = 512;

/// Maximum number of segments in one reply. Each has at most 35 bytes.
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
    /// Make the newest copy of a zygote a child. The message carries the stub's queue, to which the pager also adds the
    /// child's userfaultfd. May be repeated.
    Transfer {
        /// The zygote.
        zygote: ChildId,
        /// The child.
        child: ChildId,
        /// Its directory, with the memory plan.
        dir: PathBuf,
        /// The pid of its first process.
        pid: i32,
    },
    /// Return whether pages that a zygote must get have not arrived yet.
    IsZygoteFilling {
        /// The zygote.
        zygote: ChildId,
    },
    /// Release a child that has ended, and return the counters of the pager's work for it. May be repeated.
    Release {
        /// The child.
        child: ChildId,
    },
    /// Return the counters of the pager's work for a child.
    Stats {
        /// The child.
        child: ChildId,
    },
    /// Return the size and the counters of the page cache, after reading its limit again.
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
        /// Only children with higher ids than this one.
        after: Option<ChildId>,
    },
    /// Settle a child: fetch the rest of its pages. Returns the progress.
    Settle {
        /// The child.
        child: ChildId,
        /// Whether to start, if the child is not settling. If unset, only return the progress.
        begin: bool,
        /// The pid of its first process.
        pid: i32,
    },
    /// Return the number of the child's next address space.
    NextSpace {
        /// The child.
        child: ChildId,
    },
    /// Find the child's address space, with number `since` or higher, in which the page at `address` is mapped.
    FindSpace {
        /// The child.
        child: ChildId,
        /// The lowest number of an address space to check.
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
        /// Only segments that start at this address or later.
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
    /// Mark a seed as lost for all children: its owner will never serve it again. May be repeated.
    LoseSeed {
        /// The seed.
        seed: SeedId,
        /// Why the owner does not serve it, as a clause.
        reason: String,
    },
}

/// A reply of the pager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::pager) enum PagerReply {
    /// The request was executed.
    Done,
    /// Processes of the child are still running and served.
    StillRunning,
    /// The reply to `Hello`.
    Hello(PagerHello),
    /// The reply to `Stats`, and to `Release` of a child that was known.
    Stats(PagerStats),
    /// The reply to `IsZygoteFilling`.
    ZygoteFilling(bool),
    /// The reply to `Settle`.
    SettleProgress(SettleProgress),
    /// The reply to `CacheStats`.
    CacheStats(CacheStats),
    /// The reply to `Prewarm`.
    PrewarmProgress(PrewarmProgress),
    /// The reply to `ListChildren`, ascending; empty when there are no more children.
    Children(Vec<ChildId>),
    /// The reply to `NextSpace` and `FindSpace`.
    SpaceId(Option<AddressSpaceId>),
    /// The reply to `ListSegments`, ascending. Fewer than [`SEGMENTS_PER_REPLY_MAX`] segments mean that there are no
    /// more.
    Segments(Vec<MapSegment>),
    /// The reply to `Reclaim`.
    Reclaimed {
        /// Number of the child's processes that were lost: no process held their userfaultfds, so they have read
        /// missing pages as zeroes since the kill.
        lost: usize,
    },
    /// The request was refused, for this reason.
    Refused(String),
}

/// The release and the trust policy of a pager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagerHello {
    /// The pager's release.
    pub release: String,
    /// The trust policy in use.
    pub trust_policy: TrustPolicy,
}

/// Counters of the pager's work for a child, and the reason if the child's memory is lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagerStats {
    /// The counters.
    pub counters: PagerCounters,
    /// The reason if the child's memory is lost: pages that were not fetched then raise SIGBUS.
    pub loss_reason: Option<String>,
}

/// The progress of a child's settling.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettleProgress {
    /// Number of the seed's pages that hold data, times the number of the child's address spaces.
    pub total_pages: u64,
    /// Number of these pages that are not installed yet. A new pager does not know which pages are installed, and
    /// starts again with all.
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
    /// The child no longer needs its seed.
    Settled,
    /// The settling has failed, for this reason. The child continues as before.
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
        // A message of a release from before the protocol had a version.
        let old = postcard::to_stdvec(&PagerRequest::Stop).unwrap();
        assert!(matches!(decode::<PagerRequest>(&old), Err(ControlMessageError::VersionMismatch { theirs: 0 })));
        assert!(matches!(decode::<PagerRequest>(&bytes[..4]), Err(ControlMessageError::Damaged(_))));
        assert!(decode::<PagerRequest>(&[]).is_err());
    }
}

/// The progress of a seed's prewarm on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrewarmProgress {
    /// Pages of the working set. 0 until the set has arrived, and if no child of the seed has run yet.
    pub set_pages: u64,
    /// Number of these pages that have arrived, or were cached before. Pages of seeds on this host are never cached,
    /// and do not count.
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
    /// The prewarm has failed, for this reason. Pages that have arrived are cached.
    Failed(String),
}
