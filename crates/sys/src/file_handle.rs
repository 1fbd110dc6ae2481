//! Resolves a file handle of name_to_handle_at(2), as `fdinfo` shows it, to the file's path.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

/// The maximal length of a handle: the kernel's MAX_HANDLE_SZ.
const HANDLE_BYTES_MAX: usize = 128;

/// Returns the path, as the caller sees it, of a file on the file system of `mount`. `kind` and `bytes` are the file's
/// handle.
///
/// # Errors
/// ESTALE if the file no longer exists; EPERM without CAP_DAC_READ_SEARCH; `InvalidInput` for a handle that is too long.
pub fn resolve_path(mount: BorrowedFd<'_>, kind: i32, bytes: &[u8]) -> io::Result<PathBuf> {
    #[repr(C)]
    struct FileHandle {
        bytes: u32,
        kind: i32,
        handle: [u8; HANDLE_BYTES_MAX],
    }
    let mut handle = FileHandle { bytes: bytes.len() as u32, kind, handle: [0; HANDLE_BYTES_MAX] };
    handle.handle.get_mut(..bytes.len()).ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(bytes);
    // SAFETY: the kernel reads a struct file_handle, whose layout this is, with no more bytes than fit in it.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            &raw mut handle,
            libc::O_PATH | libc::O_CLOEXEC | libc::O_NOFOLLOW,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it for this process.
    let file = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}
