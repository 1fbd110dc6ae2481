//! The publisher: applies change sets in order, each as often as crashes demand. One process at a time has one.

use super::calls::{CallBudget, PublishError};
use super::directory_table::DirectoryTable;
use super::layout::SharedTree;
use super::mark::{MarkFile, PublishedMark};
use crate::change::ChangeSet;

/// The failures that an acknowledged change survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Durability {
    /// The death of every process.
    Memory,
    /// Power failure, too.
    Disk,
}

/// Reads data of records that are not published yet.
pub trait LogData {
    /// Copies bytes from a position of the endless log.
    fn load_data(&self, position: u64, into: &mut [u8]);
}

/// Applies change sets to one shared tree.
#[derive(Debug)]
pub struct Publisher {
    pub(super) shared: SharedTree,
    pub(super) directories: DirectoryTable,
    pub(super) calls: CallBudget,
    mark: MarkFile,
    durability: Durability,
}

impl Publisher {
    /// Takes over a shared tree in whatever state a crash left it. The caller holds the lock of the tree.
    ///
    /// # Errors
    /// When the tree cannot be read.
    pub fn open(shared: SharedTree, durability: Durability, calls: CallBudget) -> Result<Self, PublishError> {
        let mark = shared.open_mark().map_err(|error| {
            tracing::error!(%error, "the published mark cannot be read");
            PublishError::Mismatch("the published mark cannot be read")
        })?;
        let directories = DirectoryTable::load(&shared)?;
        Ok(Self { shared, directories, calls, mark, durability })
    }

    /// How far the log is applied.
    pub fn mark(&self) -> PublishedMark {
        self.mark.mark()
    }

    /// Applies a change set, and moves the mark to its end. A set that is published already changes nothing.
    ///
    /// # Errors
    /// The shared tree then has a part of the change set; applying it again completes it.
    pub fn publish(&mut self, changes: &ChangeSet, log: &impl LogData) -> Result<PublishedMark, PublishError> {
        let mark = self.mark.mark();
        if changes.end <= mark.point {
            return Ok(mark);
        }
        if changes.begin > mark.point {
            return Err(PublishError::Mismatch("a change set is missing"));
        }
        self.create_inodes(changes)?;
        self.change_data(changes, log)?;
        self.move_entries(changes)?;
        self.set_attributes(changes)?;
        self.drop_inodes(changes)?;
        self.directories.close_all();
        let highest = changes.inodes.keys().next_back().map_or(0, |inode| inode.0);
        let inode_max = mark.inode_max.max(highest);
        self.move_mark(PublishedMark { point: changes.end, epoch: changes.epoch, inode_max })
    }

    /// The mark follows the changes, also on the disk: the log may be overwritten up to it.
    fn move_mark(&mut self, mark: PublishedMark) -> Result<PublishedMark, PublishError> {
        let is_durable = self.durability == Durability::Disk;
        if is_durable {
            let Self { shared, calls, .. } = &*self;
            calls.make("sync the shared tree", None, || rustix::fs::syncfs(&shared.tree))?;
        }
        let Self { mark: file, calls, .. } = self;
        let errno = |error: std::io::Error| rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO);
        calls.make("write the published mark", None, || file.write(mark).map_err(errno))?;
        if is_durable {
            calls.make("sync the published mark", None, || file.sync().map_err(errno))?;
        }
        Ok(mark)
    }
}
