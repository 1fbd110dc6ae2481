//! Publishing: applies change sets to the shared tree, an ordinary directory that ordinary tools list and back up. The
//! host worker calls `Publisher`; a mount reads the result with `load_namespace`.
//!
//! The shared tree has four parts. `tree` has the files of the volume. `inodes` has one more link to each inode that is not
//! a directory. `orphans` has directories without an entry. `published` has the mark of each log.

mod calls;
mod data_changes;
mod directory_table;
mod directory_walk;
mod entries;
mod file_data;
mod inode_record;
mod inodes;
mod layout;
mod load;
mod mark;
mod publisher;
mod tree_digest;
mod tree_reader;

pub(crate) use calls::errno_of;
pub use calls::{CallBudget, PublishError};
pub(crate) use data_changes::write_fully;
pub use data_changes::{DataCopy, LogData};
pub use farfork_cluster::catalog::Durability;
pub(crate) use file_data::read_up_to;
pub use inodes::find_unlinked_inodes;
pub(crate) use layout::SECTOR_BYTES;
pub use layout::{SharedTree, available_bytes};
pub use load::load_namespace;
pub use mark::{MarkFile, PublishedMark, has_applied_others, is_damaged_mark};
pub use publisher::Publisher;
pub use tree_digest::{
    DATA_PART_BYTES, DataDigester, DataPart, Digest, DigestedInodes, InodeDigest, TreeDigest, digest_inodes,
};
pub use tree_reader::{TreePart, TreeReader};

#[cfg(test)]
mod tests;
