//! Reflinks: two files share blocks until one of them changes. The volume's publisher uses them instead of a copy.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// A range of two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloneRange {
    /// Of the first byte in the source.
    pub from_offset: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Of the first byte in the target.
    pub to_offset: u64,
}

/// Makes a range of `to` share the blocks of `from`. Offsets and length are multiples of the block size.
///
/// # Errors
/// As ioctl_ficlonerange(2): EOPNOTSUPP or EINVAL where the file system has no reflinks, EXDEV between two of them.
pub fn clone_range(from: impl AsFd, to: impl AsFd, range: CloneRange) -> io::Result<()> {
    let argument = libc::file_clone_range {
        src_fd: from.as_fd().as_raw_fd().into(),
        src_offset: range.from_offset,
        src_length: range.bytes,
        dest_offset: range.to_offset,
    };
    // SAFETY: FICLONERANGE reads the structure that it is given, and writes no memory of this process.
    let result = unsafe { libc::ioctl(to.as_fd().as_raw_fd(), libc::FICLONERANGE as libc::Ioctl, &raw const argument) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
