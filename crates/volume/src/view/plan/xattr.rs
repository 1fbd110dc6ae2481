//! Plans changes of extended attributes.

use rustix::io::Errno;
use serde_bytes::ByteBuf;

use super::CallerIdentity;
use crate::record::{InodeNumber, NAME_BYTES_MAX, RecordEffect, XATTR_BYTES_MAX};
use crate::view::VolumeNamespace;

/// Prefix of names that the volume itself uses in the shared tree.
const RESERVED_PREFIX: &[u8] = b"trusted.farfork.";
/// Names that the shared tree can keep. Access control lists (`system.`) are not supported yet: without their checks they
/// would protect nothing.
const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Number of bytes that ext4 needs for an attribute in addition to its name and value: an entry, and padding.
const ENTRY_BYTES: usize = 20;
/// Maximum number of bytes of all attributes with their entries. A block of ext4 also has a header, the volume's own
/// attribute, and a security label.
const BLOCK_BYTES_MAX: usize = 3840;

/// The flags of setxattr(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Any,
    /// XATTR_CREATE.
    Create,
    /// XATTR_REPLACE.
    Replace,
}

impl VolumeNamespace {
    /// Plans a new value. Without a value and with `XattrMode::Replace`, plans the removal.
    ///
    /// # Errors
    /// EOPNOTSUPP, ERANGE for the name; EEXIST, ENODATA for the mode; ENOSPC if all attributes together are too long.
    pub fn plan_set_xattr(
        &self,
        inode: InodeNumber,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
        caller: CallerIdentity,
    ) -> Result<Vec<RecordEffect>, Errno> {
        let is_supported = PREFIXES.iter().any(|prefix| name.starts_with(prefix) && name.len() > prefix.len());
        if !is_supported || name.starts_with(RESERVED_PREFIX) {
            return Err(Errno::OPNOTSUPP);
        }
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Errno::RANGE);
        }
        let state = self.inode(inode)?;
        let is_present = state.xattrs.contains_key(&ByteBuf::from(name));
        match mode {
            XattrMode::Create if is_present => return Err(Errno::EXIST),
            XattrMode::Replace if !is_present => return Err(Errno::NODATA),
            _ => {}
        }
        if let Some(value) = value {
            let others = state.xattrs.iter().filter(|(other, _)| other.as_slice() != name);
            let sizes = others.map(|(name, value)| name.len() + value.len()).chain([name.len() + value.len()]);
            let (bytes, count) = sizes.fold((0, 0), |(bytes, count), size| (bytes + size, count + 1));
            if bytes > XATTR_BYTES_MAX || bytes + count * ENTRY_BYTES > BLOCK_BYTES_MAX {
                return Err(Errno::NOSPC);
            }
        }
        let name = ByteBuf::from(name);
        let value = value.map(ByteBuf::from);
        Ok(vec![RecordEffect::SetXattr { inode, name, value }, self.touch_inode(inode, caller.now)?])
    }
}
