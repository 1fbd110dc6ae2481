//! Converts between the types of fuser and those of the view.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, Request, TimeOrNow};
use rustix::io::Errno;

use crate::record::{EntryName, FileKind, InodeNumber, NAME_BYTES_MAX, Timestamp};
use crate::view::{CallerIdentity, Inode, SpaceRequest};

const BLOCK_BYTES: u32 = 4096;

pub(super) fn number_of(inode: INodeNo) -> InodeNumber {
    InodeNumber(inode.0)
}

pub(super) fn name_of(name: &OsStr) -> Result<EntryName, Errno> {
    let error = if name.len() > NAME_BYTES_MAX { Errno::NAMETOOLONG } else { Errno::INVAL };
    EntryName::new(name.as_bytes()).ok_or(error)
}

pub(super) fn caller_of(request: &Request) -> CallerIdentity {
    CallerIdentity { user: request.uid(), group: request.gid(), now: timestamp_of(SystemTime::now()) }
}

pub(super) fn error_of(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw_os_error())
}

pub(super) fn file_type_of(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharacterDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// The kind of file in a mode; none if mknod(2) does not create it.
pub(super) fn kind_of(mode: u32) -> Option<FileKind> {
    match rustix::fs::FileType::from_raw_mode(mode) {
        rustix::fs::FileType::RegularFile => Some(FileKind::Regular),
        rustix::fs::FileType::Fifo => Some(FileKind::Fifo),
        rustix::fs::FileType::Socket => Some(FileKind::Socket),
        rustix::fs::FileType::CharacterDevice => Some(FileKind::CharacterDevice),
        rustix::fs::FileType::BlockDevice => Some(FileKind::BlockDevice),
        _ => None,
    }
}

/// Converts attributes. Regular files have no blocks yet: `VolumeClient::count_blocks` counts them.
pub(super) fn attributes_of(number: InodeNumber, inode: &Inode) -> FileAttr {
    let attributes = &inode.attributes;
    let size = match &inode.content {
        crate::view::InodeContent::Symlink(target) => target.len() as u64,
        crate::view::InodeContent::Directory { .. } => BLOCK_BYTES.into(),
        _ => attributes.size,
    };
    FileAttr {
        ino: INodeNo(number.0),
        size,
        blocks: 0,
        atime: system_time_of(attributes.accessed),
        mtime: system_time_of(attributes.modified),
        ctime: system_time_of(attributes.changed),
        crtime: system_time_of(attributes.changed),
        kind: file_type_of(attributes.kind),
        perm: attributes.mode,
        nlink: inode.link_count(),
        uid: attributes.user,
        gid: attributes.group,
        rdev: attributes.device,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

pub(super) fn requested_time(time: TimeOrNow, now: Timestamp) -> Timestamp {
    match time {
        TimeOrNow::Now => now,
        TimeOrNow::SpecificTime(time) => received_time(time),
    }
}

/// Recovers the kernel's timestamp from a time that fuser 0.18 has converted. For times before 1970, fuser subtracts the
/// nanoseconds, although the kernel adds them.
fn received_time(time: SystemTime) -> Timestamp {
    match UNIX_EPOCH.duration_since(time) {
        Ok(before) => Timestamp { seconds: -(before.as_secs() as i64), nanoseconds: before.subsec_nanos() },
        Err(_) => timestamp_of(time),
    }
}

pub(super) fn timestamp_of(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp { seconds: after.as_secs() as i64, nanoseconds: after.subsec_nanos() },
        Err(error) => {
            let before = error.duration();
            let borrowed = i64::from(before.subsec_nanos() > 0);
            let nanoseconds = (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000;
            Timestamp { seconds: -(before.as_secs() as i64) - borrowed, nanoseconds }
        }
    }
}

pub(super) fn system_time_of(time: Timestamp) -> SystemTime {
    let nanoseconds = Duration::from_nanos(time.nanoseconds.into());
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
    whole.map_or(UNIX_EPOCH, |whole| whole + nanoseconds)
}

/// Converts the mode of fallocate(2); none if it is not supported.
pub(super) fn space_request(mode: i32) -> Option<SpaceRequest> {
    const KEEP_SIZE: i32 = 1;
    const PUNCH_HOLE: i32 = 2;
    const ZERO_RANGE: i32 = 16;
    match mode {
        0 => Some(SpaceRequest::Allocate),
        KEEP_SIZE => Some(SpaceRequest::AllocateKeepSize),
        mode if mode == PUNCH_HOLE | KEEP_SIZE => Some(SpaceRequest::PunchHole),
        ZERO_RANGE => Some(SpaceRequest::ZeroRange),
        mode if mode == ZERO_RANGE | KEEP_SIZE => Some(SpaceRequest::ZeroRangeKeepSize),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_the_epoch_are_kept() {
        for (seconds, nanoseconds) in [(0, 0), (5, 7), (-1, 999_999_999), (-5, 0), (-5, 3)] {
            let time = Timestamp { seconds, nanoseconds };
            assert_eq!(timestamp_of(system_time_of(time)), time);
        }
    }

    #[test]
    fn times_from_the_kernel_are_converted_exactly() {
        for (seconds, nanoseconds) in [(0, 0), (5, 7), (-1, 999_999_999), (-7, 3), (-7, 0)] {
            // `system_time_from_time` in fuser 0.18.
            let distance = Duration::new(i64::unsigned_abs(seconds), nanoseconds);
            let converted = if seconds < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance };
            assert_eq!(received_time(converted), Timestamp { seconds, nanoseconds });
        }
    }
}
