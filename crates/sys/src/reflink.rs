//! Reflinks: two files share blocks until one of them changes. The volume's publisher uses reflinks instead of copies, if
//! `CopyMethod::None` is selected.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// A range of the source file, and its place in the target file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloneRange {
    /// Offset of the first byte in the source.
    pub from_offset: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Offset of the first byte in the target.
    pub to_offset: u64,
}

/// Makes a range of `to` share the blocks of `from`. Offsets and length must be multiples of the block size.
///
/// # Errors
/// As ioctl_ficlonerange(2): EOPNOTSUPP or EINVAL if the file system has no reflinks; EXDEV if the files are on different
/// file systems.
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
