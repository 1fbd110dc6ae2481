//! The progress of one log on one node: the state machine of the chain. Does no I/O: `offload` copies the bytes, and the
//! simulation only counts records.

use crate::log::LogPoint;
use crate::publish::PublishedMark;

/// The progress of one log on this node.
///
/// ```text
/// published everywhere ≤ published here ≤ committed ≤ stored
///     └ on this node and all later ones      │           └ validated on this node
///                                            └ stored on each node of the path
/// ```
#[derive(Clone, Debug)]
pub struct ChainLog {
    stored: LogPoint,
    committed: LogPoint,
    published: PublishedMark,
    published_everywhere: LogPoint,
    recovery_end: LogPoint,
    is_announced: bool,
}

/// The range of a log that the copier must read again. It ignores records after `end` until the predecessor announces them
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRestart {
    /// The copier begins here. All earlier records are published, on this node or on its predecessor.
    pub mark: PublishedMark,
    /// The copier reads up to this point.
    pub end: LogPoint,
}

/// This node has published records that its predecessor does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this node has published the log up to position {ours}, but its predecessor has it only up to {theirs}")]
pub struct PublishedAhead {
    /// Published position on this node.
    pub ours: u64,
    /// End of the predecessor's log.
    pub theirs: u64,
}

impl ChainLog {
    /// Creates the state of a log that this node has validated up to `stored`. How much is committed is unknown until the
    /// successor replies.
    pub fn open(mark: PublishedMark, stored: LogPoint) -> Self {
        Self {
            stored,
            committed: mark.point,
            published: mark,
            published_everywhere: LogPoint::START,
            recovery_end: stored,
            is_announced: false,
        }
    }

    /// End of the log on this node: validated, and flushed to disk if the volume has `--durability disk`.
    pub fn stored(&self) -> LogPoint {
        self.stored
    }

    /// Point up to which each node of the path has the log.
    pub fn committed(&self) -> LogPoint {
        self.committed
    }

    /// Mark up to which this node has published the log.
    pub fn published(&self) -> PublishedMark {
        self.published
    }

    /// Point up to which this node and all later nodes of the path have published the log.
    pub fn published_everywhere(&self) -> LogPoint {
        self.published_everywhere
    }

    /// Whether the predecessor has announced the log since this node began to catch up.
    pub fn is_announced(&self) -> bool {
        self.is_announced
    }

    /// Whether the log has something to publish. After the log is opened, all records that it had must be committed first,
    /// because the shared tree may have a part of them.
    pub fn is_publishable(&self) -> bool {
        self.committed > self.published.point && self.committed >= self.recovery_end
    }

    /// Whether the next change set must have all committed records: after a crash, or after a failed attempt to publish, the
    /// shared tree may already have a part of them.
    pub fn is_recovering(&self) -> bool {
        self.published.point < self.recovery_end
    }

    /// Handles `OpenLog` of a predecessor whose log ends at `stored`. Later records of this node were never acknowledged,
    /// and are dropped. A node that needs a shared tree begins at `published`: the tree that it copies has all earlier
    /// records. Returns the range to read again, if any.
    ///
    /// # Errors
    /// When published records would be lost.
    pub fn accept_predecessor(
        &mut self,
        published: PublishedMark,
        stored: LogPoint,
        needs_tree: bool,
    ) -> Result<Option<LogRestart>, PublishedAhead> {
        if needs_tree {
            self.is_announced = false;
            self.published = published;
            return Ok(Some(LogRestart { mark: published, end: published.point }));
        }
        if self.stored <= stored {
            return Ok(None);
        }
        if self.published.point > stored {
            return Err(PublishedAhead { ours: self.published.point.position, theirs: stored.position });
        }
        Ok(Some(LogRestart { mark: self.published, end: stored }))
    }

    /// Sets `is_announced`: the predecessor has announced the log.
    pub fn announce(&mut self) {
        self.is_announced = true;
    }

    /// Adjusts the points of the log, after the copier has read it again up to `stored`.
    pub fn restart(&mut self, restart: LogRestart, stored: LogPoint) {
        self.stored = stored;
        self.committed = self.committed.min(stored).max(restart.mark.point);
        self.recovery_end = self.recovery_end.min(stored);
        self.published_everywhere = self.published_everywhere.min(self.published.point);
    }

    /// Raises the end of the log, after the copier has validated it up to `stored`.
    pub fn store(&mut self, stored: LogPoint) {
        assert!(stored >= self.stored, "a log loses records only when it is restarted");
        self.stored = stored;
    }

    /// Raises the committed and published points: all later nodes have the log up to `end`, and have published it up to
    /// `published`.
    pub fn commit(&mut self, end: LogPoint, published: LogPoint) {
        self.committed = self.committed.max(end.min(self.stored));
        self.published_everywhere = self.published_everywhere.max(self.published.point.min(published));
    }

    /// Sets the mark up to which this node has published the log.
    pub fn publish(&mut self, mark: PublishedMark) {
        self.published = mark;
    }

    /// Records that a change set up to `end` was not published. The shared tree may have a part of it.
    pub fn fail_publishing(&mut self, end: LogPoint) {
        self.recovery_end = self.recovery_end.max(end);
    }

    /// Clears `is_announced`: the node is off the chain, and needs a new announcement of the log to rejoin.
    pub fn forget(&mut self) {
        self.is_announced = false;
    }

    /// Sets the mark of a copied shared tree, which has replaced the previous one.
    pub fn install_tree(&mut self, mark: PublishedMark) {
        self.published = mark;
        self.recovery_end = mark.point;
    }
}
