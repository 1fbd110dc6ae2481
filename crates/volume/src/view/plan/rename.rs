//! Plans renameat2(2).

use rustix::io::Errno;

use super::CallerIdentity;
use crate::record::{EntryKey, EntryName, InodeNumber, RecordEffect};
use crate::view::VolumeNamespace;

/// The flags of renameat2(2). The caller refuses RENAME_WHITEOUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameKind {
    /// An existing entry is replaced.
    Replace,
    /// An existing entry is an error.
    NoReplace,
    /// Both entries exist, and are exchanged.
    Exchange,
}

/// A request to rename an entry.
#[derive(Clone, Debug)]
pub struct RenameRequest {
    /// The old directory.
    pub parent: InodeNumber,
    /// The old name.
    pub name: EntryName,
    /// The new directory.
    pub new_parent: InodeNumber,
    /// The new name.
    pub new_name: EntryName,
    /// How an existing entry of the new name is handled.
    pub kind: RenameKind,
}

impl RenameRequest {
    /// The entry that is moved.
    pub fn source_entry(&self) -> EntryKey {
        EntryKey { parent: self.parent, name: self.name.clone() }
    }

    /// The entry to which it is moved.
    pub fn target_entry(&self) -> EntryKey {
        EntryKey { parent: self.new_parent, name: self.new_name.clone() }
    }
}

impl VolumeNamespace {
    /// Plans a rename. Returns no effects if both names lead to the same inode.
    ///
    /// # Errors
    /// As renameat2(2).
    pub fn plan_rename(&self, request: &RenameRequest, caller: CallerIdentity) -> Result<Vec<RecordEffect>, Errno> {
        let RenameRequest { parent, name, new_parent, new_name, kind } = request;
        let moved = self.lookup(*parent, name)?;
        let existing = self.entries(*new_parent)?.get(new_name);
        self.check_target(moved, existing, request)?;
        if existing == Some(moved) {
            return Ok(Vec::new());
        }
        let replaced = existing.filter(|_| *kind == RenameKind::Exchange);
        let mut effects = vec![
            RecordEffect::SetEntry { parent: *parent, name: name.clone(), inode: replaced },
            RecordEffect::SetEntry { parent: *new_parent, name: new_name.clone(), inode: Some(moved) },
            self.touch_inode(moved, caller.now)?,
        ];
        if let Some(existing) = existing {
            effects.push(self.touch_inode(existing, caller.now)?);
        }
        effects.push(self.touch_directory(*parent, caller.now)?);
        if new_parent != parent {
            effects.push(self.touch_directory(*new_parent, caller.now)?);
        }
        Ok(effects)
    }

    fn check_target(
        &self,
        moved: InodeNumber,
        existing: Option<InodeNumber>,
        request: &RenameRequest,
    ) -> Result<(), Errno> {
        let is_directory = self.inode(moved)?.is_directory();
        if self.inode(request.new_parent)?.entry_count == 0 {
            return Err(Errno::NOENT);
        }
        if is_directory && self.is_inside(request.new_parent, moved) {
            return Err(Errno::INVAL);
        }
        let Some(existing) = existing else {
            return if request.kind == RenameKind::Exchange { Err(Errno::NOENT) } else { Ok(()) };
        };
        let existing_is_directory = self.inode(existing)?.is_directory();
        match request.kind {
            RenameKind::NoReplace => Err(Errno::EXIST),
            RenameKind::Exchange if existing_is_directory && self.is_inside(request.parent, existing) => {
                Err(Errno::INVAL)
            }
            RenameKind::Exchange => Ok(()),
            RenameKind::Replace if existing == moved => Ok(()),
            RenameKind::Replace => match (is_directory, existing_is_directory) {
                (true, false) => Err(Errno::NOTDIR),
                (false, true) => Err(Errno::ISDIR),
                (true, true) if !self.entries(existing)?.is_empty() => Err(Errno::NOTEMPTY),
                _ => Ok(()),
            },
        }
    }

    /// Whether a directory is `ancestor`, or inside of it.
    fn is_inside(&self, directory: InodeNumber, ancestor: InodeNumber) -> bool {
        let mut current = directory;
        loop {
            if current == ancestor {
                return true;
            }
            match self.inode(current) {
                Ok(inode) if current != InodeNumber::ROOT => current = inode.parent,
                _ => return false,
            }
        }
    }
}
