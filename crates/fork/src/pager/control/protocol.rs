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

/// The release that this is of.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Changes with every change of the messages below.
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

/// Why bytes are no message.
#[derive(Debug, thiserror::Error)]
pub(in crate::pager) enum ControlMessageError {
    /// Of another release.
    #[error("it speaks form {theirs} of the pager's messages, and this is form {PROTOCOL_VERSION}")]
    VersionMismatch {
        /// What came.
        theirs: u8,
    },
    /// No message at all.
    #[error("what came is no message of the pager's: {0}")]
    Damaged(#[from] postcard::Error),
}

/// A message as it travels.
///
/// # Errors
/// As postcard: never for these types.
pub(in crate::pager) fn encode(message: &impl Serialize) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_extend(message, MAGIC.to_vec())
}

/// Reads a message.
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

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::pager) enum PagerRequest {
    /// What it is, and whom it trusts.
    Hello,
    /// Make room for a pager that reads anew whom it is to trust.
    Replace,
    /// Serve a child. The message carries the socket on which its userfaultfd will arrive. May be repeated.
    Adopt {
        /// The child.
        child: ChildId,
        /// Its directory, with the memory plan.
        dir: PathBuf,
    },
    /// Serve what a zygote has just forked as a child. The message carries the socket into which the child's userfaultfd goes
    /// as well, for others to keep. May be repeated.
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
    /// Whether what a zygote is to be given of its seed's working set is still on its way.
    IsZygoteFilling {
        /// The zygote.
        zygote: ChildId,
    },
    /// Forget a child that has ended, and tell what was done for it. May be repeated.
    Release {
        /// The child.
        child: ChildId,
    },
    /// What was done for a child.
    Stats {
        /// The child.
        child: ChildId,
    },
    /// What the cache of pages holds. Its limit is read anew.
    CacheStats,
    /// Put a seed's working set into the cache, or tell how far that is.
    Prewarm {
        /// The seed.
        seed: SeedId,
        /// A directory with a memory plan of it.
        dir: PathBuf,
    },
    /// Which children there are.
    ListChildren {
        /// Only those behind this one.
        after: Option<ChildId>,
    },
    /// Have a child take the rest of its pages.
    Settle {
        /// The child.
        child: ChildId,
        /// Begin, if it does not already; else only tell how far it is.
        begin: bool,
        /// Its own process.
        pid: i32,
    },
    /// Which number the next address space of a child gets.
    NextSpace {
        /// The child.
        child: ChildId,
    },
    /// Which of a child's spaces, from this number on, has the page at this address mapped.
    FindSpace {
        /// The child.
        child: ChildId,
        /// The first space that may be it.
        since: AddressSpaceId,
        /// Address of the page.
        address: u64,
    },
    /// Which addresses of a space show which pages.
    ListSegments {
        /// The child.
        child: ChildId,
        /// The space.
        space: AddressSpaceId,
        /// Only those from this address on.
        from: u64,
    },
    /// Serve a space no more, whose process never runs. May be repeated.
    CloseSpace {
        /// The child.
        child: ChildId,
        /// The space.
        space: AddressSpaceId,
    },
    /// Serve a child again whose pager, keeper and holder were killed together. The message carries the queue that its stub holds. May be
    /// repeated.
    Reclaim {
        /// The child.
        child: ChildId,
        /// Its directory, with plan and journal.
        dir: PathBuf,
    },
    /// End the pager and its keeper.
    Stop,
}

/// What the pager answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::pager) enum PagerReply {
    /// As asked.
    Done,
    /// Processes of the child are still running and served.
    StillRunning,
    /// The answer to `Hello`.
    Hello(PagerHello),
    /// The answer to `Stats`, and to `Release` of a child that was known.
    Stats(PagerStats),
    /// The answer to `Filling`.
    ZygoteFilling(bool),
    /// The answer to `Settle`.
    SettleProgress(SettleProgress),
    /// The answer to `Cache`.
    CacheStats(CacheStats),
    /// The answer to `Prewarm`.
    PrewarmProgress(PrewarmProgress),
    /// The answer to `Children`, ascending; empty when there are no more.
    Children(Vec<ChildId>),
    /// The answer to `NextSpace` and `FindSpace`.
    SpaceId(Option<AddressSpaceId>),
    /// The answer to `Map`, ascending; fewer than asked for at most when there are no more.
    Segments(Vec<MapSegment>),
    /// The answer to `Reclaim`.
    Reclaimed {
        /// How many of its processes nobody held: they have read zeroes since.
        lost: usize,
    },
    /// It is not done, for this reason.
    Refused(String),
}

/// What a pager is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagerHello {
    /// Its release.
    pub release: String,
    /// Whom it trusts.
    pub trust_policy: TrustPolicy,
}

/// What the pager did for a child, and what became of its memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagerStats {
    /// In numbers.
    pub counters: PagerCounters,
    /// Why pages that were not fetched raise SIGBUS now, when they do.
    pub loss_reason: Option<String>,
}

/// How far a child is with taking the rest of its pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettleProgress {
    /// Pages of the seed that hold data, in each address space of the child's.
    pub total_pages: u64,
    /// Of these, the pages that are not there yet. A new pager does not know what its predecessor had, and begins anew.
    pub missing_pages: u64,
    /// How it stands.
    pub state: SettleState,
}

/// How a child's settling stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SettleState {
    /// Nobody asked for it.
    Idle,
    /// Pages are on their way.
    Running,
    /// It needs its seed no more.
    Settled,
    /// It was given up, for this reason; the child goes on as before.
    Failed(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_another_form_is_not_taken_for_another_message() {
        let bytes = encode(&PagerRequest::Stop).unwrap();
        assert_eq!(decode::<PagerRequest>(&bytes).unwrap(), PagerRequest::Stop);
        let mut newer = bytes.clone();
        newer[3] += 1;
        assert!(
            matches!(decode::<PagerRequest>(&newer), Err(ControlMessageError::VersionMismatch { theirs }) if theirs == PROTOCOL_VERSION + 1)
        );
        // As they were before they had a form.
        let old = postcard::to_stdvec(&PagerRequest::Stop).unwrap();
        assert!(matches!(decode::<PagerRequest>(&old), Err(ControlMessageError::VersionMismatch { theirs: 0 })));
        assert!(matches!(decode::<PagerRequest>(&bytes[..4]), Err(ControlMessageError::Damaged(_))));
        assert!(decode::<PagerRequest>(&[]).is_err());
    }
}

/// How far a seed's working set is on its way into a node's cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrewarmProgress {
    /// Pages of the set; 0 until it came, and where no child of the seed was seen yet.
    pub set_pages: u64,
    /// Of these, the pages that came, or were there; those of this host's own seeds are not kept.
    pub cached_pages: u64,
    /// How it stands.
    pub state: PrewarmState,
}

/// How a seed's warming up stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PrewarmState {
    /// Pages are on their way.
    Running,
    /// All are there.
    Done,
    /// It was given up, for this reason; what came is there.
    Failed(String),
}
