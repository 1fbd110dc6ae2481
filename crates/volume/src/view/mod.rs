//! The view of a client: the namespace of its volume in memory, including unpublished records of the log. Pure: no I/O, and
//! time is an argument.
//!
//! `plan` turns an operation into effects and checks it; `VolumeNamespace::apply` applies effects that are in the log. `mount`
//! calls both and reads data.

mod directory;
mod extent_map;
mod former_entries;
mod inode;
mod namespace;
mod plan;
mod published;

pub use directory::{DirectoryEntries, DirectoryEntry};
pub use extent_map::{DataSegment, ExtentMap, SegmentSource, UnpublishedSpace};
pub use inode::{Inode, InodeContent};
pub use namespace::{LoadedInode, VolumeNamespace};
pub use plan::{
    AttributeChange, CallerIdentity, LINKS_MAX, NewInode, PlannedCreation, PrivilegeLoss, RenameKind, RenameRequest,
    SpaceRequest, XattrMode,
};
pub use published::CachedObjects;
