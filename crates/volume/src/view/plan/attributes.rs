//! Plans chmod(2), chown(2), utimensat(2) and truncate(2), which the kernel sends as FUSE_SETATTR.

use rustix::io::Errno;

use super::{CallerIdentity, PrivilegeLoss};
use crate::record::{FILE_BYTES_MAX, FileKind, InodeAttributes, InodeNumber, RecordEffect, Timestamp};
use crate::view::VolumeNamespace;

/// The attributes to change; none if unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttributeChange {
    /// Permission bits.
    pub mode: Option<u16>,
    /// Owner.
    pub user: Option<u32>,
    /// Group.
    pub group: Option<u32>,
    /// Size.
    pub size: Option<u64>,
    /// `st_atim`.
    pub accessed: Option<Timestamp>,
    /// `st_mtim`.
    pub modified: Option<Timestamp>,
}

impl AttributeChange {
    /// Whether nothing but `st_ctim` changes: chown(2) with owner and group -1, or the kernel removes privileges by itself.
    pub fn is_empty(&self) -> bool {
        let Self { mode, user, group, size, accessed, modified } = self;
        mode.is_none() && user.or(*group).is_none() && size.is_none() && accessed.or(*modified).is_none()
    }
}

impl VolumeNamespace {
    /// Plans a change of attributes.
    ///
    /// # Errors
    /// EISDIR or EINVAL for a size of something else than a regular file; EFBIG.
    pub fn plan_set_attributes(
        &self,
        inode: InodeNumber,
        change: AttributeChange,
        loss: PrivilegeLoss,
        caller: CallerIdentity,
    ) -> Result<Vec<RecordEffect>, Errno> {
        let current = &self.inode(inode)?.attributes;
        let mut effects = Vec::new();
        let mut attributes = InodeAttributes {
            mode: change.mode.map_or(current.mode, |mode| mode & 0o7777),
            user: change.user.unwrap_or(current.user),
            group: change.group.unwrap_or(current.group),
            changed: caller.now,
            ..current.clone()
        };
        if let Some(bytes) = change.size {
            match current.kind {
                FileKind::Regular if bytes <= FILE_BYTES_MAX => {}
                FileKind::Regular => return Err(Errno::FBIG),
                FileKind::Directory => return Err(Errno::ISDIR),
                _ => return Err(Errno::INVAL),
            }
            if bytes < current.size {
                effects.push(RecordEffect::SetSize { inode, bytes });
            }
            attributes.size = bytes;
            attributes.modified = caller.now;
        }
        effects.extend(self.drop_capabilities(inode, loss));
        if change.mode.is_none() {
            attributes.mode = loss.apply_to(attributes.mode);
        }
        attributes.accessed = change.accessed.unwrap_or(current.accessed);
        attributes.modified = change.modified.unwrap_or(attributes.modified);
        effects.push(RecordEffect::SetAttributes { inode, attributes });
        Ok(effects)
    }
}
