//! How far one log is on one node: the state machine of the chain. Pure; `offload` copies the bytes, a simulation only
//! counts them.

use crate::log::LogPoint;
use crate::publish::PublishedMark;

/// How far a log is.
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

/// Where the copier of a log begins anew: records after `end` do not count until they are announced again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRestart {
    /// Everything before it is valid.
    pub mark: PublishedMark,
    /// The copier reads again up to here.
    pub end: LogPoint,
}

/// A node has published what the source of the log does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log was published here up to position {ours}, and its source has it up to {theirs}")]
pub struct PublishedAhead {
    /// Of this node.
    pub ours: u64,
    /// Of the source.
    pub theirs: u64,
}

impl ChainLog {
    /// A log that this node has validated up to `stored`. Which of it is committed, only the successor knows.
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

    /// This node has the log up to here, validated, and on disk if the volume promises that.
    pub fn stored(&self) -> LogPoint {
        self.stored
    }

    /// Each node of the path has it up to here.
    pub fn committed(&self) -> LogPoint {
        self.committed
    }

    /// The shared tree of this node has it up to here.
    pub fn published(&self) -> PublishedMark {
        self.published
    }

    /// The shared trees of this node and of all later ones on the path have it up to here.
    pub fn published_everywhere(&self) -> LogPoint {
        self.published_everywhere
    }

    /// The predecessor has announced the log since the node began to catch up.
    pub fn is_announced(&self) -> bool {
        self.is_announced
    }

    /// Whether the log has something to publish. Publishing begins when everything is committed that was stored when the log
    /// was opened, because the shared tree may have a part of it.
    pub fn is_publishable(&self) -> bool {
        self.committed > self.published.point && self.committed >= self.recovery_end
    }

    /// Whether the next change set has everything that is committed, as after a crash.
    pub fn is_recovering(&self) -> bool {
        self.published.point < self.recovery_end
    }

    /// A predecessor opens the log. What this node has beyond `stored`, the predecessor's end, was never acknowledged. A
    /// node that needs a shared tree begins at `published`: everything before is in the tree that it copies from another node.
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

    /// The predecessor has announced what it has.
    pub fn announce(&mut self) {
        self.is_announced = true;
    }

    /// The copier has read the log again, up to `stored`.
    pub fn restart(&mut self, restart: LogRestart, stored: LogPoint) {
        self.stored = stored;
        self.committed = self.committed.min(stored).max(restart.mark.point);
        self.recovery_end = self.recovery_end.min(stored);
        self.published_everywhere = self.published_everywhere.min(self.published.point);
    }

    /// The copier has validated the log up to here.
    pub fn store(&mut self, stored: LogPoint) {
        assert!(stored >= self.stored, "a log loses records only when it is restarted");
        self.stored = stored;
    }

    /// All later nodes have the log up to `end`, and have published it up to `published`.
    pub fn commit(&mut self, end: LogPoint, published: LogPoint) {
        self.committed = self.committed.max(end.min(self.stored));
        self.published_everywhere = self.published_everywhere.max(self.published.point.min(published));
    }

    /// The shared tree of this node has the log up to a mark.
    pub fn publish(&mut self, mark: PublishedMark) {
        self.published = mark;
    }

    /// Nothing counts before it is announced again: the node is off the chain.
    pub fn forget(&mut self) {
        self.is_announced = false;
    }

    /// The shared tree was replaced by one that has the log up to a mark.
    pub fn install_tree(&mut self, mark: PublishedMark) {
        self.published = mark;
        self.recovery_end = mark.point;
    }
}
