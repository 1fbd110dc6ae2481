//! Plans writes and fallocate(2).

use rustix::io::Errno;

use super::{CallerIdentity, PrivilegeLoss};
use crate::record::{FILE_BYTES_MAX, FileKind, InodeAttributes, InodeNumber, RecordEffect};
use crate::view::VolumeNamespace;

/// The modes of fallocate(2) that a volume supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceRequest {
    /// Mode 0: the file grows to the end of the range.
    Allocate,
    /// FALLOC_FL_KEEP_SIZE.
    AllocateKeepSize,
    /// FALLOC_FL_PUNCH_HOLE with FALLOC_FL_KEEP_SIZE.
    PunchHole,
    /// FALLOC_FL_ZERO_RANGE: the file grows to the end of the range.
    ZeroRange,
    /// FALLOC_FL_ZERO_RANGE with FALLOC_FL_KEEP_SIZE.
    ZeroRangeKeepSize,
}

impl VolumeNamespace {
    /// Plans a write of `bytes` bytes, which the caller logs with the effects.
    ///
    /// # Errors
    /// EFBIG; EINVAL for other inodes than regular files.
    pub fn plan_write(
        &self,
        inode: InodeNumber,
        offset: u64,
        bytes: u32,
        loss: PrivilegeLoss,
        caller: CallerIdentity,
    ) -> Result<Vec<RecordEffect>, Errno> {
        let end = range_end(offset, u64::from(bytes))?;
        let mut attributes = self.grown_file(inode, end, caller)?;
        let mut effects = vec![RecordEffect::WriteData { inode, offset, bytes }];
        attributes.mode = loss.apply_to(attributes.mode);
        effects.extend(self.drop_capabilities(inode, loss));
        effects.push(RecordEffect::SetAttributes { inode, attributes });
        Ok(effects)
    }

    /// Plans fallocate(2).
    ///
    /// # Errors
    /// EFBIG; EINVAL for an empty range, and for other inodes than regular files.
    pub fn plan_allocate(
        &self,
        inode: InodeNumber,
        request: SpaceRequest,
        offset: u64,
        bytes: u64,
        loss: PrivilegeLoss,
        caller: CallerIdentity,
    ) -> Result<Vec<RecordEffect>, Errno> {
        let end = range_end(offset, bytes)?;
        if bytes == 0 {
            return Err(Errno::INVAL);
        }
        let grows = matches!(request, SpaceRequest::Allocate | SpaceRequest::ZeroRange);
        let mut attributes = self.grown_file(inode, if grows { end } else { 0 }, caller)?;
        attributes.mode = loss.apply_to(attributes.mode);
        let mut effects = Vec::new();
        if matches!(request, SpaceRequest::PunchHole | SpaceRequest::ZeroRange | SpaceRequest::ZeroRangeKeepSize) {
            effects.push(RecordEffect::PunchHole { inode, offset, bytes });
        }
        if request != SpaceRequest::PunchHole {
            effects.push(RecordEffect::AllocateSpace { inode, offset, bytes });
        }
        effects.extend(self.drop_capabilities(inode, loss));
        effects.push(RecordEffect::SetAttributes { inode, attributes });
        Ok(effects)
    }

    fn grown_file(&self, inode: InodeNumber, end: u64, caller: CallerIdentity) -> Result<InodeAttributes, Errno> {
        let current = &self.inode(inode)?.attributes;
        if current.kind != FileKind::Regular {
            return Err(Errno::INVAL);
        }
        let size = current.size.max(end);
        Ok(InodeAttributes { size, modified: caller.now, changed: caller.now, ..current.clone() })
    }
}

fn range_end(offset: u64, bytes: u64) -> Result<u64, Errno> {
    offset.checked_add(bytes).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Errno::FBIG)
}
