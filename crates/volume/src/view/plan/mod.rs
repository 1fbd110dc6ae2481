//! Plans operations: checks them against the namespace, and returns the effects to log. Changes nothing.
//!
//! The kernel checks permissions and file types of path components (`default_permissions`); the rest is checked here.

mod attributes;
mod create;
mod data;
mod remove;
mod rename;
mod xattr;

pub use attributes::AttributeChange;
pub use create::{LINKS_MAX, NewInode, PlannedCreation};
pub use data::SpaceRequest;
pub use rename::{RenameKind, RenameRequest};
pub use xattr::XattrMode;

use rustix::io::Errno;
use serde_bytes::ByteBuf;

use super::VolumeNamespace;
use crate::record::{InodeNumber, RecordEffect, Timestamp};

/// The process that makes a call.
#[derive(Clone, Copy, Debug)]
pub struct CallerIdentity {
    /// File system user id.
    pub user: u32,
    /// File system group id.
    pub group: u32,
    /// Time of the call.
    pub now: Timestamp,
}

const SET_USER_ID: u16 = 0o4000;
const SET_GROUP_ID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;
const CAPABILITY_XATTR: &[u8] = b"security.capability";

/// The privileges that a file loses when its data or its owner changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrivilegeLoss {
    /// None.
    Nothing,
    /// The capabilities.
    Capabilities,
    /// In addition, the set-user-ID bit, and the set-group-ID bit if the group may execute the file.
    ProgramBits,
    /// In addition, the set-group-ID bit of other files.
    AllBits,
}

impl PrivilegeLoss {
    /// Removes the lost bits from a mode.
    pub fn apply_to(self, mode: u16) -> u16 {
        match self {
            Self::Nothing | Self::Capabilities => mode,
            Self::ProgramBits if mode & GROUP_EXECUTE == 0 => mode & !SET_USER_ID,
            Self::ProgramBits | Self::AllBits => mode & !(SET_USER_ID | SET_GROUP_ID),
        }
    }
}

impl VolumeNamespace {
    /// An effect that removes the file's capabilities, if it has any and loses them.
    fn drop_capabilities(&self, inode: InodeNumber, loss: PrivilegeLoss) -> Option<RecordEffect> {
        if loss == PrivilegeLoss::Nothing {
            return None;
        }
        let name = ByteBuf::from(CAPABILITY_XATTR);
        let is_present = self.inode(inode).is_ok_and(|state| state.xattrs.contains_key(&name));
        is_present.then_some(RecordEffect::SetXattr { inode, name, value: None })
    }

    /// An effect with new timestamps of a directory whose entries have changed.
    fn touch_directory(&self, directory: InodeNumber, now: Timestamp) -> Result<RecordEffect, Errno> {
        let mut attributes = self.inode(directory)?.attributes.clone();
        attributes.modified = now;
        attributes.changed = now;
        Ok(RecordEffect::SetAttributes { inode: directory, attributes })
    }

    /// An effect with a new change time of an inode.
    fn touch_inode(&self, inode: InodeNumber, now: Timestamp) -> Result<RecordEffect, Errno> {
        let mut attributes = self.inode(inode)?.attributes.clone();
        attributes.changed = now;
        Ok(RecordEffect::SetAttributes { inode, attributes })
    }
}
