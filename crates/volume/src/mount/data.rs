//! Reads data: unpublished data from the log, the rest from the shared tree. Finds data and holes, and counts blocks.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fuser::{FileAttr, FileType};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::answer::CACHE_TIME;
use super::client::VolumeClient;
use super::conversion::number_of;
use crate::publish::{SECTOR_BYTES, errno_of, read_up_to};
use crate::record::InodeNumber;
use crate::view::{DataSegment, Inode, InodeContent, SegmentSource};

/// How long the kernel may cache an estimated number of blocks.
const ESTIMATE_CACHE_TIME: Duration = Duration::from_secs(1);

/// The target of lseek(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeekTarget {
    /// SEEK_DATA.
    Data,
    /// SEEK_HOLE.
    Hole,
}

impl VolumeClient {
    /// Reads from a regular file, at most to its end.
    pub(super) fn read(&self, inode: InodeNumber, offset: u64, bytes: usize) -> Result<Vec<u8>, Errno> {
        let mut buffer = Vec::new();
        let mut published = Vec::new();
        {
            // The log is read under the state lock, so that its bytes are not overwritten before they are copied.
            let state = self.lock();
            let file = state.namespace.readable_inode(inode)?;
            let InodeContent::File(extents) = &file.content else { return Err(Errno::INVAL) };
            let end = file.attributes.size.min(offset.saturating_add(bytes as u64));
            buffer.resize(end.saturating_sub(offset) as usize, 0);
            for segment in extents.segments(offset..end.max(offset)) {
                match segment.source {
                    SegmentSource::Log(position) => {
                        state.log.load_data(position, part(&mut buffer, offset, &segment.range));
                    }
                    SegmentSource::Hole => {}
                    SegmentSource::Published => published.push(segment.range),
                }
            }
        }
        if !published.is_empty()
            && let Some(file) = self.published_file(inode)?
        {
            for range in published {
                // Beyond the end of the file, the buffer stays zero.
                read_up_to(&file, part(&mut buffer, offset, &range), range.start).map_err(errno_of)?;
            }
        }
        Ok(buffer)
    }

    /// Finds the first byte of data, or of a hole, at or after `offset`. The end of the file counts as a hole.
    pub(super) fn seek(&self, inode: InodeNumber, offset: u64, target: SeekTarget) -> Result<u64, Errno> {
        let (size, segments) = self.segments_from(inode, offset)?;
        let base = self.published_file(inode)?;
        for DataSegment { range, source } in segments {
            let found = match (source, target) {
                (SegmentSource::Log(_), SeekTarget::Data) | (SegmentSource::Hole, SeekTarget::Hole) => {
                    Some(range.start)
                }
                (SegmentSource::Log(_), SeekTarget::Hole) | (SegmentSource::Hole, SeekTarget::Data) => None,
                (SegmentSource::Published, _) => seek_in_base(base.as_deref(), &range, target)?,
            };
            if let Some(found) = found {
                return Ok(found);
            }
        }
        match target {
            SeekTarget::Data => Err(Errno::NXIO),
            SeekTarget::Hole => Ok(size),
        }
    }

    /// Opens the published data of a file. None if the file is not published yet.
    ///
    /// # Errors
    /// ESTALE if another client has dropped the file; otherwise as openat(2).
    pub(super) fn published_file(&self, inode: InodeNumber) -> Result<Option<Arc<File>>, Errno> {
        let find = || self.base_files.get(&self.shared, inode).map_err(errno_of);
        if let Some(file) = find()? {
            return Ok(Some(file));
        }
        if self.lock().is_new(inode) {
            return Ok(None);
        }
        // The file was published after the first attempt, or another client has dropped it.
        find()?.ok_or(Errno::STALE).map(Some)
    }

    /// Counts the blocks of a regular file: those that the shared tree has, and those that unpublished data will take.
    /// Returns how long the kernel may cache the attributes, because the number changes when the data is published.
    pub(super) fn count_blocks(&self, attributes: &mut FileAttr) -> Duration {
        if attributes.kind != FileType::RegularFile {
            return CACHE_TIME;
        }
        let inode = number_of(attributes.ino);
        let (mut is_new, mut unpublished) = (false, None);
        {
            let state = self.lock();
            if let Ok(Inode { content: InodeContent::File(extents), .. }) = state.namespace.readable_inode(inode) {
                is_new = state.is_new(inode);
                unpublished = extents.unpublished_space(attributes.size);
            }
        }
        let published = if is_new { Ok(0) } else { self.base_files.allocated_bytes(&self.shared, inode) };
        let published = published.unwrap_or_else(|error| {
            tracing::warn!(%error, ?inode, "the blocks of a file cannot be counted");
            0
        });
        let allocated = unpublished.map_or(published, |space| space.total_bytes(published));
        attributes.blocks = allocated / SECTOR_BYTES;
        if unpublished.is_some() { ESTIMATE_CACHE_TIME } else { CACHE_TIME }
    }

    fn segments_from(&self, inode: InodeNumber, offset: u64) -> Result<(u64, Vec<DataSegment>), Errno> {
        let state = self.lock();
        let file = state.namespace.readable_inode(inode)?;
        let InodeContent::File(extents) = &file.content else { return Err(Errno::INVAL) };
        let size = file.attributes.size;
        if offset >= size { Err(Errno::NXIO) } else { Ok((size, extents.segments(offset..size))) }
    }
}

/// Number of bytes that pages of a mapping change. Bytes after the end of the file are not part of the mapping. The kernel
/// writes them if it does not know yet that another client has cut the file.
pub(super) fn mapped_bytes(offset: u64, bytes: u32, size: u64) -> u32 {
    size.saturating_sub(offset).min(bytes.into()) as u32
}

fn part<'a>(buffer: &'a mut [u8], offset: u64, range: &Range<u64>) -> &'a mut [u8] {
    &mut buffer[(range.start - offset) as usize..(range.end - offset) as usize]
}

/// Seeks within a range of a published file. Without a file, the whole range is a hole.
fn seek_in_base(base: Option<&File>, range: &Range<u64>, target: SeekTarget) -> Result<Option<u64>, Errno> {
    let Some(base) = base else { return Ok((target == SeekTarget::Hole).then_some(range.start)) };
    let position = match target {
        SeekTarget::Data => SeekFrom::Data(range.start),
        SeekTarget::Hole => SeekFrom::Hole(range.start),
    };
    match seek(base, position) {
        Ok(found) if found < range.end => Ok(Some(found)),
        Ok(_) => Ok(None),
        // The published file ends before the range.
        Err(Errno::NXIO) => Ok((target == SeekTarget::Hole).then_some(range.start)),
        Err(error) => Err(error),
    }
}
