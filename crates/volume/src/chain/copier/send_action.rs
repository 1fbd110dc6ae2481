//! The actions of an attempt to send a piece of a log, and the failures that end one.

use std::time::{Duration, Instant};

use farfork_wire::NodeName;

use super::piece::PieceAnnouncement;
use crate::log::LogPoint;
use crate::publish::PublishedMark;

/// The next action of the caller, which reports the result by the named function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendAction {
    /// Send `OpenLog`: `handle_opened`.
    Open {
        /// The fields of the call.
        published: PublishedMark,
        /// As `published`.
        stored: LogPoint,
        /// Longest wait for the reply.
        timeout: Duration,
    },
    /// Write these positions of the log into the ring of the successor: `handle_written`.
    Write {
        /// The first position.
        from: u64,
        /// The position after the last one.
        to: u64,
        /// Longest time of the write.
        timeout: Duration,
    },
    /// Wait for `handle_written`. At this time, call `handle_timer`.
    Wait(Instant),
    /// Send `StoreLog`: `handle_stored`.
    Announce(PieceAnnouncement),
    /// Wait for the result of the previous action.
    Pending,
    /// Find the silent nodes: `handle_probed`.
    Probe,
    /// Validate the unpublished part of this node's log: `handle_validated`.
    Validate,
    /// Remove this node from the chain: `handle_left`.
    Leave,
    /// Remove the successor, and these silent nodes: `handle_removed`.
    Remove(Vec<NodeName>),
    /// Read the record of the volume again. The attempt ends afterwards.
    ReadRecord,
    /// The attempt has ended.
    End,
}

/// Why the successor has not taken the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendFailure {
    /// It has another path of the log.
    OtherPath,
    /// It has no space for a new log.
    DiskFull,
    /// It has published records that this node does not have.
    PublishedAhead,
    /// It has refused the log, although both nodes have the same path.
    Refused,
    /// This node cannot read the catalog.
    Catalog,
    /// No answer in time, or a failed connection.
    Unanswered,
}
