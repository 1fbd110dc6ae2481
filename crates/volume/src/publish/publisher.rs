//! The publisher: applies change sets in order, and repeats one after a crash. Only one process at a time has a publisher
//! for a tree.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::calls::{CallBudget, PublishError, errno_of};
use super::data_changes::LogData;
use super::directory_table::DirectoryTable;
use super::layout::SharedTree;
use super::mark::{MarkFile, PublishedMark};
use crate::change::ChangeSet;
use farfork_cluster::catalog::Durability;

/// Applies change sets to one shared tree.
#[derive(Debug)]
pub struct Publisher {
    pub(super) shared: SharedTree,
    pub(super) directories: DirectoryTable,
    pub(super) calls: CallBudget,
    /// Marks by client number.
    marks: BTreeMap<u16, MarkFile>,
    durability: Durability,
}

impl Publisher {
    /// Opens a shared tree, in any state that a crash may leave. The caller holds the lock of the tree.
    ///
    /// # Errors
    /// If the tree cannot be read.
    pub fn open(shared: SharedTree, durability: Durability, calls: CallBudget) -> Result<Self, PublishError> {
        let directories = DirectoryTable::load(&shared)?;
        Ok(Self { shared, directories, calls, marks: BTreeMap::new(), durability })
    }

    /// Returns the mark of a client's log.
    ///
    /// # Errors
    /// When the mark cannot be read.
    pub fn mark(&mut self, client: u16) -> Result<PublishedMark, PublishError> {
        Ok(open_mark(&mut self.marks, &self.shared, client)?.mark())
    }

    /// Applies a change set of a client's log, and moves its mark to the end of the set. A set that is published already
    /// changes nothing.
    ///
    /// # Errors
    /// The shared tree then has a part of the change set. A later call with the same set completes it.
    pub fn publish(
        &mut self,
        client: u16,
        changes: &ChangeSet,
        log: &mut impl LogData,
    ) -> Result<PublishedMark, PublishError> {
        let mark = self.mark(client)?;
        if changes.end <= mark.point {
            return Ok(mark);
        }
        if changes.begin > mark.point {
            return Err(PublishError::Mismatch("a change set is missing"));
        }
        self.apply(changes, log)?;
        let mut own_numbers = changes.inodes.keys().filter(|inode| inode.belongs_to(client));
        let inode_max = own_numbers.next_back().map_or(mark.inode_max, |inode| mark.inode_max.max(inode.0));
        self.move_mark(client, PublishedMark { point: changes.end, epoch: changes.epoch, inode_max })
    }

    /// Writes the mark of a client's log, for a tree that was copied.
    ///
    /// # Errors
    /// When the mark cannot be written.
    pub fn set_mark(&mut self, client: u16, mark: PublishedMark) -> Result<(), PublishError> {
        let failed = |error| PublishError::Call { operation: "write the published mark", source: errno_of(error) };
        self.shared.create_mark(client).map_err(failed)?;
        open_mark(&mut self.marks, &self.shared, client)?.write(mark).map_err(failed)
    }

    /// Makes all changes of the tree durable.
    ///
    /// # Errors
    /// As syncfs(2).
    pub fn sync(&self) -> Result<(), PublishError> {
        rustix::fs::syncfs(&self.shared.tree).map_err(PublishError::call("sync the shared tree"))
    }

    /// Applies changes without writing a mark.
    ///
    /// # Errors
    /// As `publish`.
    pub fn apply(&mut self, changes: &ChangeSet, data: &mut impl LogData) -> Result<(), PublishError> {
        self.create_inodes(changes)?;
        self.change_data(changes, data)?;
        self.move_entries(changes)?;
        self.set_attributes(changes)?;
        self.drop_inodes(changes)?;
        self.directories.close_all();
        Ok(())
    }

    /// Writes the mark after the changes, because the log may then be overwritten up to the mark. With `Durability::Disk`,
    /// the changes are on disk before the mark is written.
    fn move_mark(&mut self, client: u16, mark: PublishedMark) -> Result<PublishedMark, PublishError> {
        let is_durable = self.durability == Durability::Disk;
        if is_durable {
            let Self { shared, calls, .. } = &*self;
            calls.make("sync the shared tree", None, || rustix::fs::syncfs(&shared.tree))?;
        }
        let Self { shared, calls, marks, .. } = self;
        let file = open_mark(marks, shared, client)?;
        calls.make("write the published mark", None, || file.write(mark).map_err(errno_of))?;
        if is_durable {
            calls.make("sync the published mark", None, || file.sync().map_err(errno_of))?;
        }
        Ok(mark)
    }
}

fn open_mark<'m>(
    marks: &'m mut BTreeMap<u16, MarkFile>,
    shared: &SharedTree,
    client: u16,
) -> Result<&'m mut MarkFile, PublishError> {
    match marks.entry(client) {
        Entry::Occupied(entry) => Ok(entry.into_mut()),
        Entry::Vacant(entry) => {
            let file = shared.open_mark(client).map_err(|error| {
                tracing::error!(%error, client, "the published mark cannot be read");
                PublishError::Mismatch("the published mark cannot be read")
            })?;
            Ok(entry.insert(file))
        }
    }
}
